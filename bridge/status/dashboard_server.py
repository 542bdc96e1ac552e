"""Serves the page of a virtual node on loopback, for a browser that has no credential.

- Listens on 127.0.0.1 at a free port. The path contains a secret: other users of the machine, and
  pages of other sites in the browser, get 404. So do requests with another Host header, which
  defeats DNS rebinding.
- Forwards only GET of two paths, the page and its data, to home's API server with this user's
  kubeconfig. Nothing else of the request is forwarded.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.status import status_client
from bridge.status.dashboard_page import HEADERS
from bridge.status.status_endpoint import STATUS_PATH
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.client import KubeClient
from sync.kube.resources import NODES
from translators.objects import name_of

_HTML, _JSON = "text/html", "application/json"
#: The paths that are forwarded, with their content types.
_PATHS: Mapping[str, str] = {"/bridge/": _HTML, STATUS_PATH: _JSON}


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
    server = LoopbackServer(home, found[0])
    url = await server.start()
    try:
        announce(f"node {found[0]}: {url} until Ctrl-C")
        if open_browser:
            import webbrowser

            await asyncio.to_thread(webbrowser.open, url)
        await stop.wait()
    finally:
        await server.stop()


class LoopbackServer:
    """The server. Call `start`, and `stop` at the end."""

    def __init__(self, home: KubeClient, node: str) -> None:
        self._home = home
        self._proxy = NODES.path(node, subresource="proxy")
        self._secret = secrets.token_urlsafe(16)
        self._runner: web.ServerRunner | None = None
        self._hosts: tuple[str, ...] = ()

    async def start(self) -> str:
        """Listens, and returns the page's address."""
        runner = self._runner = web.ServerRunner(web.Server(self._serve, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _, port = runner.addresses[0][:2]
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        return f"http://{self._hosts[0]}/{self._secret}/bridge/"

    async def stop(self) -> None:
        """Closes the server."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        secret, slash, rest = request.path.removeprefix("/").partition("/")
        path = slash + rest
        known = secrets.compare_digest(secret.encode(), self._secret.encode())
        if not known or request.host not in self._hosts or path not in _PATHS:
            return web.Response(
                status=404, text="not found; open the address that the command printed"
            )
        if request.method != "GET":
            return web.Response(status=405, text="read-only", headers={"Allow": "GET"})
        try:
            body = await self._home.read(self._proxy + path, timeout=status_client.TIMEOUT_SECONDS)
        except KubeError as error:
            code = error.code if isinstance(error, ApiError) else 502
            return web.Response(
                status=code, text=error.message, headers={"Cache-Control": "no-store"}
            )
        # The page's own headers: an intermediary may have changed them.
        return web.Response(body=body, content_type=_PATHS[path], charset="utf-8", headers=HEADERS)
