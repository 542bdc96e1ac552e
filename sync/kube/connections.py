"""Connections to an API server: through an HTTP proxy if one is configured, with TLS, and with all
bytes kept until a protocol takes the connection over.

`NameLookup` keeps a name server that hangs from delaying connections to other API servers.

`map_connection_errors` maps failures, as aiohttp, OpenSSL and the operating system raise them, to
`Unreachable` with a message for people.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aiohappyeyeballs
import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.http_exceptions import HttpProcessingError

from sync.base import clock
from sync.kube import http1
from sync.kube.api_errors import ApiServerCertificateError, Side, Unreachable
from sync.kube.credentials import Credentials
from sync.kube.endpoint import Endpoint
from sync.kube.layered_transport import TlsLayer
from sync.kube.sockets import request_socket, tunnel_socket

USER_AGENT = "cluster-bridge"
#: Seconds to open a connection, TLS included.
CONNECT_TIMEOUT = 10.0
#: Seconds after which the next address is tried as well (RFC 8305).
ADDRESS_DELAY = 0.25
#: Seconds without a further name lookup, as in aiohttp.
FRESH_SECONDS = 10.0
#: Seconds that a lookup may take if there are addresses of an earlier one.
PATIENCE = 1.0
_CLOSED_EARLY = "the server closed the connection before it answered"

#: An entry of `socket.getaddrinfo`.
AddressInfo = tuple[Any, ...]
_MakeSocket = Callable[[AddressInfo], socket.socket]


class Dialer:
    """Opens connections to the present endpoint of ``credentials``."""

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        self._names = NameLookup()

    async def connect(
        self, context: ssl.SSLContext | None, *, make_socket: _MakeSocket = tunnel_socket
    ) -> Connection:
        """Connects to the API server, TLS with ``context`` included, through the proxy if there is
        one.

        Raises `ConnectFailedError` if the server or the proxy cannot be reached, and ssl.SSLError
        for a failed handshake; the caller limits the time.
        """
        endpoint, proxy = self.credentials.endpoint, self.credentials.endpoint.proxy
        name = endpoint.tls_server_name or endpoint.host
        try:
            if proxy is not None:
                return await self._connect_through(proxy, endpoint, context, name, make_socket)
            sock = await self._open_socket(endpoint.host, endpoint.port, make_socket)
            return await _start(sock, context, name)
        except (ssl.SSLError, TimeoutError):
            raise  # mapped by the caller
        except OSError as error:
            via = f"the proxy for {endpoint.server}: " if proxy else ""
            message = connect_message(error, proxy or endpoint.server)
            raise ConnectFailedError(via + message) from error

    def check_address(self, host: str | None, port: int | None) -> None:
        """Raises ConnectionAbortedError if a request is for a previous address: its credential is
        that of the previous address too."""
        endpoint = self.credentials.endpoint
        if (host, port) != (endpoint.host, endpoint.port):
            raise ConnectionAbortedError

    async def _connect_through(
        self,
        proxy: str,
        endpoint: Endpoint,
        context: ssl.SSLContext | None,
        name: str,
        make_socket: _MakeSocket,
    ) -> Connection:
        url = urlsplit(proxy)
        secure = url.scheme == "https"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        # As Go's transport: the cluster's CA verifies an https proxy.
        outer = (self.credentials.tls or ssl.create_default_context()) if secure else None
        connection = await _start(await self._open_socket(host, port, make_socket), outer, host)
        try:
            await _open_proxy_tunnel(connection, endpoint, url.username, url.password)
            if context is None:
                return connection
            inner = Connection()
            layer = TlsLayer(context, lambda: inner, server_hostname=name)
            connection.hand_over(layer)
            await layer.ready
        except BaseException:
            connection.transport.abort()
            raise
        return inner

    async def _open_socket(self, host: str, port: int, make_socket: _MakeSocket) -> socket.socket:
        return await aiohappyeyeballs.start_connection(
            await self._names.find(host, port),
            happy_eyeballs_delay=ADDRESS_DELAY,
            socket_factory=make_socket,
        )


async def _start(sock: socket.socket, context: ssl.SSLContext | None, name: str) -> Connection:
    loop = asyncio.get_running_loop()
    connection = Connection()
    try:
        if context is None:
            await loop.create_connection(lambda: connection, sock=sock)
            return connection
        layer = TlsLayer(context, lambda: connection, server_hostname=name)
        transport, _ = await loop.create_connection(lambda: layer, sock=sock)
    except BaseException:
        sock.close()
        raise
    try:
        await layer.ready
    except BaseException:
        transport.abort()
        raise
    return connection


async def _open_proxy_tunnel(
    connection: Connection, endpoint: Endpoint, user: str | None, password: str | None
) -> None:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    address = f"{host}:{endpoint.port}"
    headers = [("Host", address), ("User-Agent", USER_AGENT)]
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}".encode()
        headers.append(("Proxy-Authorization", "Basic " + base64.b64encode(pair).decode()))
    connection.transport.write(http1.request("CONNECT", address, headers))
    responses = Responses(connection, "CONNECT")
    head = await responses.head()
    if not 200 <= head.status < 300:
        raise ConnectionError(f"the proxy answered {head.status} to CONNECT")


class Connection(asyncio.Protocol):
    """Buffers what a connection receives until another protocol takes it over."""

    __slots__ = ("_buffer", "_closed", "_ended", "_error", "_received", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._closed = False
        self._received: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > http1.HEAD_LIMIT:
            self.transport.pause_reading()
        self._notify()

    def eof_received(self) -> bool:
        self._ended = True
        self._notify()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._closed = True
        self._error = exc
        self._notify()

    def _notify(self) -> None:
        if self._received is not None and not self._received.done():
            self._received.set_result(None)

    async def receive(self) -> bytes:
        """Waits for bytes, and takes them; b"" at the end. Raises OSError if the connection is
        lost."""
        while not self._buffer:
            if self._error is not None:
                raise self._error
            if self._ended:
                return b""
            self._received = asyncio.get_running_loop().create_future()
            try:
                await self._received
            finally:
                self._received = None
        data = bytes(self._buffer)
        self._buffer.clear()
        if not self._closed:
            self.transport.resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        """Buffers bytes that were taken and not used."""
        self._buffer[:0] = data

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Makes ``protocol`` the connection's protocol and passes it the buffered bytes."""
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        # Resumed first: the buffered bytes may make the protocol pause reading.
        if not self._closed:
            self.transport.resume_reading()
        if self._buffer:
            protocol.data_received(bytes(self._buffer))
        if self._closed:
            protocol.connection_lost(self._error)
        elif self._ended and not protocol.eof_received():
            self.transport.close()


