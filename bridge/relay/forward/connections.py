"""Connections to ports of the bridge, each carried to a pod of the remote.

Guarantees:

- A connection is taken, then a pod is chosen and a way to it is opened; of pods to which there is
  none, `TRIES` are tried. Until then no more than one read of the client is held. A client for whom
  there is nothing (no pod, no way, too many connections) is reset at once, so that it knows.
- Connections that are carried are not cut when their pod is no longer ready, or when their Service
  goes: they end when either side does, or after the idle time.
- An end that is not in order, on the remote's side, resets the client: it must not take a part for
  the whole.
- There are no more connections than the limits say, in all and for each Service, at once and a
  second; at once, a namespace leaves as many free as it has (`bridge.net.limits`). What
  comes faster waits, `PATIENCE` and `TURN_SECONDS` at most; Services take turns. ``limited`` is
  called for each connection that is rejected so.

What stands costs no task: a connection has one while a way is opened, and then a `Tunnel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from typing import NoReturn, cast
from weakref import WeakValueDictionary

from bridge.base.settings import RelaySettings
from bridge.net.limits import NamespaceLimit
from bridge.net.port_forward import OPEN_TIMEOUT, PortForwardTransport, open_port_forward
from bridge.net.tunnel import Tunnel, TunnelEnd
from bridge.relay.forward.balancer import Balancer
from bridge.relay.forward.rate_limit import FairLimiter, TokenBucket
from bridge.relay.metrics import RelayMetrics
from sync.base import exceptions
from sync.cache.store import Key
from sync.kube.credentials import ClientConfig
from sync.kube.errors import KubeError
from sync.kube.http_upgrade import UpgradeResponse
from sync.relay.forward import OnLimited
from sync.runtime.log_fields import name_fields
from translators.relay.forward import Backend

log = logging.getLogger(__name__)

#: Pods that are tried for one connection.
TRIES = 3
#: Ways that are opened at once: each is a TLS handshake, and clients that come by the thousand must
#: not keep all else from its turn.
DIALS = 64
#: Looks at who is silent in the time after which a connection is closed for that: it may last
#: longer by that part.
_LOOKS = 20
#: Seconds that a connection waits where those of its Service come too fast.
PATIENCE = 4.0
#: Seconds that it waits for its turn among all: on a busy machine some hundred that come at once
#: take more than a few.
TURN_SECONDS = 30.0
#: Seconds that a pod may be silent after its client has ended its own direction: while it owes an
#: answer, and where it has sent some of it.
HALF_OPEN, ANSWERED = 60.0, 10.0
#: A client that has closed looks the same as one that was answered in part, and the pod cannot be
#: told. Where clients come and go fast each would stay for so long, and take another's room: when
#: those that are waited for are more than this part of a limit, the seconds are these.
LINGERING, HURRIED = 0.1, 1.0
_LINGER_ZERO = struct.pack("ii", 1, 0)


class ServiceUsage:
    """What one Service has of all that is carried."""

    __slots__ = ("__weakref__", "key", "open", "rate_limit")

    def __init__(self, key: Key, rate: float) -> None:
        self.key = key
        self.open = 0
        self.rate_limit = TokenBucket(rate)


class ForwardConnections:
    """All of one bridge's. ``measures`` may outlive it."""

    def __init__(
        self, remote: ClientConfig, *, asked: RelaySettings, measures: RelayMetrics
    ) -> None:
        self._remote = remote
        self._limits = asked
        self._measures = measures
        self._turns = FairLimiter(DIALS, asked.rate)
        self._group: asyncio.TaskGroup | None = None
        self._limited: OnLimited = lambda _, __: None
        self._limit = NamespaceLimit(asked.connections)
        measures.limit = asked.connections
        self._carried: set[_ForwardedConnection] = set()
        self._lingering: set[_ForwardedConnection] = set()
        self._look: asyncio.TimerHandle | None = None
        # A Service that comes back has what is still open for it.
        self._shares: WeakValueDictionary[Key, ServiceUsage] = WeakValueDictionary()

    def service_usage(self, key: Key) -> ServiceUsage:
        """The Service's, for as long as somebody holds it."""
        return self._shares.setdefault(key, ServiceUsage(key, self._limits.service_rate))

    async def run(self, limited: OnLimited) -> NoReturn:
        """Carries connections until cancelled, and ends all that is open then."""
        self._limited = limited
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None  # what still comes is reset
            raise AssertionError("it runs until it is cancelled")
        finally:
            self._turns.close()
            if self._look is not None:
                self._look.cancel()
            for carried in [*self._carried]:
                carried.tunnel.abort()
                self.ended(carried)

    def accept(self, share: ServiceUsage, balance: Balancer, arrival: AcceptedConnection) -> None:
        """A connection was made to a port of the Service."""
        group, limits, namespace = self._group, self._limits, share.key.namespace
        if group is None:
            reset(arrival.client)
        elif reason := self._limit.exceeded(namespace):
            said = f"the bridge carries {self._limit.used} (--relay-connections)"
            if reason == "namespace-limit":
                said = (
                    f"namespace {namespace} has {self._limit.used_by(namespace)} open, its "
                    f"share of {limits.connections} (--relay-connections)"
                )
            self._refuse(share, arrival, reason, said)
        elif share.open >= limits.per_service:
            said = f"it has {share.open} open (--relay-service-connections)"
            self._refuse(share, arrival, "service-limit", said)
        else:
            now = asyncio.get_running_loop().time()
            wait = share.rate_limit.take(now, PATIENCE)
            if wait is None:
                said = f"more than {limits.service_rate:g} come a second (--relay-service-rate)"
                self._refuse(share, arrival, "service-rate", said)
                return
            self._limit.acquire(namespace)
            share.open += 1
            self._measures.open += 1
            work = self._begin(share, balance, arrival, wait)
            group.create_task(work, name=f"relay-{share.key}")

    def _refuse(
        self, share: ServiceUsage, arrival: AcceptedConnection, why: str, said: str
    ) -> None:
        self._measures.results[why] += 1
        reset(arrival.client)
        self._limited(share.key, said)

    # -- one connection --------------------------------------------------------------------

    async def _begin(
        self, share: ServiceUsage, balance: Balancer, arrival: AcceptedConnection, wait: float
    ) -> None:
        """One connection, until it is carried, or refused. Raises nothing."""
        stands = False
        try:
            if wait:
                await asyncio.sleep(wait)
            way = await self._way(share, balance, arrival)
            if isinstance(way, tuple):
                stands = self._join(share, arrival, *way)
                way = "done"
            if not stands:
                self._measures.results[way] += 1
        except Exception as error:  # noqa: BLE001  # one connection's defect must not end others
            log.error(  # noqa: TRY400  # without what the frames hold
                "relay: Service %s: a defect in the bridge; please report it: %s",
                share.key,
                exceptions.traced_summary(error),
                extra=name_fields("Service", share.key.name, namespace=share.key.namespace),
            )
        finally:
            if not stands:
                reset(arrival.client)
                self._gone(share)

    async def _way(
        self, share: ServiceUsage, balance: Balancer, arrival: AcceptedConnection
    ) -> tuple[Backend, UpgradeResponse] | str:
        """A way to a pod, or why there is none."""
        loop = asyncio.get_running_loop()
        peer = arrival.client.get_extra_info("peername")
        client = str(peer[0]) if peer else ""
        tried: list[Backend] = []
        # Where it takes so long, it is mostly the remote that is away, and not one pod.
        until = loop.time() + TURN_SECONDS + OPEN_TIMEOUT
        while len(tried) < TRIES and loop.time() < until:
            try:
                async with self._turns.slot(share.key, TURN_SECONDS):
                    backend = balance.pick(client, loop.time(), tried)
                    if backend is None:
                        break
                    tried.append(backend)
                    until = min(until, loop.time() + OPEN_TIMEOUT)
                    upgraded = await self._dial(share, backend)
            except TimeoutError:
                if not self._turns.is_rate_exhausted:
                    return "no-way"
                said = f"more than {self._limits.rate:g} come to the bridge a second (--relay-rate)"
                self._limited(share.key, said)
                return "rate"
            if upgraded is not None:
                return backend, upgraded
            balance.mark_failed(backend, loop.time())
        return "no-way" if tried else "no-pod"

    async def _dial(self, share: ServiceUsage, backend: Backend) -> UpgradeResponse | None:
        """A way to the pod; None where there is none."""
        try:
            with self._measures.dial_seconds.timed():
                upgraded = await open_port_forward(self._remote, backend)
        except KubeError as error:
            self._measures.dials["failed"] += 1
            said = "relay: Service %s: no way to pod %s/%s: %s"
            where = name_fields("Pod", backend.name, namespace=backend.namespace, cluster="remote")
            log.info(said, share.key, backend.namespace, backend.name, error, extra=where)
            return None
        self._measures.dials["ok"] += 1
        return upgraded

    def _join(
        self,
        share: ServiceUsage,
        arrival: AcceptedConnection,
        backend: Backend,
        upgraded: UpgradeResponse,
    ) -> bool:
        """Makes the two connections one; whether the client is still there."""
        if arrival.client.is_closing():
            upgraded.close()
            return False
        carried = _ForwardedConnection(self, share, backend, arrival.client)
        carried.tunnel = tunnel = Tunnel(
            self._measures.count_bytes,
            idle_timeout=None,
            half_open_timeout=HALF_OPEN,
            answered_timeout=carried.linger,
            on_close=carried.over,
        )
        self._carried.add(carried)
        self._look_later()
        channels = PortForwardTransport(tunnel.remote, carried.failed)
        try:
            # Both ends have their connections before either is given what came so far: a pod may
            # have spoken first, and even hung up.
            arrival.hand_over(tunnel.client)
            upgraded.take(channels)
            if not arrival.has_data:
                channels.release_write_buffer()
            arrival.resume(tunnel.client)
        except BaseException:
            self._carried.discard(carried)
            tunnel.abort()
            raise
        return True

    def _look_later(self) -> None:
        if self._look is None and self._carried:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(self._limits.idle / _LOOKS, self._end_the_silent)

    def _end_the_silent(self) -> None:
        self._look = None
        for carried in [*self._carried]:
            carried.tunnel.close_if_idle(self._limits.idle)
        self._look_later()

    def linger(self, carried: _ForwardedConnection) -> float:
        """Its client says no more, and was answered: the seconds for what may still come."""
        self._lingering.add(carried)
        room = LINGERING * min(self._limits.connections, self._limits.per_service)
        return ANSWERED if len(self._lingering) <= room else HURRIED

    def ended(self, carried: _ForwardedConnection) -> None:
        """Both ends of a connection are gone, or cut."""
        self._lingering.discard(carried)
        if carried in self._carried:
            self._carried.remove(carried)
            self._measures.results["failed" if carried.wrong else "done"] += 1
            self._gone(carried.share)

    def _gone(self, share: ServiceUsage) -> None:
        self._limit.release(share.key.namespace)
        share.open -= 1
        self._measures.open -= 1


