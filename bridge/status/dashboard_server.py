"""Serves the page of a virtual node on loopback, for a browser that has no credential.

- Listens on 127.0.0.1 at a free port. The path contains a secret: other users of the machine, and
  pages of other sites in the browser, get 404. So do requests with another Host header, which
  defeats DNS rebinding.
- Connections are limited in number and time, so that no user of the machine can keep the page from
  another.
- Forwards only GET of two paths, the page and its data, to home's API server with this user's
  kubeconfig. Nothing else of the request is forwarded.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.net.accepted_connections import PlainConnection, ServerConnections
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket
from bridge.status import status_client
from bridge.status.dashboard_page import HEADERS
from bridge.status.status_endpoint import STATUS_PATH
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.api_resources import NODES
from sync.kube.client import KubeClient
from translators.object_accessors import name_of

#: The paths that are forwarded, with their content types.
_PATHS = {"/bridge/": "text/html", STATUS_PATH: "application/json"}

#: Maximum number of connections; a browser opens at most six to one address.
MAX_CONNECTIONS = 32
#: Seconds for responses in progress at the end.
SHUTDOWN_SECONDS = 0.5


async def serve(
    home: KubeClient,
    name: str | None,
    *,
    stop: asyncio.Event,
    open_browser: bool,
    announce: Callable[[str], None],
) -> None:
    """Serves the page until ``stop`` is set; ``announce`` receives its address.

    Raises PreflightError if there is not exactly one node, or its bridge does not answer.
    """
    found = [name_of(it) for it in await status_client.list_nodes(home, name)]
    if len(found) != 1:
        there = f"home has {', '.join(found)}; name one" if found else "home has no virtual nodes"
        raise PreflightError(f"home: a page shows one node: {there}")
    if isinstance(why := await status_client.fetch_bridge_status(home, found[0]), str):
        raise PreflightError(f"home: the bridge of node {found[0]} does not serve its page: {why}")
    async with loopback_server(home, found[0]) as url:
        announce(f"node {found[0]}: {url} until Ctrl-C")
        if open_browser:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, url)
        await stop.wait()


@asynccontextmanager
async def loopback_server(home: KubeClient, node: str) -> AsyncIterator[str]:
    """Serves the page while the block runs, and yields its address."""
    proxy, expected = NODES.path(node, subresource="proxy"), secrets.token_urlsafe(16)
    hosts: tuple[str, ...] = ()

    async def respond(request: web.BaseRequest) -> web.StreamResponse:
        secret, slash, rest = request.path.removeprefix("/").partition("/")
        path = slash + rest
        known = secrets.compare_digest(secret.encode(), expected.encode())
        if not known or request.host not in hosts or path not in _PATHS:
            return web.Response(
                status=404, text="not found; open the address that the command printed"
            )
        if request.method != "GET":
            return web.Response(status=405, text="read-only", headers={"Allow": "GET"})
        try:
            body = await home.read(proxy + path, timeout=status_client.TIMEOUT_SECONDS)
        except KubeError as error:
            code = error.code if isinstance(error, ApiError) else 502
            return web.Response(
                status=code, text=error.message, headers={"Cache-Control": "no-store"}
            )
        # The page's own headers: an intermediary may have changed them.
        return web.Response(body=body, content_type=_PATHS[path], charset="utf-8", headers=HEADERS)

    server = HttpServer(respond, lingering_time=SHUTDOWN_SECONDS)
    connections = ServerConnections(max_waiting=MAX_CONNECTIONS)
    sock = listening_socket("127.0.0.1", 0)
    port = sock.getsockname()[1]
    listener = await asyncio.get_running_loop().create_server(
        lambda: PlainConnection(server(), connections), sock=sock
    )
    try:
        hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        yield f"http://{hosts[0]}/{expected}/bridge/"
    finally:
        listener.close()
        await server.shutdown(SHUTDOWN_SECONDS)