class Responses:
    """The responses to the one request of a connection. All methods raise ValueError for a
    malformed response, and OSError if the connection ends."""

    def __init__(self, connection: Connection, method: str) -> None:
        self._connection = connection
        self._reader = http1.ResponseReader(method)

    async def head(self) -> http1.Head:
        """Reads a head; after that of an upgrade, the connection has what follows."""
        while (head := self._reader.head()) is None:
            data = await self._connection.receive()
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, _CLOSED_EARLY)
            self._reader.feed(data)
        if head.status == 101 or 200 <= head.status < 300:
            self._connection.put_back(self._reader.rest)
        return head

    async def body(self, head: http1.Head) -> bytes:
        """Reads the body of the response with that head."""
        while (body := self._reader.body(head)) is None:
            self._reader.feed(await self._connection.receive())
        return body


class NameLookup:
    """The addresses of one API server and of the proxy before it.

    One lookup runs at a time, in a thread of its own: the C library offers no timeout, and the few
    threads of the event loop are for all servers. Addresses are kept for `FRESH_SECONDS`. While a
    lookup hangs or fails for the moment, the last ones are used: TLS verifies the server.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, list[AddressInfo]]] = {}
        self._running: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}

    async def find(self, host: str, port: int) -> list[AddressInfo]:
        """The addresses. Raises socket.gaierror; the caller limits the time."""
        with contextlib.suppress(socket.gaierror):
            return _look_up(host, port, socket.AI_NUMERICHOST)
        found_at, addresses = self._known.get((host, port), (0.0, []))
        if addresses and clock.now() - found_at < FRESH_SECONDS:
            return addresses
        lookup = asyncio.shield(self._running.get((host, port)) or self._start(host, port))
        try:
            async with asyncio.timeout(PATIENCE if addresses else None):
                return await lookup
        except (TimeoutError, socket.gaierror) as error:
            is_temporary = isinstance(error, TimeoutError) or error.errno == socket.EAI_AGAIN
            if not (addresses and is_temporary):
                raise
            return addresses

    def _start(self, host: str, port: int) -> asyncio.Future[list[AddressInfo]]:
        key = host, port
        loop = asyncio.get_running_loop()
        result = self._running[key] = loop.create_future()

        def finish(found: list[AddressInfo] | Exception) -> None:
            del self._running[key]
            if isinstance(found, Exception):
                result.set_exception(found)
                result.exception()  # asyncio logs exceptions that are not retrieved
            else:
                self._known = {key: (clock.now(), found)}
                result.set_result(found)

        def run() -> None:
            found: list[AddressInfo] | Exception
            try:
                found = _look_up(host, port)
            except OSError as error:
                found = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish, found)

        # As a daemon: it must not delay the end of the process.
        threading.Thread(target=run, name="name-lookup", daemon=True).start()
        return result


def _look_up(host: str, port: int, flags: int = 0) -> list[AddressInfo]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))


# -- connections for aiohttp ----------------------------------------------------------------------

#: Seconds that an idle connection is kept. API servers close it after 90 s (IdleTimeout in
#: k8s.io/apiserver's secure_serving.go); a request that is sent at that moment fails.
KEEP_IDLE = 30.0
#: Bytes of a body after which a connection is read no further, until they are used; a read has at
#: most `sync.kube.sockets.READ_SIZE`. aiohttp doubles the number.
READ_AHEAD = 2**14
#: Responses with a status of 1xx before a response: API servers send none.
MAX_INTERIM = 100


def new_session(dialer: Dialer, *, rejects_redirects: bool = False) -> aiohttp.ClientSession:
    """A connection pool without a limit of its own, without cookies. ``rejects_redirects``: those
    of WebSockets too, for which aiohttp has no option."""
    return aiohttp.ClientSession(
        connector=ApiConnector(dialer),
        read_bufsize=READ_AHEAD,
        # `Transport` bounds the rest of a request; aiohttp's own total timeout costs more.
        timeout=aiohttp.ClientTimeout(total=None),
        # Cookies of a load balancer would pin all requests to one API server.
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[_without_redirects()] if rejects_redirects else None,
    )


def _without_redirects() -> aiohttp.TraceConfig:
    """Fails a WebSocket handshake that is redirected: it would send the command to whatever address
    the server names."""

    async def reject(_: object, __: object, redirect: aiohttp.TraceRequestRedirectParams) -> None:
        response = redirect.response
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, (), status=response.status, message="redirected"
        )

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(reject)
    return config


class ApiConnector(aiohttp.BaseConnector):
    """The connection pool of ``dialer``, without a limit of its own.

    aiohttp's own connector would leave TLS to the event loop, which replies to a hostile server's
    requests for new keys without a limit, would parse any number of interim responses in one turn,
    and would take what an idle connection has received for the response to the next request.
    """

    def __init__(self, dialer: Dialer) -> None:
        super().__init__(limit=0, keepalive_timeout=KEEP_IDLE)
        self._dialer = dialer

    async def _create_connection(
        self,
        req: ClientRequest,
        traces: Any,  # noqa: ARG002  # aiohttp's signature
        timeout: aiohttp.ClientTimeout,  # noqa: ARG002
    ) -> ResponseHandler:
        key = req.connection_key
        context = key.ssl if isinstance(key.ssl, ssl.SSLContext) else None
        try:
            self._dialer.check_address(key.host, key.port)
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await self._dialer.connect(context, make_socket=request_socket)
        except ssl.SSLCertVerificationError as error:
            raise aiohttp.ClientConnectorCertificateError(key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(key, error) from error
        except TimeoutError:
            raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(key, error) from error
        protocol = _ResponseHandler(self._loop)
        connection.hand_over(protocol)
        return protocol

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        cast("_ResponseHandler", protocol).is_idle = True


class _ResponseHandler(ResponseHandler):
    """aiohttp's client protocol, for servers that are not trusted."""

    is_idle = False
    """Whether the connection is in the pool: no response is expected."""

    def set_response_params(self, **params: Any) -> None:
        self.is_idle = False
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        if self.is_idle and data:  # without data, aiohttp resumes what it has
            # Such as the 408 of a load balancer. The same server may send the rest of it later.
            self.abort()
            return
        super().data_received(data)
        if len(self._buffer) > MAX_INTERIM and self.transport is not None:
            self.transport.abort()