class _ForwardedConnection:
    """One connection that stands."""

    __slots__ = ("_all", "_backend", "_client", "share", "tunnel", "wrong")

    tunnel: Tunnel

    def __init__(
        self,
        every: ForwardConnections,
        share: ServiceUsage,
        backend: Backend,
        client: asyncio.Transport,
    ) -> None:
        self._all = every
        self._backend = backend
        self._client = client
        self.share = share
        self.wrong = False

    def failed(self, why: str) -> None:
        """It does not end in order, on the remote's side."""
        self.wrong = True
        backend = self._backend
        log.info(
            "relay: Service %s: pod %s/%s port %d: %s",
            self.share.key,
            backend.namespace,
            backend.name,
            backend.port,
            why,
            extra=name_fields("Pod", backend.name, namespace=backend.namespace, cluster="remote"),
        )
        reset(self._client)

    def linger(self) -> float:
        """Seconds that the pod may be silent now that its client says no more."""
        return self._all.linger(self)

    def over(self) -> None:
        """Both ends are gone."""
        self._all.ended(self)


class AcceptedConnection(asyncio.Protocol):
    """A connection for which there is no way yet. What it says meanwhile is held, one read of it.

    uvloop begins to read after `connection_made`, whatever that says; so it is the first bytes that
    stop the reading.
    """

    __slots__ = ("_balance", "_connections", "_eof", "_held", "_share", "client")

    client: asyncio.Transport

    def __init__(
        self, connections: ForwardConnections, share: ServiceUsage, balance: Balancer
    ) -> None:
        self._connections = connections
        self._share = share
        self._balance = balance
        self._held = b""
        self._eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast("asyncio.Transport", transport)
        self._connections.accept(self._share, self._balance, self)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self.client.pause_reading()

    def eof_received(self) -> bool:
        self._eof = True
        return True  # it may still be answered

    @property
    def has_data(self) -> bool:
        """Whether the client has sent something."""
        return bool(self._held)

    def hand_over(self, end: TunnelEnd) -> None:
        """Makes this end of a tunnel the connection's protocol."""
        self.client.set_protocol(end)
        end.connection_made(self.client)

    def resume(self, end: TunnelEnd) -> None:
        """Gives that end what was held, and reads on."""
        if self._held:
            end.data_received(self._held)
            self._held = b""
        if self._eof:
            end.eof_received()
        elif not self.client.is_closing():
            self.client.resume_reading()


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection so that the peer sees that it is broken (RST); one that has ended stays as
    it is."""
    if transport.is_closing():
        return
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # It has ended already.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()
