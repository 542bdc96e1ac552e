"""Serves the dashboard on loopback, for a browser that has no credential. Read-only.

- Listens on 127.0.0.1. The path contains a secret: other users of the machine, and pages of other
  sites in the browser, get 404. So do requests with a Host other than loopback's, which defeats DNS
  rebinding, and requests that a browser marks as those of another origin.
- Serves GET alone, of the page's own files and of data that this user's kubeconfig may read.
  Nothing of a request is forwarded but the names of a pod and its namespace, after a check.
- Connections are limited in number and time, so that no user of the machine can keep the page from
  another.
- The Content-Security-Policy permits this server's own files alone, and no markup from strings
  (Trusted Types): texts of tenants cannot become scripts or requests.

In a pod, `kubectl port-forward` reaches the page behind home's authorisation.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.dashboard import live_stream
from bridge.dashboard.fleet_watch import FleetWatch, watch_fleet
from bridge.dashboard.history import History
from bridge.dashboard.pod_details import PodDetails
from bridge.net.accepted_connections import PlainConnection, ServerConnections
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket
from bridge.status import status_client
from sync.kube.api_errors import ApiError, KubeError
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef

HEADERS = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Maximum number of connections; a browser opens at most six to one address.
MAX_CONNECTIONS = 32
#: Seconds for responses in progress at the end.
SHUTDOWN_SECONDS = 0.5

_HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_NAME = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_POD = re.compile(rf"/api/v1/pods/({_NAME})/({_NAME})/(explain|events)")


def read_files() -> dict[str, tuple[bytes, str]]:
    """The page's files by path, with their content types."""
    found = {}
    for file in (files("bridge.dashboard") / "static").iterdir():
        kind = _TYPES.get(f".{file.name.rpartition('.')[2]}")
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = file.read_bytes(), kind
    return found


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
                import webbrowser

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
        pages = _Pages(secret, watch, PodDetails(home, ref))
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
    """Responds to requests."""

    def __init__(self, secret: str, watch: FleetWatch, details: PodDetails) -> None:
        self._secret = secret
        self._watch = watch
        self._details = details
        self._files = read_files()
        self._epoch = secrets.token_hex(4)

    async def respond(self, request: web.BaseRequest) -> web.StreamResponse:
        secret, slash, rest = request.path.removeprefix("/").partition("/")
        is_known = secrets.compare_digest(secret.encode(), self._secret.encode())
        if not is_known or not _is_own(request):
            return _refuse(404, "not found; open the address that the command printed")
        if request.method != "GET":
            return _refuse(405, "read-only", Allow="GET")
        return await self._get(request, slash + rest)

    async def _get(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        watch = self._watch
        if path in self._files:
            body, kind = self._files[path]
            return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)
        if path == "/api/v1/live":
            return await live_stream.stream(request, watch, self._epoch, HEADERS)
        if path == "/api/v1/fleet":
            _, views = watch.views_since(0)
            return _json({"home": watch.home_since(0), "remotes": views})
        if path == "/api/v1/history":
            return _json(watch.history.since(0))
        if path == "/api/v1/pods":
            return _json({"pods": watch.pods.rows()})
        if (pod := _POD.fullmatch(path)) is not None:
            return await self._respond_pod(*pod.groups())
        return _refuse(404, "not found")

    async def _respond_pod(self, namespace: str, name: str, part: str) -> web.Response:
        try:
            if part == "explain":
                return _json(await self._details.explain(namespace, name))
            return _json({"events": await self._details.events(namespace, name)})
        except TimeoutError:
            return _json({"error": "no answer in time"}, status=504)
        except PreflightError as error:
            return _json({"error": str(error)}, status=404)
        except KubeError as error:
            return _json({"error": str(error)}, status=_code(error))


def _is_own(request: web.BaseRequest) -> bool:
    """Whether the request is of this page, or of a user who opens its address."""
    origin = request.headers.get("Origin")
    return (
        _HOSTS.fullmatch(request.host) is not None
        and origin in (None, f"http://{request.host}")
        and request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    )


def _code(error: KubeError) -> int:
    return error.code if isinstance(error, ApiError) and error.code >= 400 else 502


def _json(data: Any, *, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=orjson.dumps(data), content_type="application/json", headers=HEADERS
    )


def _refuse(status: int, text: str, **headers: str) -> web.Response:
    return web.Response(status=status, text=text, headers={**HEADERS, **headers})