# -- failures ------------------------------------------------------------------------------------


class ConnectFailedError(OSError):
    """Raised when no connection to the server, or to the proxy before it, can be opened. The
    message names the address and the cause."""


@contextmanager
def map_connection_errors(
    side: Side, what: str, server: str, on_failure: Callable[[], None]
) -> Iterator[None]:
    """Maps failures of the block to `Unreachable` and `ApiServerCertificateError`.

    ``on_failure`` is called for each failure of a connection. `KubeError` and exceptions that have
    nothing to do with a connection pass unchanged.
    """

    def unreachable(message: str) -> Unreachable:
        return Unreachable(message, side=side, what=what)

    try:
        yield
    except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
        if not isinstance(error, HttpProcessingError):
            on_failure()
        match error:
            case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
                message = _certificate_message(error)
                raise ApiServerCertificateError(message, side=side, what=what) from error
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                raise unreachable(_handshake_message(error)) from error
            case TimeoutError():
                raise unreachable(f"no answer from {server} in time") from error
            case aiohttp.ClientConnectorError(os_error=ConnectFailedError() as failure):
                raise unreachable(str(failure)) from error
            case ConnectFailedError():
                raise unreachable(str(error)) from error
        # Not chained: a parser's error quotes the bytes that it could not parse, and the repr of a
        # response's error contains the request's headers with the credential.
        raise unreachable(_broken_message(error)) from None


