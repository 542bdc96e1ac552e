"""A TCP proxy in front of one port. While it is cut, connections are silent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CuttableProxy:
    """Forwards connections to a port of ``host``."""

    def __init__(self, target: int, host: str = "127.0.0.1") -> None:
        self._target = target
        self._host = host
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Forwards nothing until `heal`."""
        self._open.clear()

    def heal(self) -> None:
        """Forwards again."""
        self._open.set()

    def retarget(self, target: int) -> None:
        """Aborts all connections, and forwards new ones to another port."""
        if target != self._target:
            self._target = target
            for it in self._tasks:
                it.cancel()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listens while the block runs."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for it in self._tasks:
                it.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)  # aborted connections close in the next iteration

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        out: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            far, out = await asyncio.open_connection(self._host, self._target)
            await asyncio.gather(self._pump(reader, out), self._pump(far, writer))
        except OSError:
            pass
        finally:
            for it in (writer, out):
                if it is not None and not it.is_closing():
                    it.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        writer.close()
