"""Serves the dashboard in home's cluster, to viewers whom home authorises. Read-only.

- HTTPS alone. A request needs a bearer token, or the session of a viewer who signed in with one
  (`viewer_access`); it is authenticated and authorised before its path is looked at. Without either
  there are only the sign-in page with its style, and `/livez` and `/readyz`.
- A browser is sent to the sign-in page, which takes a token by POST. The token stays here; the
  browser gets a cookie, which scripts cannot read and which is sent to this host over TLS alone.
  POST of another site is rejected (`Origin`, `Sec-Fetch-Site`, `SameSite`).
- The dashboard's account reads Nodes, pods and the virtual nodes' status. Details of a pod are read
  with the viewer's token instead (`pod_details.ViewerDetails`).
- Connections, requests in progress and heads are limited. A stream ends after
  `live_stream.STREAM_SECONDS`, and the viewer is authorised again.

`kubectl port-forward` reaches the server on the pod's loopback; the NetworkPolicy of
`dashboard_manifests` admits no other client by default.
"""

from __future__ import annotations

import asyncio
import html
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.certificates.serving_certificate import (
    CertificateSource,
    FileSource,
    SelfSignedSource,
)
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from bridge.clusters.connection import Notify, as_preflight_errors, connect
from bridge.dashboard.fleet_watch import FleetWatch, watch_fleet
from bridge.dashboard.page_responses import FORM_HEADERS, HEADERS, PageResponses, plain_response
from bridge.dashboard.pod_details import MAX_CONCURRENT, ViewerDetails
from bridge.dashboard.viewer_access import COOKIE, SESSION_SECONDS, Viewer, ViewerAccess
from bridge.kubelet.error_responses import HttpError
from bridge.kubelet.token_access import MAX_TOKEN
from bridge.net.https_server import HttpsServer
from bridge.net.listening_socket import listening_socket
from bridge.status.status_tree import printable
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef

#: Permitted requests in progress: a page has one stream, and few others at a time.
MAX_REQUESTS = 128
#: Largest header in bytes, for tokens with many groups.
MAX_HEADER = MAX_TOKEN
#: Largest body of the sign-in form, whose token is percent-encoded.
MAX_FORM = 3 * MAX_TOKEN

#: Files of the sign-in page, which reveal nothing of the clusters.
_OPEN_FILES = frozenset({"/style.css", "/theme.js", "/icon.svg"})
_SIGN_IN, _SIGN_OUT = "/sign-in", "/sign-out"
#: Where the page has the button to sign out.
_MARK = "<!-- sign out -->"
_BUTTON = (
    '<form method="post" action="sign-out" class="sign-out"><span class="viewer">{user}</span>'
    '<button class="chip-button" type="submit">Sign out</button></form>'
)
#: Where a page whose stream was rejected asks whether its viewer must sign in again.
_VIEWER_PATH = "/api/v1/viewer"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InClusterSettings:
    """Options of `bridge dashboard-server run`."""

    home: KubeconfigRef
    namespace: str
    service: str
    port: int
    tls_files: tuple[Path, Path] | None = None
    """Certificate and key; None for a self-signed certificate."""

    @property
    def certificate(self) -> CertificateSource:
        """The source of the serving certificate."""
        if self.tls_files is not None:
            return FileSource(*self.tls_files)
        host = f"{self.service}.{self.namespace}.svc"
        return SelfSignedSource(host, ["localhost", "127.0.0.1"])


async def serve(settings: InClusterSettings, *, notify: Notify, stop: asyncio.Event) -> None:
    """Serves until ``stop``. Raises PreflightError, and CertificateError for files that cannot be
    used."""
    async with connect(settings.home, side="home", notify=notify) as home:
        with as_preflight_errors("home"):
            try:
                async with in_cluster_server(home, settings) as port:
                    service = f"{settings.namespace}/{settings.service}"
                    notify(f"home: the dashboard of Service {service} listens on {port}")
                    await stop.wait()
            except OSError as error:
                raise PreflightError(
                    f"port {settings.port}: {error.strerror}; choose another --port"
                ) from error


@asynccontextmanager
async def in_cluster_server(home: KubeClient, settings: InClusterSettings) -> AsyncIterator[int]:
    """Serves the page while the block runs, and yields the port. Raises OSError and
    CertificateError."""
    source = settings.certificate
    certificate = await source.first()
    sock = listening_socket("", settings.port)
    access = ViewerAccess(home, settings.namespace, settings.service)
    async with watch_fleet(home, None) as watch:
        server = InClusterServer(home, watch, access, certificate)
        try:
            async with asyncio.TaskGroup() as group:
                renewal = group.create_task(source.run(server.use), name="certificate")
                yield await server.start(sock)
                renewal.cancel()
        finally:
            await server.stop()
            await access.close()