def connect_message(error: OSError, server: str) -> str:
    """Why a connection to ``server`` (a URL) failed: ``connection refused by 127.0.0.1:6443``.
    Reads ``errno``, because asyncio puts its own text into ``strerror``; a failed name lookup has a
    negative errno and the resolver's text."""
    address = urlsplit(server).netloc.rpartition("@")[2] or server
    if error.errno == errno.ECONNREFUSED:
        return f"connection refused by {address}"
    if error.errno and error.errno > 0:
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error) or "cannot connect"
    return f"{address}: {reason}"


def _broken_message(error: BaseException) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection broke: the server closed it"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke: the response is incomplete"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return "the response is not HTTP; check that the address is an API server's"
    reason = getattr(error, "strerror", None) or "the connection failed"
    return f"the connection broke: {reason}"


def _handshake_message(error: BaseException) -> str:
    inner = getattr(error, "os_error", error)
    reason = getattr(inner, "reason", None)
    text = reason.replace("_", " ").lower() if reason else "the server does not speak TLS"
    return f"the TLS handshake failed: {text}"


def _certificate_message(error: BaseException) -> str:
    inner = getattr(error, "certificate_error", error)
    reason = getattr(inner, "verify_message", "") or str(inner)
    return (
        f"the server's certificate is not trusted: {reason}; "
        "check certificate-authority(-data) and server in the kubeconfig"
    )
