"""The HTTPS server of the kubelet API: TLS, authentication, authorization, routes, start and stop.

Every request takes the same steps: authentication (401), authorization (403), routing (404, 405),
and only then the handler; so a caller without permission learns nothing about what exists. A
standby replica answers 503 to requests about the node and its pods. Errors are one sentence in
plain text.

`start` raises `ListenError` when the port is not available. `stop` ends open streams within its
bound, after they have sent their buffered data, and cancels the rest; no task and no connection
remains. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import orjson
from aiohttp import web

from bridge.base.command_error import BridgeError
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context
from bridge.kubelet import healthz
from bridge.kubelet.authn import TOKEN_LIFETIME, Authenticator, ReviewClient
from bridge.kubelet.authz import (
    ALLOWED_LIFETIME,
    DENIED_LIFETIME,
    Authorizer,
    node_subresources,
    required_verb,
)
from bridge.kubelet.error_responses import HttpError, text_response
from bridge.kubelet.exec_attach_portforward import exec_or_attach, port_forward, run_in_container
from bridge.kubelet.logs import serve_log
from bridge.kubelet.pod_lookup import PodAccess, PodDirectory
from bridge.kubelet.routing import Route, RoutedRequest, Router, split_target
from bridge.kubelet.stream_limits import ActiveStreams
from bridge.net.accepted_connections import WAITING_TIMEOUT, ServerConnections, TlsConnection
from bridge.net.http_server import HttpServer
from bridge.net.listening_socket import listening_socket
from bridge.net.open_file_budget import MAX_STREAMS
from bridge.net.splice import IDLE_TIMEOUT
from sync.kube.api_resources import Object
from sync.kube.client import KubeClient

#: Maximum request line in bytes. It has a command's arguments, percent-encoded; one argument may
#: have 128 KiB on Linux.
MAX_LINE = 256 * 1024
#: Maximum header in bytes: a bearer token with many groups has some KiB.
MAX_HEADER = 16 * 1024
#: Maximum number of headers. API servers send about ten.
MAX_HEADERS = 48
#: Maximum head in bytes of a caller with a client certificate, as a kubelet (net/http's
#: DefaultMaxHeaderBytes); others have `bridge.net.http_server.MAX_HEAD`.
MAX_HEAD = 2**20
#: Seconds for cancelled tasks to clean up.
CLEANUP = 1.0

#: OpenSSL's name of the alert (RFC 8446) with which Go's crypto/tls rejects any certificate that it
#: does not trust or that does not name the server; the prefix depends on OpenSSL's version.
_BAD_CERTIFICATE = "ALERT_BAD_CERTIFICATE"


class ListenError(BridgeError):
    """The server cannot listen on its address and port."""


class KubeletServer:
    """The HTTPS server of one virtual node's kubelet API. `start` it, and `stop` it at the end.

    `bridge.app.kubelet_api_setup.NodeKubelet` creates the server, and renews its certificates.
    ``client_ca``: ``client-ca-file`` of home's ConfigMap
    ``kube-system/extension-apiserver-authentication`` (PEM). ``routes``: more routes.
    ``problem`` returns why pods are not followed, ``standby`` why another replica serves the node;
    both return "" otherwise. ``ready``: checks of ``/readyz``. ``max_streams``: limit of open logs,
    exec, attach, port-forward and run requests. ``on_certificate_rejected`` gets the address of a
    client that rejects the certificate.
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
        routes: Sequence[Route] = (),
        problem: Callable[[], str] = str,
        standby: Callable[[], str] = str,
        ready: Mapping[str, healthz.Check] | None = None,
        max_streams: int = MAX_STREAMS,
        on_certificate_rejected: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._certificate = certificate
        self._client_ca = client_ca
        self._context = server_context(certificate, client_ca=client_ca)
        reviews = ReviewClient(home)
        self._authenticator = Authenticator(reviews)
        self._authorizer = Authorizer(reviews, node_name)
        self._connections = ServerConnections()
        self._standby = standby
        self._active = ActiveStreams(max_streams)
        table = _routes(
            PodAccess(node_name, remote, directory, self._active),
            NodeEndpoints(directory),
        )
        self._router = Router([*table, *healthz.routes(ready or {}, problem), *routes])
        self._http: HttpServer | None = None
        self._listener: asyncio.Server | None = None
        self._handshaking: set[TlsConnection] = set()
        self._request_tasks: set[asyncio.Task[object]] = set()
        self._on_certificate_rejected = on_certificate_rejected
        self.port = 0
        """The port, also after `start` with port 0."""

    @property
    def streams(self) -> ActiveStreams:
        """Open streams, with their counters."""
        return self._active

    @property
    def reviews(self) -> dict[tuple[str, ...], int]:
        """Number of authentications and authorizations by kind of review and source: ``asked`` of
        home, or ``remembered`` in the cache."""
        tokens, decisions = self._authenticator.tokens, self._authorizer.decisions
        return {
            ("TokenReview", "asked"): tokens.misses,
            ("TokenReview", "remembered"): tokens.hits,
            ("SubjectAccessReview", "asked"): decisions.misses,
            ("SubjectAccessReview", "remembered"): decisions.hits,
        }

    def renew(self, *, certificate: TlsKeyPair | None = None, client_ca: str | None = None) -> None:
        """Replaces the certificate or the client CA for new connections.

        A new client CA also closes existing connections gracefully, since the old one authenticated
        them. If it raises CertificateError, nothing has changed.
        """
        pair = certificate or self._certificate
        bundle = self._client_ca if client_ca is None else client_ca
        self._context = server_context(pair, client_ca=bundle)
        if bundle != self._client_ca:
            self._connections.close_gracefully()
        self._certificate, self._client_ca = pair, bundle

    # -- start and stop ----------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listens on an IP address; ``::`` includes IPv4. Raises ListenError."""
        sock = kubelet_api_socket(host, port)
        self._http = HttpServer(
            self._serve,
            keepalive_timeout=2 * WAITING_TIMEOUT,  # `ServerConnections` decides
            max_head=MAX_HEAD,
            max_line_size=MAX_LINE,
            max_field_size=MAX_HEADER,
            max_headers=MAX_HEADERS,
            lingering_time=CLEANUP,
        )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._accept, sock=sock)
        self.port = sock.getsockname()[1]

    async def stop(self, timeout: float) -> None:
        """Ends all streams and requests within ``timeout`` seconds, or cancels them within
        `CLEANUP` more. Does nothing on a stopped server."""
        if self._listener is None or self._http is None:
            return
        listener, http = self._listener, self._http
        self._listener = self._http = None
        listener.close()
        http.pre_shutdown()  # closes idle connections
        self._active.end_all()
        for layer in list(self._handshaking):
            layer.abort()
        try:
            if self._request_tasks:
                await asyncio.wait(set(self._request_tasks), timeout=timeout)
        finally:
            for task in self._request_tasks:
                task.cancel()
            if self._request_tasks:
                await asyncio.wait(set(self._request_tasks), timeout=CLEANUP)
            await http.shutdown(CLEANUP)
            await self._authenticator.close()
            await self._authorizer.close()

    def _accept(self) -> TlsConnection:
        http = self._http
        if http is None:  # the listener was closed before this connection was accepted
            raise ConnectionAbortedError("the kubelet API is stopping")
        layer = TlsConnection(self._context, http, self._connections)
        self._handshaking.add(layer)
        layer.ready.add_done_callback(lambda ready: self._handshake_ended(layer, ready))
        return layer

    def _handshake_ended(self, layer: TlsConnection, ready: asyncio.Future[None]) -> None:
        self._handshaking.discard(layer)
        error = None if ready.cancelled() else ready.exception()
        if isinstance(error, ssl.SSLError) and _BAD_CERTIFICATE in (error.reason or ""):
            peer = layer.get_extra_info("peername")
            self._on_certificate_rejected(str(peer[0]) if peer else "an unknown address")

    # -- requests ----------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        if task is not None:
            self._request_tasks.add(task)
            task.add_done_callback(self._request_tasks.discard)
        with self._connections.request_in_progress(request):
            try:
                return await self._answer(request)
            except HttpError as error:
                return text_response(error.status, error.message, error.headers)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        user = await self._authenticator.authenticate(request)
        segments, query = split_target(request.raw_path)
        verb = required_verb(request.method, segments)
        if verb is None:
            message = f"method {request.method} is not supported"
            raise HttpError(405, message, headers={"Allow": "GET, POST"})
        await self._authorizer.authorize(user, verb, node_subresources(segments))
        route, parameters = self._router.find(request.method, segments)
        if not route.is_node_independent and (reason := self._standby()):
            raise HttpError(503, f"{reason}; use the address in the status of the Node")
        with self._connections.admitted(request):
            return await route.handler(RoutedRequest(request, user, parameters, query))


