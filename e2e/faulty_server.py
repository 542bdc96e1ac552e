"""A way to an API server that can be cut without harm to the server's other clients."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import urlsplit

from tests.bridge.cuttable_proxy import CuttableProxy

#: A port that refuses connections.
REFUSING = 1


class FaultyServer:
    """The way to the API server with this URL: a proxy in a thread of this process."""

    def __init__(self, server: str) -> None:
        url = urlsplit(server)
        self.target = url.port or 443
        """The port of the real API server."""
        self._loop = asyncio.new_event_loop()
        self._proxy = CuttableProxy(self.target, url.hostname or "")
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(
            target=self._loop.run_until_complete, args=[self._run()], daemon=True
        )
        self._thread.start()
        self._listening.wait()
        # The certificates of API servers are valid for loopback.
        self.server = f"https://127.0.0.1:{self._proxy.port}"

    async def _run(self) -> None:
        async with self._proxy.listening():
            self._listening.set()
            await self._stopping.wait()

    def lead_to(self, port: int) -> None:
        """Aborts connections; new ones lead to this port."""
        self._loop.call_soon_threadsafe(self._proxy.retarget, port)

    def cut(self) -> None:
        """Forwards nothing until `heal`; connections stay open and are silent."""
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def heal(self) -> None:
        """Forwards again."""
        self._loop.call_soon_threadsafe(self._proxy.heal)

    def close(self) -> None:
        """Aborts connections, and listens no longer."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()
            self._loop.close()
