"""An HTTP proxy for tests, which supports CONNECT only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Proxy:
    """An HTTP proxy; ``connect_response`` replaces its response to CONNECT."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.connect_response = b"HTTP/1.1 200 Connection established\r\n\r\n"

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(self.connect_response)
        if b" 200 " in self.connect_response:
            host, port = head.split(" ")[1].rsplit(":", 1)
            far, out = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(OSError):
                await asyncio.gather(_pump(reader, out), _pump(far, writer))
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def proxying() -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy, and its port."""
    proxy = Proxy()
    async with await asyncio.start_server(proxy.connected, "127.0.0.1", 0) as listener:
        yield proxy, listener.sockets[0].getsockname()[1]
