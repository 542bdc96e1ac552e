"""The UDP ports of a relay agent.

Datagrams of pods in the remote go to the bridge on its stream
(`bridge.relay.reverse.datagram_stream`), and the bridge's to the client that a frame names.

- The agent sends to a client only if a datagram of that client has arrived at that port in the last
  `CLIENT_TIMEOUT` seconds, or was answered since; it remembers at most `MAX_CLIENTS`, and forgets
  those first that were silent for the longest time. So a bridge cannot make it send to others.
- Datagrams that arrive while no bridge has a stream are dropped: clients of UDP repeat.
- Dropped datagrams are counted, and ``report`` gets the counts once a second while there are any.
  It returns whether it has passed them on; if not, they are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from bridge.net.datagram_socket import DatagramSocket, bound_socket
from bridge.relay.reverse.datagram_stream import DatagramStream, Flow, packed_address

log = logging.getLogger(__name__)

#: Seconds for which an idle client is remembered: longer than the bridge does
#: (`bridge.relay.reverse.home_pod_datagrams.FLOW_TIMEOUT`).
CLIENT_TIMEOUT = 180.0
#: Clients that are remembered.
MAX_CLIENTS = 8192
#: Seconds between reports of dropped datagrams.
REPORT_INTERVAL = 1.0


class AgentDatagrams:
    """See the module. ``host`` is the address to listen on; "" means all addresses."""

    def __init__(self, host: str, report: Callable[[Counter[str]], bool]) -> None:
        self._host = host
        self._report = report
        self._sockets: dict[int, DatagramSocket] = {}
        self._stream: DatagramStream | None = None
        self._clients: OrderedDict[Flow, _Client] = OrderedDict()
        self._dropped: Counter[str] = Counter()
        self._report_timer: asyncio.TimerHandle | None = None

    def listen(self, ports: frozenset[int]) -> frozenset[int]:
        """Listens on these ports only; returns those that could be opened."""
        for port in self._sockets.keys() - ports:
            self._sockets.pop(port).close()
        for port in sorted(ports - self._sockets.keys()):
            try:
                sock = bound_socket(self._host, port)
            except OSError as error:
                log.warning("relay: cannot listen on UDP port %d: %s", port, error)
                continue
            self._sockets[port] = DatagramSocket(sock, partial(self._received, port), self._drop)
        return frozenset(self._sockets)

    def set_stream(self, stream: DatagramStream | None) -> None:
        """Sends to this stream from now on, and aborts the previous one."""
        previous, self._stream = self._stream, stream
        if previous is not None:
            previous.abort()

    def new_stream(self) -> DatagramStream:
        """A stream for a bridge's connection, in place of the previous one."""
        stream = DatagramStream(self._answered, self._stream_closed)
        self.set_stream(stream)
        return stream

    def close(self) -> None:
        self.set_stream(None)
        self.listen(frozenset())
        self._clients.clear()
        if self._report_timer is not None:
            self._report_timer.cancel()
            self._report_timer = None

    # -- datagrams -------------------------------------------------------------------------

    def _received(self, port: int, datagram: bytes, sender: Any) -> None:
        """A datagram of a pod in the remote."""
        flow = Flow(port, sender[1], packed_address(sender[0]))
        self._remember(flow, sender)
        if self._stream is None:
            self._drop("no-bridge")
        elif result := self._stream.send(flow, datagram):
            self._drop(result)

    def _answered(self, stream: DatagramStream, flow: Flow, datagram: bytes) -> None:
        """A datagram of the bridge."""
        sock, client = self._sockets.get(flow.port), self._clients.get(flow)
        if stream is not self._stream:
            return
        if sock is None or client is None:
            self._drop("no-way")
            return
        self._remember(flow, client.address)
        if result := sock.send(datagram, client.address):
            self._drop(result)

    def _remember(self, flow: Flow, address: Any) -> None:
        """Registers activity of a client, and forgets idle ones."""
        now = asyncio.get_running_loop().time()
        client = self._clients.get(flow)
        if client is None:
            self._clients[flow] = _Client(address, now)
        else:
            client.active = now
            self._clients.move_to_end(flow)
        while self._clients:
            oldest, client = next(iter(self._clients.items()))
            if len(self._clients) <= MAX_CLIENTS and now - client.active <= CLIENT_TIMEOUT:
                return
            del self._clients[oldest]

    def _stream_closed(self, stream: DatagramStream) -> None:
        if stream is self._stream:
            self._stream = None

    # -- dropped datagrams -----------------------------------------------------------------

    def _drop(self, reason: str, count: int = 1) -> None:
        self._dropped[reason] += count
        self._schedule_report()

    def _schedule_report(self) -> None:
        if self._report_timer is None:
            loop = asyncio.get_running_loop()
            self._report_timer = loop.call_later(REPORT_INTERVAL, self._report_dropped)

    def _report_dropped(self) -> None:
        self._report_timer = None
        if self._report(self._dropped):
            self._dropped = Counter()
        else:
            self._schedule_report()


class _Client:
    """A client's address as the socket has it, and the loop's time of its last datagram."""

    __slots__ = ("active", "address")

    def __init__(self, address: Any, active: float) -> None:
        self.address = address
        self.active = active
