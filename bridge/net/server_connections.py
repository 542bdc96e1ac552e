"""The connections of a server, and how long and how many may wait.

The kubelet API, the webhook of offloaded namespaces and the health port have a `Connections` each.

A connection *waits* while it has no request that was let in: in its handshake, before and between
requests, while it is found out who calls, and while the last of an answer is written. Guarantees:

- At most `MAX_WAITING` wait. One more ends the one that has waited longest, so that whoever opens
  connections in bulk keeps nobody else out. What has been let in does not count: a log that is
  followed, or a tunnel, ends when its ends do.
- None waits longer than `WAITING` seconds, so a head that comes byte by byte, a peer that is silent
  and one that does not read its answer are bounded.
- None refuses to read for longer than `STALLED`.
- A `PlainConnection` waits from its beginning to its end, whatever it asks.
- After `outdate` the connections of until then end: at once between two requests, else after the
  answer to the one that has come or, where none has yet, the first. A client asks again where a
  connection that it has used ends, but not where a new one does.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web

from sync.kube.tls_layer import TlsLayer

#: A head has 1 MiB at most (`bridge.kubelet.server`), so strangers can take up 128 MiB. An API
#: server keeps up to 25 idle connections to a node (k8s.io/client-go/transport/cache.go).
MAX_WAITING = 128
#: Seconds. API servers give an idle connection up after 90; it is better that they do so first.
WAITING_TIMEOUT = 120.0
#: Seconds, as a kubelet's limit for writing an answer (pkg/kubelet/server: 4 hours): a person may
#: leave a log standing in a pager.
STALL_TIMEOUT = 4 * 3600.0


class ServerConnections:
    """Those that are open. ``most`` is how many may wait, `MAX_WAITING` unless given, and
    ``seconds`` for how long, `WAITING` unless given."""

    def __init__(self, *, max_waiting: int | None = None, timeout: float | None = None) -> None:
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._open: set[AnyConnection] = set()
        # In the order in which they began to wait.
        self._waiting: dict[AnyConnection, asyncio.TimerHandle] = {}

    def opened(self, connection: AnyConnection) -> None:
        """It is there, and waits."""
        self._open.add(connection)
        self._start_waiting(connection)

    def closed(self, connection: AnyConnection) -> None:
        """It is gone."""
        self._open.discard(connection)
        self._stop_waiting(connection)

    @contextmanager
    def request_in_progress(self, request: web.BaseRequest) -> Iterator[None]:
        """A request has come over its connection and is answered."""
        connection = self._connection_of(request)
        if connection is not None:
            connection.busy = connection.used = True
        try:
            yield
        finally:
            if connection is not None:
                connection.busy = False
                if connection.closing_gracefully:
                    request.protocol.close()  # after this answer

    @contextmanager
    def admitted(self, request: web.BaseRequest) -> Iterator[None]:
        """The request was let in, so its connection does not wait."""
        connection = self._connection_of(request)
        if connection is not None:
            self._stop_waiting(connection)
        try:
            yield
        finally:
            if connection is not None and connection in self._open:
                self._start_waiting(connection)

    def close_gracefully(self) -> None:
        """Ends all that are open, without harm to a request."""
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
    """One connection of a client to us."""

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
        """Whether it has a request that is being answered."""
        self.used = False
        """Whether it has ever had one."""
        self.closing_gracefully = False
        """Whether what it was accepted by has changed since."""

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
    """One connection without TLS, of a client to ``above``."""

    def __init__(self, above: asyncio.Protocol, connections: ServerConnections) -> None:
        self._above = above
        self._connections = connections
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """Ends it at once."""
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
