"""Upgrades of HTTP/1.1 (exec, attach, port-forward) to an API server, on a connection of their own.

`open_upgrade` sends the request and reads the answer's head; what follows a 101 is not decoded but
handed, byte for byte, to the protocol that `UpgradeResponse.take` is given. Guarantees:

- Bytes that came with the head, or after it but before `take`, are not lost: they are the first
  that the protocol gets. At most one read of them is held.
- An answer of 400 and above is no exception here, since whoever asked wants its body as it is.
  Only where there is no such answer is it an error: `Unreachable`, `CertificateError`,
  `ClientConfigError`.
- After 401 the credential is read again and the request is made once more.
- A call that fails or is cancelled leaves no connection and no task behind. After a 101 the
  connection is the caller's: `take` it or `close` it.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from sync.kube import http1 as http
from sync.kube.credentials import ClientConfig
from sync.kube.errors import Unreachable
from sync.kube.sockets import ConnectionErrors, tunnel_socket
from sync.kube.tls_layer import TlsLayer
from sync.kube.tls_session_cache import TlsSessionCache
from sync.kube.transport import CONNECT_TIMEOUT, REQUEST_TIMEOUT

USER_AGENT = "cluster-bridge"
_HUNG_UP = "the server hung up before it answered"


class UpgradeResponse:
    """The answer to an upgrade: a connection to take over when `status` is 101, else an error."""

    def __init__(self, head: http.Head, body: bytes, wire: _Wire | None) -> None:
        self.head = head
        self.status = head.status
        self.body = body
        """What an answer of 400 and above says; empty for 101."""
        self._wire = wire

    def __repr__(self) -> str:
        return f"<Upgraded {self.status}>"

    def take(self, protocol: asyncio.Protocol) -> None:
        """Gives the connection to this protocol, from the first byte after the head on.

        Its `connection_made` is called, and from then on it hears everything, the end included
        when that has come already.
        """
        wire, self._wire = self._wire, None
        if wire is None:
            raise RuntimeError("there is no connection: the answer is no 101, or it was taken")
        wire.hand_over(protocol)

    def close(self) -> None:
        """Ends a connection that was not taken; else nothing."""
        if self._wire is not None:
            self._wire.transport.abort()
            self._wire = None


async def open_upgrade(
    config: ClientConfig,
    method: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
) -> UpgradeResponse:
    """Asks for an upgrade and returns the answer; see the module for what it guarantees.

    ``path`` comes quoted, ``query`` plain (bytes that are no UTF-8 as surrogate escapes).
    ``headers`` are those of the upgrade: ``Upgrade``, ``X-Stream-Protocol-Version``,
    ``Sec-WebSocket-*``. ``Host``, ``Connection`` and the credential are added.
    """
    seen = config.generation
    upgraded = await _open_once(config, method, path, query, headers)
    if upgraded.status == 401 and await config.renew(seen):
        upgraded = await _open_once(config, method, path, query, headers)
    return upgraded


async def _open_once(
    access: ClientConfig,
    method: str,
    path: str,
    query: Sequence[tuple[str, str]],
    headers: Sequence[tuple[str, str]],
) -> UpgradeResponse:
    what = f"{method} {path} (upgrade)"  # NB: not the query: a command line may hold a secret
    server = urlsplit(access.server)
    target = server.path + path
    if query:
        target += "?" + urlencode(query, quote_via=quote, errors="surrogateescape")
    message = http.request(
        method,
        target,
        [
            ("Host", server.netloc.rpartition("@")[2]),
            ("User-Agent", USER_AGENT),
            ("Connection", "Upgrade"),
            *headers,
            *access.headers(),
        ],
    )
    if access.unconfirmed:
        raise Unreachable(
            "its address has changed and is being checked", side=access.side, what=what
        )
    with ConnectionErrors(access.side, what, access.server, access.recheck_files):
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                wire = await _reached(access, what)
            try:
                wire.transport.write(message)
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    head = await _head(wire)
                    access.tls_sessions.put(wire.transport.get_extra_info("ssl_object"))
                    return await _answered(wire, head)
            except BaseException:
                wire.transport.abort()
                raise
        except ssl.SSLError:
            raise  # some are ValueErrors, too
        except ValueError as error:
            raise Unreachable(
                f"{error}; is {access.server} an API server, or a proxy before it?",
                side=access.side,
                what=what,
            ) from error


async def _head(wire: _Wire) -> http.Head:
    head = await wire.head()
    while 100 <= head.status < 200 and head.status != 101:
        head = await wire.head()
    return head


async def _answered(wire: _Wire, head: http.Head) -> UpgradeResponse:
    if head.status == 101:
        wire.transport.pause_reading()
        return UpgradeResponse(head, b"", wire)
    if head.status < 400:
        raise ValueError(f"the answer to an upgrade is {head.status}")
    body = await wire.body(head)
    wire.transport.abort()
    return UpgradeResponse(head, body, None)


# -- the connection ------------------------------------------------------------------------------


async def _reached(access: ClientConfig, what: str) -> _Wire:
    """As `_connect`; what the operating system says is put in plain words."""
    try:
        return await _connect(access)
    except (ssl.SSLError, TimeoutError):
        raise  # mapped by the caller
    except OSError as error:
        via = f" through the proxy {_without_user(access.proxy)}" if access.proxy else ""
        code = error.errno or 0  # one of getaddrinfo is below 0
        why = os.strerror(code) if code > 0 else error.strerror or error
        raise Unreachable(f"{access.server}{via}: {why}", side=access.side, what=what) from error


def _without_user(url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def _connect(access: ClientConfig) -> _Wire:
    """A connection to the API server, TLS included, through the proxy where there is one."""
    name = access.server_hostname or access.host
    if access.proxy is None:
        return await _dial(access.host, access.port, access.ssl, name, access.tls_sessions)
    proxy = urlsplit(access.proxy)
    secure = proxy.scheme == "https"
    wire = await _dial(
        proxy.hostname or "",
        proxy.port or (443 if secure else 80),
        # As Go's transport: the cluster's CA is what an https proxy is verified by.
        (access.ssl or ssl.create_default_context()) if secure else None,
        proxy.hostname or "",
    )
    try:
        await _tunnel_through(wire, access, proxy.username, proxy.password)
        return wire if access.ssl is None else await _secured(wire, access.ssl, name)
    except BaseException:
        wire.transport.abort()
        raise


async def _dial(
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    name: str,
    sessions: TlsSessionCache | None = None,
) -> _Wire:
    """Tries the host's addresses one after the other, each for its share of the time."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: Exception = OSError(f"{host} has no address")
    for address in found:
        sock = tunnel_socket(address)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT / len(found)):
                await loop.sock_connect(sock, address[4])
        except OSError as error:  # TimeoutError is one
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return await _established(sock, context, name, sessions)
    raise failure


