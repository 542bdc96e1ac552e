"""HTTP/1.1 upgrades (exec, attach, port-forward) at an API server, each on its own connection.

After a 101 the following bytes are passed unparsed to the protocol of `UpgradeResponse.take`.
Guarantees of `open_upgrade`:

- Bytes that arrive with the head, or before `take`, are not lost: the protocol receives them first.
- A response with a status of 400 and above is returned, since the caller forwards its body. Without
  such a response the call raises `Unreachable`, `ApiServerCertificateError` or `ClientConfigError`.
- After 401 the credential is read again and the request is sent once more.
- A call that fails or is cancelled leaves no connection and no task. After a 101 the caller owns
  the connection: `take` or `close` it.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from sync.kube import http1
from sync.kube.api_errors import Unreachable
from sync.kube.connection_errors import connect_message, map_connection_errors
from sync.kube.credentials import ClientConfig
from sync.kube.request import CONNECT_TIMEOUT
from sync.kube.sockets import tunnel_socket
from sync.kube.tls_over_transport import TlsLayer
from sync.kube.tls_session_cache import TlsSessionCache
from sync.kube.transport import REQUEST_TIMEOUT

USER_AGENT = "cluster-bridge"
_CLOSED_EARLY = "the server closed the connection before it answered"


class UpgradeResponse:
    """The response to an upgrade: a connection to `take` if `status` is 101, else an error."""

    def __init__(self, head: http1.Head, body: bytes, connection: _Connection | None) -> None:
        self.head = head
        self.status = head.status
        self.body = body
        """The body of a response of 400 and above; empty for 101."""
        self._connection = connection

    def __repr__(self) -> str:
        return f"<UpgradeResponse {self.status}>"

    def take(self, protocol: asyncio.Protocol) -> None:
        """Hands the connection over to this protocol, from the first byte after the head on: calls
        its `connection_made`, and passes it the bytes received so far, and the end if there was
        one. Raises RuntimeError if there is no connection, or if it was taken before."""
        connection, self._connection = self._connection, None
        if connection is None:
            raise RuntimeError("no connection to take: the response is not 101, or it was taken")
        connection.hand_over(protocol)

    def close(self) -> None:
        """Aborts the connection unless it was taken."""
        if self._connection is not None:
            self._connection.transport.abort()
            self._connection = None


async def open_upgrade(
    config: ClientConfig,
    method: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
) -> UpgradeResponse:
    """Requests an upgrade and returns the response, with the guarantees of the module docstring.

    ``path`` is quoted, ``query`` is not (bytes that are not UTF-8 are surrogate escapes).
    ``headers`` are those of the upgrade; ``Host``, ``Connection`` and the credential are added
    here.
    """
    what = f"{method} {path} (upgrade)"  # Without the query: a command line may contain a secret.
    if query:
        path += "?" + urlencode(query, quote_via=quote, errors="surrogateescape")

    def message() -> bytes:
        server = urlsplit(config.server)
        added = [
            ("Host", server.netloc.rpartition("@")[2]),
            ("User-Agent", USER_AGENT),
            ("Connection", "Upgrade"),
        ]
        return http1.request(method, server.path + path, [*added, *headers, *config.headers()])

    seen = config.generation
    response = await _open_once(config, what, message())
    if response.status == 401 and await config.renew(seen):
        response = await _open_once(config, what, message())
    return response


async def _open_once(config: ClientConfig, what: str, message: bytes) -> UpgradeResponse:
    if config.unconfirmed:
        raise Unreachable(
            "the address changed and is being checked; try again", side=config.side, what=what
        )
    with map_connection_errors(config.side, what, config.server, config.recheck_files):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                connection = await _connect_or_raise(config, what)
            try:
                connection.transport.write(message)
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    head = await connection.head()
                    while 100 <= head.status < 200 and head.status != 101:
                        head = await connection.head()
                    config.tls_sessions.put(connection.transport.get_extra_info("ssl_object"))
                    return await _read_response(connection, head)
            except BaseException:
                connection.transport.abort()
                raise
        except ssl.SSLError:
            raise  # some SSLErrors are ValueErrors
        except ValueError as error:
            raise Unreachable(
                f"{error}; check that {config.server} is an API server and not a proxy",
                side=config.side,
                what=what,
            ) from error


async def _read_response(connection: _Connection, head: http1.Head) -> UpgradeResponse:
    if head.status == 101:
        connection.transport.pause_reading()
        return UpgradeResponse(head, b"", connection)
    if head.status < 400:
        raise ValueError(f"the response to an upgrade has status {head.status}")
    body = await connection.body(head)
    connection.transport.abort()
    return UpgradeResponse(head, body, None)


# -- the connection ------------------------------------------------------------------------------


async def _connect_or_raise(config: ClientConfig, what: str) -> _Connection:
    try:
        return await _connect(config)
    except (ssl.SSLError, TimeoutError):
        raise  # mapped by the caller
    except OSError as error:
        proxy = config.proxy
        via = f"the proxy for {config.server}: " if proxy else ""
        message = connect_message(error, proxy or config.server)
        raise Unreachable(via + message, side=config.side, what=what) from error


async def _connect(config: ClientConfig) -> _Connection:
    """Connects to the API server, TLS included, through the proxy if one is configured."""
    name = config.server_hostname or config.host
    if config.proxy is None:
        return await _connect_tcp(config.host, config.port, config.ssl, name, config.tls_sessions)
    proxy = urlsplit(config.proxy)
    secure = proxy.scheme == "https"
    connection = await _connect_tcp(
        proxy.hostname or "",
        proxy.port or (443 if secure else 80),
        # As Go's transport: the cluster's CA verifies an https proxy.
        (config.ssl or ssl.create_default_context()) if secure else None,
        proxy.hostname or "",
    )
    try:
        await _open_proxy_tunnel(connection, config, proxy.username, proxy.password)
        if config.ssl is None:
            return connection
        inner = _Connection()
        layer = TlsLayer(config.ssl, lambda: inner, server_hostname=name)
        connection.hand_over(layer)
        await layer.ready
    except BaseException:
        connection.transport.abort()
        raise
    return inner


async def _connect_tcp(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    name: str,
    sessions: TlsSessionCache | None = None,
) -> _Connection:
    """Tries the addresses of the host in order, each for an equal share of CONNECT_TIMEOUT."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: Exception = OSError(f"no address found for {host}")
    for address in addresses:
        sock = tunnel_socket(address)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT / len(addresses)):
                await loop.sock_connect(sock, address[4])
        except OSError as error:  # TimeoutError is one
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return await _start(sock, context, name, sessions)
    raise failure


