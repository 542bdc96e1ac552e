"""Whether the bridge lives and is ready, over plain HTTP: for the kubelet that runs it in a pod.

A kubelet's probes have no credential, and the kubelet API answers nobody without one. So where
`--health-port` asks for it there is this listener too, with `/livez` and `/readyz` and nothing that
tells of workloads. It is ready when its caches are filled: then it serves the node, or stands by
and can take over. That a cluster is away, which the kubelet API's ``/readyz`` counts too, is no
reason to hold an update up. It listens before the checks are done: a bridge that waits for a
cluster (`bridge.clusters.retry`) lives, and is not ready.

Anybody on the network may connect, so connections are bounded in number (`MOST`) and time (`LIFE`),
and one more ends the oldest: they leave descriptors for everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.app.readiness import Readiness
from bridge.kubelet.server import ListenError
from bridge.net.listening_socket import listening_socket
from bridge.net.server_connections import PlainConnection, ServerConnections
from sync.engine.engine import Engine

#: Connections at once, of which one more ends the oldest: a kubelet has three probes under way at
#: most, and anybody on the network may connect.
MOST = 32
#: Seconds for one connection, as long as a probe may take by the manifests (5 s), twice.
LIFE = 10.0
#: A head of a probe has some hundred bytes.
MAX_LINE, MAX_HEADER, MAX_HEADERS = 1024, 4096, 32
#: Seconds for an answer that is under way at the end.
GOODBYE = 0.5


class ProbeHandler:
    """What the probes are answered by."""

    def __init__(self) -> None:
        self._readiness: Readiness | None = None
        self._why = "the clusters have not answered yet"

    def set_waiting(self, why: str) -> None:
        """A cluster is away."""
        self._why = why

    def use_engine(self, engine: Engine) -> None:
        """Looks at the caches of this one from now on."""
        self._readiness = Readiness(engine)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """One probe."""
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="only GET is offered\n")
        if request.path == "/readyz" and (why := self._unready()):
            return web.Response(status=503, text=f"{why}\n")
        if request.path in ("/livez", "/readyz"):
            return web.Response(text="ok\n")
        return web.Response(status=404, text="there are /livez and /readyz\n")

    def _unready(self) -> str:
        return self._why if self._readiness is None else self._readiness.caches_problem()


@asynccontextmanager
async def serve_probes(
    health: ProbeHandler, address: str | None, port: int | None
) -> AsyncIterator[None]:
    """Answers while the block runs, at all addresses where none is given; without a port nothing
    listens. Raises ListenError."""
    if port is None:
        yield
        return
    server = web.Server(
        health.answer,
        access_log=None,
        keepalive_timeout=LIFE,
        max_line_size=MAX_LINE,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
        lingering_time=GOODBYE,
    )
    connections = ServerConnections(max_waiting=MOST, timeout=LIFE)
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(
            lambda: PlainConnection(server(), connections),
            sock=listening_socket(address or "", port),
        )
    except OSError as error:
        raise ListenError(
            f"the health port cannot be listened on at {address or 'any address'} port {port}: "
            f"{error.strerror or error}; choose another with --health-port"
        ) from error
    try:
        yield
    finally:
        listener.close()
        await server.shutdown(GOODBYE)
