"""Reads sockets in small pieces, into one buffer that all connections of the event loop share.

uvloop itself reads 256 KiB at a time, up to 32 times in a turn, and each connection that is paused
meanwhile would hold them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

#: The most bytes of a read: four TLS records.
READ_SIZE = 64 * 1024


class Receiver(Protocol):
    """A protocol that takes its data from a `SocketReader`. It keeps no reference to the data."""

    def data_received(self, data: memoryview, /) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class SocketReader(asyncio.BufferedProtocol):
    """The protocol of a socket; passes everything on to ``receiver``, and calls ``on_full`` after a
    read that has filled the buffer. `read_size` returns how many bytes a read may have, from 1 to
    `READ_SIZE`."""

    __slots__ = ("_buffer", "_on_full", "_receiver", "_size", "read_size")

    def __init__(
        self,
        receiver: Receiver,
        *,
        read_size: Callable[[], int] = lambda: READ_SIZE,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._receiver = receiver
        self._on_full = on_full
        self.read_size = read_size
        self._size = 0  # of the current read
        loop = asyncio.get_running_loop()
        self._buffer = _buffers.get(loop) or _buffers.setdefault(
            loop, memoryview(bytearray(READ_SIZE))
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        self._size = self.read_size()
        return self._buffer[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.data_received(self._buffer[:nbytes])
        if nbytes == self._size:
            self._on_full()

    def eof_received(self) -> bool:
        return self._receiver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()


_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
