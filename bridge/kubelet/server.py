"""The kubelet API's server: TLS, who may call, the table of routes, start and stop.

Every request of HTTP/1 goes the same way: who is it (401), may they (403), is there such a path and
method (404, 405), and only then does a route's handler see it; so nobody learns what exists who may
not. A bridge that stands by answers 503 where it is asked about the node or its pods. An answer of
400 and above is one sentence in plain text.

`start` raises `ListenError` when the port is not to be had. `stop` ends what is open within its
bound: streams hand over what they hold, the rest is cut. After it no task and no connection is
left. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping, Sequence

from aiohttp import HttpVersion10, HttpVersion11, http_exceptions, web

from bridge.base.errors import BridgeError
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from bridge.kubelet import healthz
from bridge.kubelet.authz import KubeletAuth
from bridge.kubelet.exec_attach_portforward import StreamHandler
from bridge.kubelet.logs import LogHandler
from bridge.kubelet.node_endpoints import NodeEndpoints
from bridge.kubelet.pod_directory import PodDirectory
from bridge.kubelet.routing import Route, RoutedRequest, Router, split_target, subresources, verb
from bridge.kubelet.run import RunHandler
from bridge.net.active_streams import ActiveStreams
from bridge.net.error_responses import HttpError, text_response
from bridge.net.limits import MAX_STREAMS
from bridge.net.server_connections import WAITING_TIMEOUT, ServerConnections, TlsConnection
from sync.kube.client import KubeClient
from sync.kube.sockets import enable_keepalive

#: A request's first line, in bytes. A command's arguments stand in it, percent-encoded; one can
#: have 128 KiB on Linux.
MAX_LINE = 256 * 1024
#: One header, in bytes: a bearer token with many groups in it has some KiB.
MAX_HEADER = 16 * 1024
#: How many headers: with the line 1 MiB of head in all, as a kubelet (net/http's
#: DefaultMaxHeaderBytes). API servers send some ten.
MAX_HEADERS = 48
#: Seconds for what was cancelled to clean up.
CLEANUP = 1.0

log = logging.getLogger(__name__)


class ListenError(BridgeError):
    """The server cannot listen where it should."""


class KubeletServer:
    """The kubelet API of one virtual node. `start` it, and `stop` it in the end.

    ``client_ca`` is ``client-ca-file`` of home's ConfigMap
    ``kube-system/extension-apiserver-authentication``. ``anonymous`` is whether callers without a
    credential are asked about too. ``routes`` come on top of the table below. ``trouble`` says in a
    sentence why pods are not followed just now, or nothing; ``standby`` why another bridge is to be
    asked; ``ready`` are the checks of ``/readyz``. ``max_streams`` is how many logs, execs and so
    on may be open at once.
    """

    def __init__(
        self,
        *,
        home: KubeClient,
        remote: KubeClient,
        directory: PodDirectory,
        node_name: str,
        certificate: TlsKeyPair,
        client_ca: str,
        anonymous: bool = False,
        routes: Sequence[Route] = (),
        trouble: Callable[[], str] = str,
        standby: Callable[[], str] = str,
        ready: Mapping[str, healthz.Check] | None = None,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        self._certificate = certificate
        self._client_ca = client_ca
        self._context = server_context(certificate, client_ca=client_ca)
        self._gate = KubeletAuth(home, node_name, anonymous=anonymous)
        self._connections = ServerConnections()
        self._standby = standby
        self._active = ActiveStreams(max_streams)
        logs = LogHandler(remote, directory, self._active)
        streams = StreamHandler(remote, directory, self._active)
        run = RunHandler(remote, directory, self._active)
        listings = NodeEndpoints(directory, trouble, anonymous=anonymous)
        own = _routes(logs, streams, run, listings)
        self._router = Router([*own, *healthz.routes(ready or {}), *routes])
        self._http: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._shaking: set[TlsConnection] = set()
        self._answering: set[asyncio.Task[object]] = set()
        self.port = 0
        """Where it listens; of use when `start` was given port 0."""

    @property
    def streams(self) -> ActiveStreams:
        """Those that are open, counted."""
        return self._active

    @property
    def reviews(self) -> dict[tuple[str, ...], int]:
        """What `Gate.reviews` says."""
        return self._gate.reviews

    def renew(self, *, certificate: TlsKeyPair | None = None, client_ca: str | None = None) -> None:
        """Another certificate or client CA, for the connections to come.

        After another client CA those of before end (`Connections.outdate`), since their callers
        were known by the old one. Raises CertificateError, and goes on with what it had.
        """
        pair = certificate or self._certificate
        bundle = self._client_ca if client_ca is None else client_ca
        self._context = server_context(pair, client_ca=bundle)
        if bundle != self._client_ca:
            self._connections.close_gracefully()
        self._certificate, self._client_ca = pair, bundle

    # -- start and stop ----------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises ListenError. ``host`` is an address; ``::`` takes IPv4 too."""
        sock = listening(host, port)
        self._http = web.Server(
            self._serve,
            handler_cancellation=True,
            access_log=None,
            logger=_http_log(),
            keepalive_timeout=2 * WAITING_TIMEOUT,  # `Connections` is to decide
            max_line_size=MAX_LINE,
            max_field_size=MAX_HEADER,
            max_headers=MAX_HEADERS,
            auto_decompress=False,
            lingering_time=CLEANUP,
        )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accepted, sock=sock)
        self.port = sock.getsockname()[1]

    async def stop(self, timeout: float) -> None:
        """Ends everything, after ``timeout`` seconds at most (and `CLEANUP`, where that is not
        enough). Stopping what is stopped does nothing."""
        if self._listener is None or self._http is None:
            return
        listener, http = self._listener, self._http
        self._listener = self._http = None
        listener.close()
        http.pre_shutdown()  # connections without a request end at once
        self._active.end_all()
        for layer in list(self._shaking):
            layer.abort()
        try:
            if self._answering:
                await asyncio.wait(set(self._answering), timeout=timeout)
        finally:
            for task in self._answering:
                task.cancel()
            if self._answering:
                await asyncio.wait(set(self._answering), timeout=CLEANUP)
            await http.shutdown(CLEANUP)
            await self._gate.close()

    def _accepted(self) -> TlsConnection:
        http = self._http
        if http is None:  # between the listener's end and this connection
            raise ConnectionAbortedError("the kubelet API is stopping")
        layer = TlsConnection(self._context, http, self._connections)
        self._shaking.add(layer)
        layer.ready.add_done_callback(lambda _: self._shaking.discard(layer))
        return layer

    # -- requests ----------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        if task is not None:
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        with self._connections.request_in_progress(request):
            try:
                return await self._answer(request)
            except HttpError as refusal:
                return text_response(refusal.status, refusal.message, refusal.headers)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.version not in (HttpVersion10, HttpVersion11):  # the parser knows others too
            raise HttpError(400, "only HTTP/1.1 is spoken here", headers={"Connection": "close"})
        user = await self._gate.authenticate(request)
        segments, query = split_target(request.raw_path)
        needed = verb(request.method, segments)
        if needed is None:
            raise HttpError(405, f"{request.method} is not offered", headers={"Allow": "GET, POST"})
        await self._gate.authorize(user, needed, subresources(segments))
        route, parameters = self._router.find(request.method, segments)
        if not route.is_node_independent and (why := self._standby()):
            raise HttpError(503, f"{why}; ask at the address that the Node has now")
        with self._connections.admitted(request):
            return await route.handler(RoutedRequest(request, parameters, query))


