"""Forwards datagrams that relay agents receive in the remote to pods at home, and the answers back.

A flow is what one client (address and port) sends to one port of a Service. It has a socket of its
own, connected to one pod: the pod can tell flows apart, and only that pod can answer.

- A flow stays with its pod while the pod is ready, whichever agent and port of the agent it arrives
  through. A new flow of the same client goes to the same pod while home's ready pods stay the same:
  the pod follows from a hash of the client and the pod (rendezvous hashing), so it is the same
  after a restart of the bridge, too. With session affinity the client's port does not count.
- An idle flow is forgotten, and its socket closed, after `EXCHANGE_TIMEOUT` seconds, or
  `FLOW_TIMEOUT` if it was answered and has lasted for `EXCHANGE_SECONDS`: the rules and numbers of
  Linux's connection tracking (nf_conntrack_udp_timeout, nf_conntrack_udp_timeout_stream), which is
  on the path in any case.
- Flows are limited in all and per namespace (`bridge.net.open_file_budget`). At the limit, a new
  flow takes the place of the one in its namespace that is idle for the longest time, if that is
  `EVICT_IDLE` seconds at least; otherwise its datagram is dropped.
- Nothing waits here: a datagram that a socket does not take is dropped. All drops are counted.
- The agent is not trusted: a frame leads to a ready pod of the route of its port, or nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, Protocol

from bridge.net.datagram_socket import DatagramSocket, connected_socket
from bridge.net.open_file_budget import NamespaceLimit
from bridge.net.splice import Direction
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse.datagram_stream import DatagramStream, Flow, QueuedBytes
from translators.object_accessors import HomeNamespace
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

#: Seconds until an idle flow is forgotten: one exchange, and one that lasts.
EXCHANGE_TIMEOUT, FLOW_TIMEOUT = 30.0, 120.0
#: Seconds after its first datagram in which a flow counts as one exchange.
EXCHANGE_SECONDS = 2.0
#: Seconds between two searches for idle flows.
SWEEP_INTERVAL = 5.0
#: Seconds that a flow must be idle to be replaced by a new one.
EVICT_IDLE = 1.0


class Agent(Protocol):
    """An agent's home namespace, and the current routes of its ports."""

    home: HomeNamespace
    routes: Mapping[int, ReverseRoute]