class InClusterServer:
    """The server. `start` it, and `stop` it at the end."""

    def __init__(
        self, home: KubeClient, watch: FleetWatch, access: ViewerAccess, certificate: TlsKeyPair
    ) -> None:
        self._home = home
        self._watch = watch
        self._access = access
        self._pages = PageResponses(watch)
        self._in_progress = 0
        self._explanations = asyncio.Semaphore(MAX_CONCURRENT)
        self._https = HttpsServer(
            self._respond, server_context(certificate, client_ca=""), max_header=MAX_HEADER
        )

    def use(self, certificate: TlsKeyPair) -> None:
        """Presents this certificate to new connections. Raises CertificateError."""
        self._https.context = server_context(certificate, client_ca="")

    async def start(self, sock: socket.socket) -> int:
        """Serves on the listening socket, and returns its port."""
        return await self._https.start(sock)

    async def stop(self) -> None:
        await self._https.stop()

    # -- requests ------------------------------------------------------------------------------

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except HttpError as error:
            return plain_response(error.status, f"{error.message}\n", **error.headers)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, method = request.path, request.method
        if method == "GET" and path in ("/livez", "/readyz"):
            is_ready = path == "/livez" or self._watch.is_listed
            return plain_response(200, "ok\n") if is_ready else plain_response(503, "not listed\n")
        if path == _SIGN_IN:
            return await self._sign_in(request)
        if path == _SIGN_OUT and method == "POST":
            return self._sign_out(request)
        if method == "GET" and path in _OPEN_FILES and (file := self._pages.file(path)) is not None:
            return file
        _check_origin(request)
        try:
            viewer = await self._access.viewer_of(request)
        except HttpError as error:
            if error.status == 401 and method == "GET" and path == "/":
                return _redirect("sign-in")
            raise
        if method != "GET":
            return plain_response(405, "read-only\n", Allow="GET")
        return await self._get(request, viewer)

    async def _get(self, request: web.BaseRequest, viewer: Viewer) -> web.StreamResponse:
        if request.path == "/":
            # The button is for viewers who have a session to end.
            user = html.escape(printable(viewer.user.name))
            button = _BUTTON.format(user=user) if COOKIE in request.cookies else ""
            return self._page("/", _MARK, button)
        if request.path == _VIEWER_PATH:
            return web.json_response({"user": viewer.user.name}, headers=HEADERS)
        if self._in_progress >= MAX_REQUESTS:
            return plain_response(503, "too many requests in progress\n", **{"Retry-After": "5"})
        self._in_progress += 1
        try:
            with self._https.connections.admitted(request):
                details = ViewerDetails(self._home, viewer.token, self._explanations)
                return await self._pages.get(request, request.path, details)
        finally:
            self._in_progress -= 1

    async def _sign_in(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            return self._sign_in_page(200, "")
        if request.method != "POST":
            return plain_response(405, "use GET or POST\n", Allow="GET, POST")
        _check_origin(request)
        token = await _read_token(request)
        try:
            viewer = await self._access.check(token)
        except HttpError as error:
            log.info("a viewer could not sign in (%s)", error.status)
            return self._sign_in_page(error.status, _REASONS.get(error.status, error.message))
        log.info("viewer %r signed in", viewer.user.name)
        self._access.sessions.end(request.cookies.get(COOKIE, ""))
        response = _redirect("./")
        response.set_cookie(
            COOKIE,
            self._access.sessions.begin(viewer),
            max_age=int(SESSION_SECONDS),
            path="/",
            secure=True,
            httponly=True,
            samesite="Strict",
        )
        return response

    def _sign_out(self, request: web.BaseRequest) -> web.StreamResponse:
        _check_origin(request)
        self._access.sessions.end(request.cookies.get(COOKIE, ""))
        response = _redirect("sign-in")
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return response

    def _sign_in_page(self, status: int, problem: str) -> web.Response:
        notice = f'<p class="notice" role="alert">{html.escape(problem)}</p>' if problem else ""
        return self._page("/sign-in.html", "<!-- problem -->", notice, status=status)

    def _page(self, path: str, mark: str, text: str, *, status: int = 200) -> web.Response:
        """A page of `static` with ``text``, which is escaped, at its mark."""
        body, _ = self._pages.files[path]
        return web.Response(
            status=status,
            body=body.replace(mark.encode(), text.encode()),
            content_type="text/html",
            charset="utf-8",
            headers=FORM_HEADERS,
        )


_REASONS = {
    401: "Home does not accept this token. It may have expired, or belong to another cluster.",
    403: "Home knows you, but does not permit you to read this page: you need the verb get on "
    "services/proxy of its Service.",
}


def _check_origin(request: web.BaseRequest) -> None:
    """Raises HttpError (403) for a request that a browser marks as one of another origin."""
    origin = request.headers.get("Origin")
    site = request.headers.get("Sec-Fetch-Site", "none")
    is_navigation = request.method == "GET" and request.path == "/"
    if origin not in (None, f"https://{request.host}") or not (
        is_navigation or site in ("none", "same-origin")
    ):
        raise HttpError(403, "the request is of another origin")


def _redirect(to: str) -> web.Response:
    response = plain_response(303, "")
    response.headers["Location"] = to
    return response


async def _read_token(request: web.BaseRequest) -> str:
    """The token of the sign-in form. Raises HttpError (400, 413)."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise HttpError(400, "the form must be URL-encoded")
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > MAX_FORM:
            raise HttpError(413, "the token is too long")
    try:
        fields = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        raise HttpError(400, "the form is malformed") from None
    return fields.get("token", [""])[0].strip()