def _routes(
    logs: LogHandler, streams: StreamHandler, run: RunHandler, listings: NodeEndpoints
) -> list[Route]:
    get = frozenset({"GET"})
    post = frozenset({"POST"})
    both = get | post
    return [
        Route("/containerLogs/{namespace}/{pod}/{container}", get, logs.serve),
        Route("/exec/{namespace}/{pod}/{container}", both, streams.exec),
        Route("/exec/{namespace}/{pod}/{uid}/{container}", both, streams.exec),
        Route("/attach/{namespace}/{pod}/{container}", both, streams.attach),
        Route("/attach/{namespace}/{pod}/{uid}/{container}", both, streams.attach),
        Route("/portForward/{namespace}/{pod}", both, streams.forward),
        Route("/portForward/{namespace}/{pod}/{uid}", both, streams.forward),
        Route("/run/{namespace}/{pod}/{container}", post, run.serve),
        Route("/run/{namespace}/{pod}/{uid}/{container}", post, run.serve),
        Route("/pods", get, listings.pods),
        Route("/runningpods", get, listings.running_pods),
        Route("/healthz", get, listings.healthy, is_node_independent=True),
        Route("/healthz/ping", get, listings.ping, is_node_independent=True),
        Route("/healthz/syncloop", get, listings.healthy, is_node_independent=True),
        Route("/configz", get, listings.config, is_node_independent=True),
    ]


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= 65535:
        raise ListenError(f"{port} is no port; give --port one from 1 to 65535")
    try:
        sock = socket.create_server(
            (host, port),
            family=family,
            backlog=128,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        why, hint = error.strerror or error, "choose another port with --port"
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "give --address an address of this machine"
        raise ListenError(
            f"the kubelet API cannot listen on {host} port {port}: {why}; {hint}"
        ) from error
    enable_keepalive(sock)
    sock.setblocking(False)
    return sock


def _http_log() -> logging.Logger:
    """aiohttp's log of a server, without the requests that it cannot read: it quotes them, and
    they can hold a token."""
    logger = logging.getLogger(f"{__name__}.http")
    if not logger.filters:
        logger.addFilter(_readable)
    return logger


def _readable(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, http_exceptions.HttpProcessingError)
