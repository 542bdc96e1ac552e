"""The frames between the bridge and the relay agent: one TCP connection inside a port-forward.

A port-forward has no half-close and does not distinguish an orderly end from a lost connection, so
both sides send frames: four bytes with the length (big-endian), then that many bytes. Length 0 is
EOF in this direction; length 0xFFFFFFFF means that the framed connection was lost.

`FramedTransport` is a protocol to the connection below and a transport to the protocol above.

- Bytes are passed on as they arrive, without waiting for the end of a frame.
- ``on_failure`` is called once, before `connection_lost`, when the peer reports a loss, when the
  peer violates the format, or when the connection ends before EOF in both directions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from sync.kube.nested_transport import Buffer, LayeredTransport

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
        "_on_failure",
        "_peer_lost",
        "_preface",
        "_received_eof",
        "_sent_eof",
    )

    def __init__(
        self, above: asyncio.Protocol, on_failure: Callable[[], None], *, preface: bytes = b""
    ) -> None:
        super().__init__(above)
        self._on_failure: Callable[[], None] | None = on_failure
        self._preface = preface
        self._length_bytes = b""  # as far as they have arrived
        self._frame_left = 0  # bytes of the frame that are still to arrive
        self._received_eof = False
        self._sent_eof = False
        self._peer_lost = False  # the framed connection, on this side

    def mark_lost(self) -> None:
        """Records that the framed connection was lost on this side: `close` then reports it."""
        self._peer_lost = True

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._preface:
            cast("asyncio.Transport", transport).write(self._preface)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._length_bytes:
            data, self._length_bytes = self._length_bytes + data, b""
        at = 0
        while at < len(data) and not self._received_eof:
            if self._frame_left:
                piece = data[at : at + self._frame_left]
                at += len(piece)
                self._frame_left -= len(piece)
                self._upper.data_received(piece)
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
            self._fail()
            self.abort()
        else:
            self._frame_left = length

    def connection_lost(self, exc: Exception | None) -> None:
        if not (self._received_eof or self._closing):
            self._fail()
        self._closing = True
        self._upper.connection_lost(exc)

    def _fail(self) -> None:
        on_failure, self._on_failure = self._on_failure, None
        if on_failure is not None:
            on_failure()

    # -- to below --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._closing or self._sent_eof:
            return
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _MAX_FRAME):
            piece = view[at : at + _MAX_FRAME]
            self._lower.write(len(piece).to_bytes(_LENGTH_SIZE, "big") + piece)

    def can_write_eof(self) -> bool:
        """True: half-close is what frames are for."""
        return True

    def write_eof(self) -> None:
        if not (self._closing or self._sent_eof):
            self._sent_eof = True
            self._lower.write(_EOF.to_bytes(_LENGTH_SIZE, "big"))

    def close(self) -> None:
        """Sends EOF or the loss, and closes after all data written so far."""
        if self._closing:
            return
        if self._peer_lost:
            self._lower.write(_LOST.to_bytes(_LENGTH_SIZE, "big"))
        else:
            self.write_eof()
        self._closing = True
        self._lower.close()


class LossDetector(asyncio.Protocol):
    """The protocol of the plain connection at the other end of a tunnel: passes events on to
    ``end`` and marks the framed transport when the plain connection is lost."""

    __slots__ = ("_end", "_framed")

    def __init__(self, end: asyncio.Protocol, framed: FramedTransport) -> None:
        self._end = end
        self._framed = framed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._end.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._end.data_received(data)

    def eof_received(self) -> bool | None:
        return self._end.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._framed.mark_lost()
        self._end.connection_lost(exc)

    def pause_writing(self) -> None:
        self._end.pause_writing()

    def resume_writing(self) -> None:
        self._end.resume_writing()
