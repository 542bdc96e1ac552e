"""The accepted connections of a server, bounded in number and waiting time.

The kubelet API, the webhook of offloaded namespaces and the health port have one
`ServerConnections` each.

A connection *waits* while it has no admitted request: during the handshake, before and between
requests, during authentication and authorization, and while the end of a response is written.
Guarantees:

- At most `MAX_WAITING` connections wait. One more aborts the one that has waited longest, so that
  a caller who opens connections in bulk keeps no other caller out. Admitted requests do not
  count: a followed log or a tunnel ends when its ends do.
- None waits longer than `WAITING_TIMEOUT` seconds. This bounds request heads that arrive byte by
  byte, silent peers, and peers that do not read their response.
- None refuses to read for longer than `STALL_TIMEOUT`.
- A `PlainConnection` waits from start to end, for every request.
- `close_gracefully` ends the connections that are open: at once between two requests, otherwise
  after the response to the current or, if there was none yet, the first request. A client retries
  when a used connection closes, but not when a new one does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web

from sync.kube.layered_transport import TlsLayer

#: A request head of a caller without a certificate has 32 KiB (`bridge.net.http_server.MAX_HEAD`).
#: An API server keeps up to 25 idle connections to a node (k8s.io/client-go/transport/cache.go).
MAX_WAITING = 128
#: Seconds. API servers close idle connections after 90, and should do so first.
WAITING_TIMEOUT = 120.0
#: Seconds, like a kubelet's limit for writing a response (pkg/kubelet/server: 4 hours): a user may
#: leave a log open in a pager.
STALL_TIMEOUT = 4 * 3600.0


class ServerConnections:
    """The open connections. At most ``max_waiting`` wait (default `MAX_WAITING`), for ``timeout``
    seconds (default `WAITING_TIMEOUT`)."""

    def __init__(self, *, max_waiting: int | None = None, timeout: float | None = None) -> None:
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._open: set[AnyConnection] = set()
        # In the order in which they began to wait.
        self._waiting: dict[AnyConnection, asyncio.TimerHandle] = {}

    def opened(self, connection: AnyConnection) -> None:
        self._open.add(connection)
        self._start_waiting(connection)

    def closed(self, connection: AnyConnection) -> None:
        self._open.discard(connection)
        self._stop_waiting(connection)

    @contextmanager
    def request_in_progress(self, request: web.BaseRequest) -> Iterator[None]:
        """Marks the request's connection as busy."""
        connection = self._connection_of(request)
        if connection is not None:
            connection.busy = connection.used = True
        try:
            yield
        finally:
            if connection is not None:
                connection.busy = False
                if connection.closing_gracefully:
                    request.protocol.close()  # after this response

    @contextmanager
    def admitted(self, request: web.BaseRequest) -> Iterator[None]:
        """The request is admitted: its connection does not wait until the response is complete."""
        connection = self._connection_of(request)
        if connection is not None:
            self._stop_waiting(connection)
        try:
            yield
        finally:
            if connection is not None and connection in self._open:
                self._start_waiting(connection)

    def close_gracefully(self) -> None:
        """Ends all open TLS connections without failing a request."""
        for connection in [it for it in self._open if isinstance(it, TlsConnection)]:
            connection.closing_gracefully = True
            if connection.used and not connection.busy:
                connection.close()

    def _connection_of(self, request: web.BaseRequest) -> TlsConnection | None:
        transport = request.transport
        return transport if isinstance(transport, TlsConnection) else None

    def _start_waiting(self, connection: AnyConnection) -> None:
        if len(self._waiting) >= (self._max_waiting or MAX_WAITING):
            oldest = next(iter(self._waiting))
            self._stop_waiting(oldest)
            oldest.abort()
        timer = asyncio.get_running_loop().call_later(
            self._timeout or WAITING_TIMEOUT, connection.abort
        )
        self._waiting[connection] = timer

    def _stop_waiting(self, connection: AnyConnection) -> None:
        timer = self._waiting.pop(connection, None)
        if timer is not None:
            timer.cancel()


class TlsConnection(TlsLayer):
    """One TLS connection of a client."""

    def __init__(
        self,
        context: ssl.SSLContext,
        above: Callable[[], asyncio.Protocol],
        connections: ServerConnections,
    ) -> None:
        super().__init__(context, above, server_side=True)
        self._connections = connections
        self._stall_timer: asyncio.TimerHandle | None = None
        self.busy = False
        """Whether a request is in progress."""
        self.used = False
        """Whether there has ever been a request."""
        self.closing_gracefully = False
        """Whether it ends after the current or next response."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._stall_timer = asyncio.get_running_loop().call_later(STALL_TIMEOUT, self.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class PlainConnection(asyncio.Protocol):
    """One connection without TLS; ``above`` is its protocol."""

    def __init__(self, above: asyncio.Protocol, connections: ServerConnections) -> None:
        self._above = above
        self._connections = connections
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.opened(self)
        self._above.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        self._above.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._above.data_received(data)

    def eof_received(self) -> bool | None:
        return self._above.eof_received()

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()


AnyConnection = TlsConnection | PlainConnection
