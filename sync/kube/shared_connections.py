"""Long-lived GETs to one API server that share HTTP/2 connections.

A bridge holds thousands of watches of single objects. Over HTTP/1.1 each takes a TLS connection of
some 300 KB in the bridge; over HTTP/2 `MAX_STREAMS` share one.

- A connection is opened when the others are full, and closed with its last response.
- Requests after a change of address, CA or credential use new connections.
- `get` returns None where the server, or a proxy in front of it, does not speak HTTP/2: the caller
  uses HTTP/1.1. It is asked again after the kubeconfig has been read again.
- `get` also returns None for a 401, and if the server sends GOAWAY before a response. API servers
  send a GOAWAY with each 401 (`Unauthorized` in k8s.io/apiserver's endpoints/filters), and h2 drops
  the frames after it. Over HTTP/1.1 the caller gets the whole 401, and renews the credential.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable

from yarl import URL

from sync.kube.http2_connection import MAX_STREAMS as MAX_STREAMS  # noqa: PLC0414  # re-exported
from sync.kube.http2_connection import GoAwayError, Http2Connection, Http2Response
from sync.kube.raw_connection import CONNECT_TIMEOUT, Dialer

#: Headers of HTTP/1.1 requests that HTTP/2 forbids, or that a stream of small chunks does not need.
_OMITTED = frozenset({"connection", "host", "accept-encoding"})


class SharedConnections:
    """The connections of ``dialer``."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        # The connections that take further requests, by the TLS context they were opened with.
        self._open: dict[Http2Connection, ssl.SSLContext] = {}
        self._without_http2: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<SharedConnections {len(self._open)}>"

    async def get(self, url: URL, headers: Iterable[tuple[str, str]]) -> Http2Response | None:
        """Sends a GET and waits for the head of the response; None if the caller must use HTTP/1.1.
        Raises OSError."""
        context = self._dialer.credentials.tls_http2
        if context is None or self._without_http2 is context:
            return None
        async with self._lock:
            self._dialer.check_address(url.raw_host, url.port)
            connection = self._with_room(context) or await self._connect(context)
            if connection is None:
                return None
            response = connection.get(_encode(url, headers))
        try:
            await response.head()
        except GoAwayError:
            return None
        except BaseException:
            response.close()
            raise
        if response.status == 401:
            response.close()
            return None
        return response

    def close(self) -> None:
        """Ends the connections and their responses."""
        for connection in list(self._open):
            connection.abort()

    def _with_room(self, context: ssl.SSLContext) -> Http2Connection | None:
        for connection, opened_with in self._open.items():
            if opened_with is context and connection.has_room:
                return connection
        return None

    async def _connect(self, context: ssl.SSLContext) -> Http2Connection | None:
        if self._without_http2 is context:
            return None  # found out while this call waited for the lock
        async with asyncio.timeout(CONNECT_TIMEOUT):
            raw = await self._dialer.connect(context)
            tls = raw.transport.get_extra_info("ssl_object")
            if tls is None or tls.selected_alpn_protocol() != "h2":
                raw.transport.abort()
                self._without_http2 = context
                return None
            connection = Http2Connection(self._ended)
            raw.hand_over(connection)
            self._open[connection] = context
            try:
                await connection.ready()
            except BaseException:
                connection.abort()
                raise
        if not connection.has_room:  # the server permits no streams
            connection.abort()
            self._without_http2 = context
            return None
        return connection

    def _ended(self, connection: Http2Connection) -> None:
        self._open.pop(connection, None)


def _encode(url: URL, headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    pairs = [
        (":method", "GET"),
        (":scheme", url.scheme),
        (":authority", url.raw_authority.rpartition("@")[2]),
        (":path", url.raw_path_qs),
        *((name.lower(), value) for name, value in headers if name.lower() not in _OMITTED),
    ]
    return [(name.encode(), value.encode()) for name, value in pairs]