def _routes(access: PodAccess, node: NodeEndpoints) -> list[Route]:
    get, post = frozenset({"GET"}), frozenset({"POST"})
    both = get | post
    exec_, attach = (partial(exec_or_attach, access, kind) for kind in ("exec", "attach"))
    forward, run = partial(port_forward, access), partial(run_in_container, access)
    return [
        Route("/containerLogs/{namespace}/{pod}/{container}", get, partial(serve_log, access)),
        Route("/exec/{namespace}/{pod}/{container}", both, exec_),
        Route("/exec/{namespace}/{pod}/{uid}/{container}", both, exec_),
        Route("/attach/{namespace}/{pod}/{container}", both, attach),
        Route("/attach/{namespace}/{pod}/{uid}/{container}", both, attach),
        Route("/portForward/{namespace}/{pod}", both, forward),
        Route("/portForward/{namespace}/{pod}/{uid}", both, forward),
        Route("/run/{namespace}/{pod}/{container}", post, run),
        Route("/run/{namespace}/{pod}/{uid}/{container}", post, run),
        Route("/pods", get, node.pods),
        Route("/runningpods", get, node.running_pods),
        Route("/configz", get, node.config, is_node_independent=True),
    ]


def kubelet_api_socket(host: str, port: int) -> socket.socket:
    """A listening socket of the kubelet API. Raises ListenError."""
    if not 0 <= port <= 65535:
        raise ListenError(f"invalid port {port}; set --port to a number from 1 to 65535")
    try:
        return listening_socket(host, port)
    except OSError as error:
        cause, hint = error.strerror or error, "choose another port with --port"
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "set --address to an address of this host"
        raise ListenError(
            f"the kubelet API cannot listen on {host} port {port}: {cause}; {hint}"
        ) from error


