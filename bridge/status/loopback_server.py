"""The page of a virtual node at an address of this machine, for a browser that has no credential.

- Listens on loopback, at a free port. The address that is printed has a secret in its path: other
  users of the machine, and pages of other sites in the browser, do not know it and get 404.
- A name that somebody let point to loopback gets nothing either: the Host header has to be ours.
- It asks home's API server, with the kubeconfig of who runs it, for the page and its data alone:
  GET, two paths. Nothing of the request is passed on.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from aiohttp import web

from bridge.base.errors import PreflightError
from bridge.status import status_client
from bridge.status.html_page import HEADERS
from bridge.status.status_endpoint import STATUS_PATH
from sync.kube.client import KubeClient
from sync.kube.errors import ApiError, KubeError
from sync.kube.resources import NODES
from translators.objects import name_of

_HTML, _JSON = "text/html", "application/json"
#: What is passed on, and what it is.
_PATHS: Mapping[str, str] = {"/bridge/": _HTML, STATUS_PATH: _JSON}


async def serve(
    home: KubeClient,
    name: str | None,
    *,
    stop: asyncio.Event,
    open_browser: bool,
    announce: Callable[[str], None],
) -> None:
    """Serves the page until ``stop`` is set; ``announce`` gets its address.

    Raises PreflightError where there is not the one node to show.
    """
    found = [name_of(it) for it in await status_client.list_nodes(home, name)]
    if len(found) != 1:
        there = f"home has {', '.join(found)}; name one" if found else "home has no virtual nodes"
        raise PreflightError(f"a page is of one node: {there}")
    if isinstance(why := await status_client.fetch_bridge_status(home, found[0]), str):
        raise PreflightError(f"the bridge of node {found[0]} does not show its page: {why}")
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
    """The server. `start` it, and `stop` it in the end."""

    def __init__(self, home: KubeClient, node: str) -> None:
        self._home = home
        self._proxy = NODES.path(node, subresource="proxy")
        self._secret = secrets.token_urlsafe(16)
        self._runner: web.ServerRunner | None = None
        self._hosts: tuple[str, ...] = ()

    async def start(self) -> str:
        """Listens; the page's address."""
        runner = self._runner = web.ServerRunner(web.Server(self._serve, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        _, port = runner.addresses[0][:2]
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")
        return f"http://{self._hosts[0]}/{self._secret}/bridge/"

    async def stop(self) -> None:
        """Ends it."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        secret, slash, rest = request.path.removeprefix("/").partition("/")
        path = slash + rest
        known = secrets.compare_digest(secret.encode(), self._secret.encode())
        if not known or request.host not in self._hosts or path not in _PATHS:
            return web.Response(status=404, text="the address is another one; see the command")
        if request.method != "GET":
            return web.Response(status=405, text="read-only", headers={"Allow": "GET"})
        try:
            body = await self._home.read(self._proxy + path, timeout=status_client.TIMEOUT_SECONDS)
        except KubeError as error:
            code = error.code if isinstance(error, ApiError) else 502
            return web.Response(
                status=code, text=error.message, headers={"Cache-Control": "no-store"}
            )
        # Its own policy: what lies between is not to change it.
        return web.Response(body=body, content_type=_PATHS[path], charset="utf-8", headers=HEADERS)
