"""The frames between the bridge and the relay agent: one TCP connection inside a port-forward.

A port-forward has no half-close and does not distinguish an orderly end from a lost connection, so
both sides send frames: four bytes with the length (big-endian), then that many bytes. Length 0 is
EOF in this direction; length 0xFFFFFFFF resets the framed connection.

`FramedTransport` is a protocol to the connection below and a transport to the protocol above. Bytes
are passed on as they arrive, without waiting for the end of a frame, and a limited number of frames
at a time (`sync.kube.portions`). The connection is lost without EOF (`bridge.net.splice`) when the
peer resets it, violates the format, or ends before its EOF.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

from sync.kube.layered_transport import Buffer, LayeredTransport
from sync.kube.portions import Portions

#: The most bytes in one frame.
_MAX_FRAME = 256 * 1024
_LENGTH_SIZE = 4
_EOF = 0
_LOST = 0xFFFFFFFF


class FramedTransport(LayeredTransport):
    """See the module. ``above`` receives the data; ``preface`` is sent before the first frame."""

    __slots__ = (
        "_frame_left",
        "_length_bytes",
        "_portions",
        "_preface",
        "_received_eof",
        "_sent_eof",
    )

    resets_in_order = True

    def __init__(self, above: asyncio.Protocol, *, preface: bytes = b"") -> None:
        super().__init__(above)
        self._preface = preface
        self._portions = Portions(self._frames, on_flood=self.abort, on_lost=self._lost)
        self._length_bytes = b""  # as far as they have arrived
        self._frame_left = 0  # bytes of the frame that are still to arrive
        self._received_eof = False
        self._sent_eof = False

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._preface:
            cast("asyncio.Transport", transport).write(self._preface)
        super().connection_made(transport)
        self._portions.begin(self._lower)

    def data_received(self, data: bytes) -> None:
        self._portions.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.lose(exc)

    def _lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._end_upper(exc)

    def _frames(self, data: bytes) -> Iterator[bool]:
        if self._length_bytes:
            data, self._length_bytes = self._length_bytes + data, b""
        at = 0
        while at < len(data) and not self._received_eof:
            if self._frame_left:
                piece = data[at : at + self._frame_left]
                at += len(piece)
                self._frame_left -= len(piece)
                self._upper.data_received(piece)
                yield True
            elif len(data) - at < _LENGTH_SIZE:
                self._length_bytes = data[at:]
                return
            else:
                length = int.from_bytes(data[at : at + _LENGTH_SIZE], "big")
                at += _LENGTH_SIZE
                self._begin_frame(length)

    def _begin_frame(self, length: int) -> None:
        if length == _EOF:
            self._received_eof = True
            if not self._upper.eof_received():
                self.close()
        elif length > _MAX_FRAME:  # includes _LOST
            self._received_eof = True
            self.abort()
        else:
            self._frame_left = length

    # -- to below --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._closing or self._sent_eof:
            return
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _MAX_FRAME):
            piece = view[at : at + _MAX_FRAME]
            self._write_below(len(piece).to_bytes(_LENGTH_SIZE, "big") + piece)

    def pause_reading(self) -> None:
        self._portions.pause(on=True)

    def resume_reading(self) -> None:
        self._portions.pause(on=False)

    def can_write_eof(self) -> bool:
        """True: half-close is what frames are for."""
        return True

    def write_eof(self) -> None:
        if not (self._closing or self._sent_eof):
            self._sent_eof = True
            self._write_below(_EOF.to_bytes(_LENGTH_SIZE, "big"))

    def close(self) -> None:
        """Sends EOF, and closes after all data written so far."""
        if not self._closing:
            self.write_eof()
            self._closing = True
            self._lower.close()

    def reset(self) -> None:
        """Sends a reset, and closes after all data written so far."""
        if not self._closing:
            self._closing = True
            self._write_below(_LOST.to_bytes(_LENGTH_SIZE, "big"))
            self._lower.close()
