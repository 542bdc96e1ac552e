"""A way to a remote that can be cut without harm to the remote's other clients."""

from __future__ import annotations

import asyncio
import threading

from tests.bridge.cuttable_proxy import CuttableProxy

#: A port that refuses connections.
REFUSING = 1


class FaultyRemote:
    """The way to a remote on ``host``: a proxy in a thread of this process. It refuses connections
    until `lead_to`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._loop = asyncio.new_event_loop()
        self._proxy = CuttableProxy(REFUSING, host)
        self._stopping = asyncio.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self._thread.start()
        self._listening.wait()
        self.port = self._proxy.port
        self.target = REFUSING
        """The port of the real API server."""

    async def _run(self) -> None:
        async with self._proxy.listening():
            self._listening.set()
            await self._stopping.wait()

    def lead_to(self, port: int) -> None:
        """Aborts connections; new ones lead to this port."""
        self._loop.call_soon_threadsafe(self._proxy.retarget, port)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._loop.close()