async def _established(
    sock: socket.socket, context: ssl.SSLContext | None, name: str, sessions: TlsSessionCache | None
) -> _Wire:
    loop = asyncio.get_running_loop()
    wire = _Wire()
    try:
        if context is None:
            await loop.create_connection(lambda: wire, sock=sock)
            return wire
        session = sessions.get(context, name) if sessions is not None else None
        layer = TlsLayer(context, lambda: wire, server_hostname=name, session=session)
        transport, _ = await loop.create_connection(lambda: layer, sock=sock)
    except BaseException:
        sock.close()
        raise
    try:
        await layer.ready
    except BaseException:
        transport.abort()
        raise
    return wire


async def _secured(wire: _Wire, context: ssl.SSLContext, name: str) -> _Wire:
    """TLS inside of a connection that a proxy has opened."""
    inner = _Wire()
    layer = TlsLayer(context, lambda: inner, server_hostname=name)
    wire.hand_over(layer)
    await layer.ready
    return inner


async def _tunnel_through(
    wire: _Wire, access: ClientConfig, user: str | None, password: str | None
) -> None:
    host = f"[{access.host}]" if ":" in access.host else access.host
    headers = [("Host", f"{host}:{access.port}"), ("User-Agent", USER_AGENT)]
    if user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}".encode()
        headers.append(("Proxy-Authorization", "Basic " + base64.b64encode(pair).decode()))
    wire.transport.write(http.request("CONNECT", f"{host}:{access.port}", headers))
    head = await wire.head()
    if not 200 <= head.status < 300:
        raise ConnectionError(f"the proxy answered {head.status} to CONNECT")


class _Wire(asyncio.Protocol):
    """Holds what a connection says until somebody takes it over."""

    __slots__ = ("_ended", "_error", "_held", "_lost", "_news", "transport")

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._held = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._lost = False
        self._news: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > http.HEAD_LIMIT + http.BODY_LIMIT:
            self.transport.pause_reading()
        self._tell()

    def eof_received(self) -> bool:
        self._ended = True
        self._tell()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._lost = True
        self._error = exc
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def head(self) -> http.Head:
        """The next head. Raises ValueError when it is malformed, OSError when it does not come."""
        raw = await self._until(self._head_bytes)
        return http.parse(raw)

    def _head_bytes(self) -> bytes | None:
        end = self._held.find(http.END)
        if end > http.HEAD_LIMIT or (end < 0 and len(self._held) > http.HEAD_LIMIT):
            raise ValueError("the answer's head is too long")
        if end < 0:
            return None
        raw = bytes(self._held[:end])
        del self._held[: end + len(http.END)]
        return raw

    async def body(self, head: http.Head) -> bytes:
        """The body of that answer. Raises as `head` does."""
        return await self._until(lambda: http.body(head, bytes(self._held), ended=self._ended))

    async def _until(self, found: Callable[[], bytes | None]) -> bytes:
        while (result := found()) is None:
            if self._ended:
                raise self._error or ConnectionResetError(errno.ECONNRESET, _HUNG_UP)
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        return result

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Makes this protocol the connection's, with all that was held."""
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        # First this: what is held may already be too much for the protocol, so that it pauses.
        if not self._lost:
            self.transport.resume_reading()
        if self._held:
            protocol.data_received(bytes(self._held))
        if self._lost:
            protocol.connection_lost(self._error)
        elif self._ended and not protocol.eof_received():
            self.transport.close()
