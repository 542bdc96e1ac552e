"""Serves the dashboard on loopback, for a browser that has no credential. Read-only.

- Listens on 127.0.0.1. The path contains a secret: other users of the machine, and pages of other
  sites in the browser, get 404. So do requests with a Host other than loopback's, which defeats DNS
  rebinding, and requests that a browser marks as those of another origin.
- Serves GET alone, of the page's own files and of data that this user's kubeconfig may read
  (`page_responses`).
- Connections are limited in number and time, so that no user of the machine can keep the page from
  another.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.dashboard.fleet_watch import watch_fleet
from bridge.dashboard.history import History
from bridge.dashboard.page_responses import PageResponses, plain_response
from bridge.dashboard.pod_details import PodDetails
from bridge.net.accepted_connections import PlainConnection, ServerConnections
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket
from bridge.status import status_client
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Maximum number of connections; a browser opens at most six to one address.
MAX_CONNECTIONS = 32
#: Seconds for responses in progress at the end.
SHUTDOWN_SECONDS = 0.5

_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")


async def serve(
    home: KubeClient,
    name: str | None,
    *,
    ref: KubeconfigRef,
    port: int,
    stop: asyncio.Event,
    open_browser: bool,
    announce: Callable[[str], None],
) -> None:
    """Serves the page until ``stop`` is set; ``announce`` receives its address. ``ref`` is home's
    kubeconfig, and port 0 any free port. Raises PreflightError if the node does not exist, or the
    port is taken."""
    await status_client.list_nodes(home, name)
    try:
        async with loopback_server(home, name, ref=ref, port=port) as url:
            announce(f"dashboard: {url} until Ctrl-C")
            if open_browser:
                await asyncio.to_thread(webbrowser.open, url)
            await stop.wait()
    except OSError as error:
        raise PreflightError(f"port {port}: {error.strerror}; choose another --port") from error


@asynccontextmanager
async def loopback_server(
    home: KubeClient,
    name: str | None,
    *,
    ref: KubeconfigRef,
    port: int = 0,
    history: History | None = None,
) -> AsyncIterator[str]:
    """Serves the page while the block runs, and yields its address; samples continue ``history``.
    Raises OSError if the port is taken."""
    sock = listening_socket("127.0.0.1", port)
    secret = secrets.token_urlsafe(16)
    async with watch_fleet(home, name, history=history) as watch:
        pages = _Pages(secret, PageResponses(watch, PodDetails(home, ref)))
        server = HttpServer(pages.respond, lingering_time=SHUTDOWN_SECONDS)
        connections = ServerConnections(max_waiting=MAX_CONNECTIONS)
        listener = await asyncio.get_running_loop().create_server(
            lambda: PlainConnection(server(), connections), sock=sock
        )
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/{secret}/"
        finally:
            listener.close()
            await server.shutdown(SHUTDOWN_SECONDS)


class _Pages:
    """Responds to requests of this page, and to no others."""

    def __init__(self, secret: str, responses: PageResponses) -> None:
        self._secret = secret
        self._responses = responses

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        secret, slash, rest = request.path.removeprefix("/").partition("/")
        is_known = secrets.compare_digest(secret.encode(), self._secret.encode())
        if not is_known or not _is_own(request):
            return plain_response(404, "not found; open the address that the command printed")
        if request.method != "GET":
            return plain_response(405, "read-only", Allow="GET")
        return await self._responses.get(request, slash + rest)


def _is_own(request: web.BaseRequest) -> bool:
    """Whether the request is of this page, or of a user who opens its address."""
    origin = request.headers.get("Origin")
    return (
        _HOSTS.fullmatch(request.host) is not None
        and origin in (None, f"http://{request.host}")
        and request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    )
