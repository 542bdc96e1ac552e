"""A connection inside of another that cannot end one direction alone.

Port-forwards have no end of one direction, and do not tell an end that is in order from one that is
not. So bytes go in chunks: four bytes with their number, then the bytes. Zero is the end of this
direction, `_BROKEN` that of a connection that was lost.

To the connection below it is a protocol, to the one above a transport.

- Bytes are handed over as they come, without waiting for the end of a chunk.
- ``failed`` is called once, before the end is told, when the other side says that it was lost, when
  what comes is no chunk, or when the connection ends before both directions have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from bridge.net.layered_transport import Buffer, LayeredTransport

#: Bytes in one chunk.
_CHUNK = 256 * 1024
_HEAD = 4
_BROKEN = 0xFFFFFFFF


class FramedTransport(LayeredTransport):
    """See the module. ``above`` hears of the data; ``preface`` is sent before everything."""

    __slots__ = (
        "_ended",
        "_failed",
        "_head",
        "_left",
        "_lost",
        "_preface",
        "_sent_eof",
    )

    def __init__(
        self, above: asyncio.Protocol, failed: Callable[[], None], *, preface: bytes = b""
    ) -> None:
        super().__init__(above)
        self._failed: Callable[[], None] | None = failed
        self._preface = preface
        self._head = b""  # of a chunk, as far as it has come
        self._left = 0  # bytes of the chunk that are still to come
        self._ended = False  # the other side has said that no more comes
        self._sent_eof = False
        self._lost = False  # what is on this side of it was lost

    def lost(self) -> None:
        """What is carried was broken off on this side: the other is to know when it is closed."""
        self._lost = True

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._preface:
            cast("asyncio.Transport", transport).write(self._preface)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        at = 0
        while at < len(data) and not self._ended:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                self._above.data_received(piece)
            elif len(data) - at < _HEAD:
                self._head = data[at:]
                return
            else:
                size = int.from_bytes(data[at : at + _HEAD], "big")
                at += _HEAD
                self._begin(size)

    def _begin(self, size: int) -> None:
        if size == 0:
            self._ended = True
            if not self._above.eof_received():
                self.close()
        elif size > _CHUNK:  # and so where the other side was lost
            self._ended = True
            self._fail()
            self.abort()
        else:
            self._left = size

    def connection_lost(self, exc: Exception | None) -> None:
        if not (self._ended or self._closing):
            self._fail()
        self._closing = True
        self._above.connection_lost(exc)

    def _fail(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            failed()

    # -- to below --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Sends data."""
        if self._closing or self._sent_eof:
            return
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _CHUNK):
            piece = view[at : at + _CHUNK]
            self._lower.write(len(piece).to_bytes(_HEAD, "big") + piece)

    def can_write_eof(self) -> bool:
        """True: that is what chunks are for."""
        return True

    def write_eof(self) -> None:
        """Says that no more comes."""
        if not (self._closing or self._sent_eof):
            self._sent_eof = True
            self._lower.write((0).to_bytes(_HEAD, "big"))

    def close(self) -> None:
        """Says how it ended, and closes after all that was written."""
        if self._closing:
            return
        if self._lost:
            self._lower.write(_BROKEN.to_bytes(_HEAD, "big"))
        else:
            self.write_eof()
        self._closing = True
        self._lower.close()


class LossDetector(asyncio.Protocol):
    """The plain connection at the other end of a tunnel: passes on what it hears, and tells
    ``chunks`` when it was broken off."""

    __slots__ = ("_chunks", "_end")

    def __init__(self, end: asyncio.Protocol, chunks: FramedTransport) -> None:
        self._end = end
        self._chunks = chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._end.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._end.data_received(data)

    def eof_received(self) -> bool | None:
        return self._end.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._chunks.lost()
        self._end.connection_lost(exc)

    def pause_writing(self) -> None:
        self._end.pause_writing()

    def resume_writing(self) -> None:
        self._end.resume_writing()