class HomePodDatagrams:
    """The flows of one engine. ``metrics`` may outlive it; ``limit`` is the number of flows."""

    def __init__(self, *, limit: int, metrics: ReverseRelayMetrics) -> None:
        self._metrics = metrics
        self._limit = NamespaceLimit(limit)
        self._queued = QueuedBytes()
        # In each namespace, the flow that is idle for the longest time comes first.
        self._flows: dict[HomeNamespace, OrderedDict[_FlowKey, _HomeFlow]] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    def new_stream(self, agent: Agent, preface: bytes) -> DatagramStream:
        """The stream of an agent, which sends ``preface`` first."""
        arrived = partial(self._arrived, agent)
        return DatagramStream(arrived, preface=preface, queued=self._queued)

    def update(self, home: HomeNamespace, routes: Mapping[int, ReverseRoute]) -> None:
        """Ends the namespace's flows whose pod is no longer ready."""
        targets = {
            (it.service, it.port): frozenset(it.targets) for it in routes.values() if it.is_udp
        }
        for key, flow in [*self._flows[home].items()] if home in self._flows else ():
            if flow.target not in targets.get((key.service, key.port), ()):
                self._end(flow)

    def close(self) -> None:
        """Ends all flows."""
        for flows in [*self._flows.values()]:
            for flow in [*flows.values()]:
                self._end(flow)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None

    # -- datagrams -------------------------------------------------------------------------

    def _arrived(
        self,
        agent: Agent,
        stream: DatagramStream,
        agent_flow: Flow,
        datagram: bytes,
    ) -> None:
        """A datagram of a client in the remote."""
        home, route = agent.home, agent.routes.get(agent_flow.port)
        if route is None or not route.is_udp or not route.targets:
            self._drop("no-pod")
            return
        key = _FlowKey(home, route.service, route.port, agent_flow.client, agent_flow.client_port)
        flow = self._flow(key) or self._begin(key, route, stream, agent_flow)
        if flow is None:
            return
        # Answers take the way of the latest datagram: kube-proxy may have chosen another agent.
        flow.stream, flow.agent_flow = stream, agent_flow
        self._touch(flow)
        if result := flow.socket.send(datagram):
            self._drop(result)
        else:
            self._count("in", datagram)

    def _answered(self, flow: _HomeFlow, datagram: bytes, _sender: object) -> None:
        """A datagram of a pod at home."""
        flow.is_answered = True
        self._touch(flow)
        if result := flow.stream.send(flow.agent_flow, datagram):
            self._drop(result)
        else:
            self._count("out", datagram)

    def _flow(self, key: _FlowKey) -> _HomeFlow | None:
        flows = self._flows.get(key.home)
        return flows.get(key) if flows is not None else None

    def _begin(
        self, key: _FlowKey, route: ReverseRoute, stream: DatagramStream, agent_flow: Flow
    ) -> _HomeFlow | None:
        """A new flow to a pod at home; None if there can be none."""
        if self._limit.exceeded(key.home) and not self._evict(key.home):
            self._drop("flows")
            return None
        client = agent_flow.client_address
        if not route.sticky:
            client += f" {agent_flow.client_port}"
        target = max(route.targets, key=lambda it: _weight(client, it))
        try:
            sock = connected_socket(*target)
        except OSError:
            self._drop("no-way")
            return None
        flow = _HomeFlow(key, target, stream, agent_flow, asyncio.get_running_loop().time())
        flow.socket = DatagramSocket(sock, partial(self._answered, flow), self._drop)
        self._flows.setdefault(key.home, OrderedDict())[key] = flow
        self._limit.acquire(key.home)
        self._metrics.flows += 1
        self._schedule_sweep()
        return flow

    # -- ends of flows ---------------------------------------------------------------------

    def _end(self, flow: _HomeFlow) -> None:
        del self._flows[flow.key.home][flow.key]
        if not self._flows[flow.key.home]:
            del self._flows[flow.key.home]
        self._limit.release(flow.key.home)
        self._metrics.flows -= 1
        flow.socket.close()

    def _evict(self, home: HomeNamespace) -> bool:
        """Ends the flow of the namespace that is idle for the longest time; returns False if none
        is idle for `EVICT_IDLE`."""
        flow = next(iter(self._flows[home].values())) if home in self._flows else None
        if flow is None or asyncio.get_running_loop().time() - flow.active < EVICT_IDLE:
            return False
        self._end(flow)
        return True

    def _touch(self, flow: _HomeFlow) -> None:
        flow.active = asyncio.get_running_loop().time()
        self._flows[flow.key.home].move_to_end(flow.key)

    def _schedule_sweep(self) -> None:
        if self._sweep_timer is None and self._limit.used:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(SWEEP_INTERVAL, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        now = asyncio.get_running_loop().time()
        for flows in [*self._flows.values()]:
            for flow in [*flows.values()]:
                if now - flow.active >= flow.timeout:
                    self._end(flow)
        self._schedule_sweep()

    # -- metrics ---------------------------------------------------------------------------

    def _drop(self, reason: str, count: int = 1) -> None:
        self._metrics.dropped[reason] += count

    def _count(self, direction: Direction, datagram: bytes) -> None:
        self._metrics.datagrams[direction] += 1
        self._metrics.count_bytes(direction, len(datagram))


class _FlowKey(NamedTuple):
    home: HomeNamespace
    service: str
    port: str
    client: bytes
    client_port: int


class _HomeFlow:
    """One flow. Times are the event loop's."""

    __slots__ = (
        "active",
        "agent_flow",
        "is_answered",
        "key",
        "socket",
        "started",
        "stream",
        "target",
    )

    socket: DatagramSocket

    def __init__(
        self,
        key: _FlowKey,
        target: HomeTarget,
        stream: DatagramStream,
        agent_flow: Flow,
        now: float,
    ) -> None:
        self.key = key
        self.target = target
        self.agent_flow = agent_flow
        self.stream = stream
        self.started = self.active = now
        self.is_answered = False

    @property
    def timeout(self) -> float:
        """The seconds after which the idle flow is forgotten."""
        lasts = self.is_answered and self.active - self.started >= EXCHANGE_SECONDS
        return FLOW_TIMEOUT if lasts else EXCHANGE_TIMEOUT


def _weight(client: str, target: HomeTarget) -> bytes:
    return hashlib.blake2b(f"{client}/{target}".encode(), digest_size=8).digest()