async def _start(
    sock: socket.socket, context: ssl.SSLContext | None, name: str, sessions: TlsSessionCache | None
) -> _Connection:
    loop = asyncio.get_running_loop()
    connection = _Connection()
    try:
        if context is None:
            await loop.create_connection(lambda: connection, sock=sock)
            return connection
        session = sessions.get(context, name) if sessions is not None else None
        layer = TlsLayer(context, lambda: connection, server_hostname=name, session=session)
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
    connection: _Connection, config: ClientConfig, user: str | None, password: str | None
) -> None:
    host = f"[{config.host}]" if ":" in config.host else config.host
    headers = [("Host", f"{host}:{config.port}"), ("User-Agent", USER_AGENT)]
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}".encode()
        headers.append(("Proxy-Authorization", "Basic " + base64.b64encode(pair).decode()))
    connection.transport.write(http1.request("CONNECT", f"{host}:{config.port}", headers))
    head = await connection.head()
    if not 200 <= head.status < 300:
        raise ConnectionError(f"the proxy answered {head.status} to CONNECT")


class _Connection(asyncio.Protocol):
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
        if len(self._buffer) > http1.HEAD_LIMIT + http1.BODY_LIMIT:
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

    async def head(self) -> http1.Head:
        """Reads a head. Raises ValueError if it is malformed, OSError if the connection ends."""
        return http1.parse(await self._until(self._head_bytes))

    def _head_bytes(self) -> bytes | None:
        end = self._buffer.find(http1.END)
        if end > http1.HEAD_LIMIT or (end < 0 and len(self._buffer) > http1.HEAD_LIMIT):
            raise ValueError("the response's head is too long")
        if end < 0:
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + len(http1.END)]
        return raw

    async def body(self, head: http1.Head) -> bytes:
        """Reads the body of that response. Raises as `head` does."""
        return await self._until(lambda: http1.body(head, bytes(self._buffer), ended=self._ended))

    async def _until(self, parse: Callable[[], bytes | None]) -> bytes:
        """Waits for data until ``parse`` returns a result."""
        while (result := parse()) is None:
            if self._ended:
                raise self._error or ConnectionResetError(errno.ECONNRESET, _CLOSED_EARLY)
            self._received = asyncio.get_running_loop().create_future()
            try:
                await self._received
            finally:
                self._received = None
        return result

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