class NodeEndpoints:
    """The endpoints of a kubelet about its node: /pods, /runningpods and /configz."""

    def __init__(self, directory: PodDirectory) -> None:
        self._directory = directory

    async def pods(self, _: RoutedRequest) -> web.StreamResponse:
        """A PodList of all home pods on the node, terminating pods included."""
        return _pod_list(self._directory.home_pods())

    async def running_pods(self, _: RoutedRequest) -> web.StreamResponse:
        """A PodList of the pods that have a running container and are not terminating."""
        return _pod_list([pod for pod in self._directory.home_pods() if is_running(pod)])

    async def config(self, _: RoutedRequest) -> web.StreamResponse:
        """The KubeletConfiguration with the fields that apply to a virtual node."""
        config = {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "enableServer": True,
            "streamingConnectionIdleTimeout": f"{IDLE_TIMEOUT / 3600:.0f}h0m0s",
            "authentication": {
                "x509": {},
                "webhook": {"enabled": True, "cacheTTL": _duration(TOKEN_LIFETIME)},
                "anonymous": {"enabled": False},
            },
            "authorization": {
                "mode": "Webhook",
                "webhook": {
                    "cacheAuthorizedTTL": _duration(ALLOWED_LIFETIME),
                    "cacheUnauthorizedTTL": _duration(DENIED_LIFETIME),
                },
            },
        }
        return _json({"kubeletconfig": config})


def is_running(pod: Object) -> bool:
    if (pod.get("metadata") or {}).get("deletionTimestamp"):
        return False
    status = pod.get("status") or {}
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    containers = [container for kind in kinds for container in status.get(kind) or []]
    return any("running" in (container.get("state") or {}) for container in containers)


def _duration(seconds: float) -> str:
    """Formats a metav1.Duration of minutes and seconds: ``2m0s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def _pod_list(pods: list[Object]) -> web.Response:
    return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})


def _json(body: Object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")
