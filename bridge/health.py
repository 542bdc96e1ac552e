"""Whether the bridge lives and is ready, over plain HTTP: for the kubelet that runs it in a pod.

A kubelet's probes have no credential, and the kubelet API answers nobody without one. So where
`--health-port` asks for it there is this listener too, with `/livez` and `/readyz` and nothing that
tells of workloads. It is ready when its caches are filled: then it serves the node, or stands by
and can take over. That a cluster is away, which the kubelet API's ``/readyz`` counts too, is no
reason to hold an update up. `bridge.app` starts it when the checks are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.kubelet.server import ListenError
from bridge.readiness import Readiness
from sync.engine import Engine

#: Seconds for an answer that is under way at the end.
GOODBYE = 0.5


class Health:
    """What the probes are answered by."""

    def __init__(self, engine: Engine) -> None:
        self._readiness = Readiness(engine)

    def show(self, engine: Engine) -> None:
        """Looks at the caches of this one from now on."""
        self._readiness.show(engine)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """One probe."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET is offered\n")
        if request.path == "/readyz" and (why := self._readiness.filled()):
            return web.Response(status=503, text=f"{why}\n")
        if request.path in ("/livez", "/readyz"):
            return web.Response(text="ok\n")
        return web.Response(status=404, text="there are /livez and /readyz\n")


@asynccontextmanager
async def listening(health: Health, address: str, port: int | None) -> AsyncIterator[None]:
    """Answers while the block runs; without a port nothing listens. Raises ListenError."""
    if port is None:
        yield
        return
    server = web.Server(health.answer, access_log=None)
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(server, address, port)
    except OSError as error:
        raise ListenError(
            f"the health port cannot be listened on at {address} port {port}: "
            f"{error.strerror or error}; choose another with --health-port"
        ) from error
    try:
        yield
    finally:
        listener.close()
        await server.shutdown(GOODBYE)
