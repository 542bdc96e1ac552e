"""Listens at home for Services whose pods are in the remote.

Guarantees:

- Only ports of pods that a plan names are reached (`translators.relay.forward`), by `serve` alone.
- A place that is not wanted any more is still listened on for `LINGER` seconds.
- What is promised of each connection: `connections`.
- No more ports are listened on than `RelaySettings.listeners` says; of these a namespace leaves as
  many free as it has (`bridge.net.limits`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from typing import NoReturn

from bridge.base.settings import RelaySettings
from bridge.net.limits import NamespaceLimit
from bridge.relay.forward.balancer import Balancer
from bridge.relay.forward.connections import AcceptedConnection, ForwardConnections, ServiceUsage
from bridge.relay.forward.local_route import LocalRoute
from bridge.relay.forward.pod_listeners import PodListeners, check_listener_limit
from bridge.relay.metrics import RelayMetrics
from sync.cache.store import Key
from sync.kube.credentials import ClientConfig
from sync.kube.sockets import enable_keepalive
from sync.relay.forward import OnLimited, PortUnavailableError
from translators.relay.forward import EndpointPort, ForwardPlan

#: Seconds for which a place is listened on after it is no longer published: kube-proxies learn of
#: that at their own pace, within a second mostly.
LINGER = 10.0
#: Connections that the system keeps until they are taken.
_BACKLOG = 1024


class _ListeningService:
    """One Service: what is open for it, and where it is listened on."""

    def __init__(self, key: Key, share: ServiceUsage) -> None:
        self.key = key
        self.share = share
        self.ports: dict[str, Balancer] = {}
        self.sockets: dict[EndpointPort, asyncio.Server] = {}
        self.numbers: dict[EndpointPort, int] = {}
        self.ending: dict[EndpointPort, asyncio.TimerHandle] = {}


class ServiceListeners:
    """What `sync.relay.forward` has listen. One for each engine; ``measures`` may outlive it."""

    def __init__(
        self,
        remote: ClientConfig,
        *,
        address: str,
        settings: RelaySettings,
        metrics: RelayMetrics,
        linger: float = LINGER,
    ) -> None:
        self._address = address
        self._ports = settings.ports
        self._measures = metrics
        self._linger = linger
        self._served: dict[Key, _ListeningService] = {}
        self._connections = ForwardConnections(remote, asked=settings, measures=metrics)
        self._limit = NamespaceLimit(settings.listeners)
        metrics.listening_limit = settings.listeners
        self._range: LocalRoute | None = None
        self._doors: PodListeners | None = None
        if settings.cidr is not None:
            self._range = LocalRoute(settings.cidr)
            self._doors = PodListeners(self._connections, self._range, self._limit, metrics)

    # -- listening -------------------------------------------------------------------------

    @property
    def pod_listeners(self) -> PodListeners | None:
        """See `sync.relay.forward.Listeners`; there where a range was asked for."""
        return self._doors

    async def serve(
        self, key: Key, plan: ForwardPlan, known: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        """See `sync.relay.forward.Listeners`. One call for a key at a time."""
        places = plan.endpoint_ports
        served = self._served.get(key)
        if served is None:
            if not places:
                return {}
            served = self._served[key] = _ListeningService(
                key, self._connections.service_usage(key)
            )
        for port in {*served.ports, *plan.backends}:
            balance = served.ports.setdefault(port, Balancer())
            balance.update(plan.backends.get(port, ()), plan.affinity_seconds)
        loop = asyncio.get_running_loop()
        for place in [*served.sockets]:
            if place not in places and place not in served.ending:
                later = loop.call_later(self._linger, self._close, served, place)
                served.ending[place] = later
        for place in places:
            if timer := served.ending.pop(place, None):
                timer.cancel()
            if place not in served.sockets:
                await self._listen(served, place, known.get(place))
        return {place: served.numbers[place] for place in places}

    async def _listen(
        self, served: _ListeningService, place: EndpointPort, wish: int | None
    ) -> None:
        namespace = served.key.namespace
        check_listener_limit(self._limit, namespace)
        sock = self._bound(wish)
        balance = served.ports[place.port]

        def arrival() -> AcceptedConnection:
            return AcceptedConnection(self._connections, served.share, balance)

        loop = asyncio.get_running_loop()
        self._limit.acquire(namespace)
        try:
            server = await loop.create_server(arrival, sock=sock, backlog=_BACKLOG)
        except BaseException:
            self._limit.release(namespace)
            raise
        served.sockets[place] = server
        served.numbers[place] = sock.getsockname()[1]
        self._measures.listening += 1

    def _bound(self, wish: int | None) -> socket.socket:
        """A socket of ours: on the port that is wished for if that can be. Raises NoPort."""
        candidates = [*self._ports] if self._ports is not None else [0]
        if wish is not None and (self._ports is None or wish in self._ports):
            candidates.insert(0, wish)
        for port in candidates:
            try:
                return _socket(self._address, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    why = error.strerror or error
                    raise PortUnavailableError(
                        f"the bridge cannot listen on {self._address}: {why}; give --relay-address "
                        "an address of the machine that it runs on"
                    ) from error
        raise PortUnavailableError(
            f"no port of --relay-ports {self._ports} is free for the bridge to listen on; give it "
            "more: one for each port of a Service and each ready pod behind it, up to 16"
        )

    def _close(self, served: _ListeningService, place: EndpointPort) -> None:
        served.ending.pop(place, None)
        served.numbers.pop(place, None)
        server = served.sockets.pop(place, None)
        if server is not None:
            server.close()
            self._limit.release(served.key.namespace)
            self._measures.listening -= 1
        if not served.sockets and self._served.get(served.key) is served:
            del self._served[served.key]

    async def run(self, limited: OnLimited) -> NoReturn:
        """Carries connections until cancelled, and ends all that is open then."""
        try:
            async with asyncio.TaskGroup() as group:
                carrying = self._connections.run(limited)
                group.create_task(carrying, name="relay-connections")
                if self._range is not None:
                    await self._range.hold()
            raise AssertionError("it runs until it is cancelled")
        finally:
            if self._doors is not None:
                self._doors.close()
            for served in [*self._served.values()]:
                for timer in served.ending.values():
                    timer.cancel()
                for place in [*served.sockets]:
                    self._close(served, place)


def _socket(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    enable_keepalive(sock)
    sock.setblocking(False)
    return sock
