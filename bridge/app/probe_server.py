"""Serves liveness and readiness probes over plain HTTP, for the kubelet that runs the bridge.

A kubelet's probes have no credential, which the kubelet API requires; `--health-port` adds this
server with ``/livez`` and ``/readyz``, which expose nothing about workloads. The bridge is ready
when its caches are filled: then it serves the node, or stands by and can take over. A cluster that
does not answer, which the kubelet API's ``/readyz`` reports too, does not hold up a rollout. The
server listens before the join's checks: a bridge that waits for a cluster is alive and not ready.

Anyone on the network can connect, so connections are limited in number (`MAX_CONNECTIONS`; one more
closes the oldest) and time (`CONNECTION_TIMEOUT`), which keeps file descriptors free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.kubelet.healthz import Check
from bridge.kubelet.server import ListenError
from bridge.net.accepted_connections import PlainConnection, ServerConnections
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket

#: Maximum number of connections; a kubelet has three probes in flight at most.
MAX_CONNECTIONS = 32
#: Maximum seconds of a connection: twice the timeout of a probe in the manifests (5 s).
CONNECTION_TIMEOUT = 10.0
#: Limits of a request's head; that of a probe has some hundred bytes.
MAX_LINE, MAX_HEADER, MAX_HEADERS = 1024, 4096, 32
#: Seconds for responses in progress at the end.
SHUTDOWN_TIMEOUT = 0.5


class ProbeHandler:
    """Handles probes: alive at once, ready when the caches are filled."""

    def __init__(self) -> None:
        self.caches_problem: Check = lambda: "the clusters have not answered yet"
        """Returns why the bridge is not ready, or ""."""

    def set_waiting(self, reason: str) -> None:
        """Sets why the bridge still waits for a cluster, before there are caches."""
        self.caches_problem = lambda: reason

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="use GET\n")
        if request.path == "/readyz" and (reason := self.caches_problem()):
            return web.Response(status=503, text=f"{reason}\n")
        if request.path in ("/livez", "/readyz"):
            return web.Response(text="ok\n")
        return web.Response(status=404, text="use /livez or /readyz\n")


@asynccontextmanager
async def serve_probes(
    health: ProbeHandler, address: str | None, port: int | None
) -> AsyncIterator[None]:
    """Serves probes while the block runs, on all addresses without ``address``; without ``port``,
    nothing listens. Raises ListenError."""
    if port is None:
        yield
        return
    server = HttpServer(
        health.answer,
        keepalive_timeout=CONNECTION_TIMEOUT,
        max_line_size=MAX_LINE,
        max_field_size=MAX_HEADER,
        max_headers=MAX_HEADERS,
        lingering_time=SHUTDOWN_TIMEOUT,
    )
    connections = ServerConnections(max_waiting=MAX_CONNECTIONS, timeout=CONNECTION_TIMEOUT)
    loop = asyncio.get_running_loop()
    try:
        listener = await loop.create_server(
            lambda: PlainConnection(server(), connections),
            sock=listening_socket(address or "", port),
        )
    except OSError as error:
        raise ListenError(
            f"cannot listen for health probes on {address or 'any address'} port {port}: "
            f"{error.strerror or error}; choose another port with --health-port"
        ) from error
    try:
        yield
    finally:
        listener.close()
        await server.shutdown(SHUTDOWN_TIMEOUT)
