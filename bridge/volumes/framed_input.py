"""Marks the end of standard input in band, for `volume_scripts.RECEIVE`.

A WebSocket to a kubelet cannot close standard input alone, and tar reads to its end. So over one
the input consists of frames of `FRAME` bytes, each after a line ``+``; the last is filled with
zeros, which tar ignores after its archive, and a line ``-`` follows it.

Small pieces are joined to messages of `MESSAGE` bytes: each message costs every hop the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

FRAME = 4 * 1024 * 1024
MESSAGE = 128 * 1024


class FramedInput:
    """Sends frames by ``send``, and holds less than a message."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._pieces: list[bytes] = []
        self._held = 0
        self._room = 0
        """Bytes until the end of the frame."""

    async def write(self, data: bytes) -> None:
        """Takes bytes; returns when the connection has room for what it sent."""
        while data:
            if not self._room:
                self._hold(b"+\n")
                self._room = FRAME
            part, data = data[: self._room], data[self._room :]
            self._room -= len(part)
            self._hold(part)
        if self._held >= MESSAGE:
            await self._flush()

    async def end(self) -> None:
        """Fills the last frame, and ends the input."""
        while self._room:
            await self.write(bytes(min(self._room, MESSAGE)))
        self._hold(b"-\n")
        await self._flush()

    def _hold(self, data: bytes) -> None:
        self._pieces.append(data)
        self._held += len(data)

    async def _flush(self) -> None:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        await self._send(data)
