"""A server that answers every request with the bytes that a test names, over plain TCP: heads and
bodies that no HTTP library would send."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Self

Body = Callable[[], AsyncIterator[bytes]]

#: The bytes of one write: the server shall not buffer much, since tests measure memory.
BLOCK = 2**16


class HostileServer:
    """Sends ``head`` and then the pieces of ``body`` to every request, and counts both. Use as an
    async context manager."""

    def __init__(self, head: bytes, body: Body) -> None:
        self.head = head
        self.body = body
        self.requests = 0
        """Requests so far."""
        self.sent = 0
        """Bytes of bodies so far."""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            writer.write(self.head)
            async for piece in self.body():
                for start in range(0, len(piece), BLOCK):
                    writer.write(piece[start : start + BLOCK])
                    self.sent += len(piece[start : start + BLOCK])
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


def head(*headers: str) -> bytes:
    """The head of a response whose body ends with the connection."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def once(*pieces: bytes) -> Body:
    """A body of these pieces."""

    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return body


def endless(piece: bytes, *, first: bytes = b"", every: float = 0.0) -> Body:
    """A body that repeats ``piece`` for ever, one each ``every`` seconds."""

    async def body() -> AsyncIterator[bytes]:
        yield first
        while True:
            yield piece
            await asyncio.sleep(every)

    return body


def gzip_bomb(size: int, text: bytes = b" ") -> bytes:
    """A gzip body that becomes ``size`` bytes of ``text``."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = text * (2**20 // len(text))
    packed = b"".join(packer.compress(block) for _ in range(size // len(block)))
    return packed + packer.flush()
