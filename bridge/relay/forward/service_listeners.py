"""Listens at home for Services whose pods are in the remote (see
`sync.relay.forward_controller.Listeners`).

Guarantees:

- Clients reach only the pods that a `ForwardPlan` names, and only through `serve`.
- The bridge listens on ports of `--relay-ports`, or else of the system's range of ephemeral ports,
  whatever previous ports a caller names: users can forge these.
- An endpoint port that is no longer in the plan stays open for `LINGER` seconds.
- There are no more listeners than `RelaySettings.listeners`; a namespace leaves as many of these
  free as it has (`bridge.net.open_file_budget`).

For accepted connections see `bridge.relay.forward.remote_pod_connections`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from bridge.base.join_settings import PortRange, RelaySettings
from bridge.net.listening_socket import listening_socket
from bridge.net.open_file_budget import NamespaceLimit
from bridge.relay.forward.balancer import Balancer
from bridge.relay.forward.headless_service_listeners import HeadlessServiceListeners, create_server
from bridge.relay.forward.relay_cidr_route import LocalRoute
from bridge.relay.forward.remote_pod_connections import RemotePodConnections, ServiceUsage
from bridge.relay.relay_counters import RelayMetrics
from sync.cache.store import Key
from sync.kube.transport import Transport
from sync.relay.forward_controller import OnLimited, PortUnavailableError
from translators.relay.forward_plan import EndpointPort, ForwardPlan

#: Seconds for which an endpoint port stays open after it is no longer published: kube-proxies learn
#: of that at their own pace, mostly within a second.
LINGER = 10.0
#: Linux's setting of the ephemeral ports: the first and the last.
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class _ListeningService:
    """The listeners of one Service, with a balancer per port of the Service."""

    def __init__(self, key: Key, usage: ServiceUsage) -> None:
        self.key = key
        self.usage = usage
        self.balancers: dict[str, Balancer] = {}
        self.servers: dict[EndpointPort, asyncio.Server] = {}
        self.closing: dict[EndpointPort, asyncio.TimerHandle] = {}


class ServiceListeners:
    """The listeners of one engine. ``metrics`` may outlive it."""

    def __init__(
        self, remote: Transport, *, address: str, settings: RelaySettings, metrics: RelayMetrics
    ) -> None:
        self._address = address
        self._allowed_ports = settings.ports
        self._metrics = metrics
        self._services: dict[Key, _ListeningService] = {}
        self._connections = RemotePodConnections(remote, settings=settings, metrics=metrics)
        self._limit = NamespaceLimit(settings.listeners)
        metrics.listening_limit = settings.listeners
        self._route: LocalRoute | None = None
        self.pod_listeners: HeadlessServiceListeners | None = None
        """See `sync.relay.forward_controller.Listeners`; None without `--relay-cidr`."""
        if settings.cidr is not None:
            self._route = LocalRoute(settings.cidr)
            self.pod_listeners = HeadlessServiceListeners(
                self._connections, self._route, self._limit, metrics
            )

    async def serve(
        self, key: Key, plan: ForwardPlan, previous_ports: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        """See `sync.relay.forward_controller.Listeners`. Calls for one key must not overlap."""
        wanted = plan.endpoint_ports
        service = self._services.get(key)
        if service is None:
            if not wanted:
                return {}
            service = _ListeningService(key, self._connections.service_usage(key))
            self._services[key] = service
        for name in {*service.balancers, *plan.backends}:
            balancer = service.balancers.setdefault(name, Balancer())
            balancer.update(plan.backends.get(name, ()), plan.affinity_seconds)
        loop = asyncio.get_running_loop()
        for port in [*service.servers]:
            if port not in wanted and port not in service.closing:
                timer = loop.call_later(LINGER, self._close, service, port)
                service.closing[port] = timer
        for port in wanted:
            if closing := service.closing.pop(port, None):
                closing.cancel()
            if port not in service.servers:
                await self._listen(service, port, previous_ports.get(port))
        return {port: service.servers[port].sockets[0].getsockname()[1] for port in wanted}

    async def _listen(
        self, service: _ListeningService, port: EndpointPort, previous: int | None
    ) -> None:
        accept = partial(self._connections.accept, service.usage, service.balancers[port.port])
        server = await create_server(
            self._limit, service.key.namespace, partial(self._bind, previous), accept
        )
        service.servers[port] = server
        self._metrics.listening += 1
        await server.start_serving()

    def _bind(self, previous: int | None) -> socket.socket:
        """Listens on the previous port if possible, else on a free one. Raises
        PortUnavailableError."""
        candidates = [*self._allowed_ports] if self._allowed_ports is not None else [0]
        if previous is not None and previous in (self._allowed_ports or _ephemeral_ports()):
            candidates.insert(0, previous)
        for port in candidates:
            try:
                return listening_socket(self._address, port)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PortUnavailableError(
                        f"the bridge cannot listen on {self._address}: {error.strerror or error}; "
                        "set --relay-address to an address of the bridge's node"
                    ) from error
        raise PortUnavailableError(
            f"no port of --relay-ports {self._allowed_ports} is free for the bridge; add ports: "
            "the relay needs one per port of a Service and ready pod behind it, up to 16 pods"
        )

    def _close(self, service: _ListeningService, port: EndpointPort) -> None:
        service.closing.pop(port, None)
        server = service.servers.pop(port, None)
        if server is not None:
            server.close()
            self._limit.release(service.key.namespace)
            self._metrics.listening -= 1
        if not service.servers and self._services.get(service.key) is service:
            del self._services[service.key]

    async def run(self, on_limited: OnLimited) -> NoReturn:
        """Forwards connections until cancelled, then closes listeners and connections."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._connections.run(on_limited), name="relay-connections")
                if self._route is not None:
                    await self._route.hold()
            raise AssertionError("it runs until it is cancelled")
        finally:
            if self.pod_listeners is not None:
                self.pod_listeners.close()
            for service in [*self._services.values()]:
                for timer in service.closing.values():
                    timer.cancel()
                for port in [*service.servers]:
                    self._close(service, port)


def _ephemeral_ports() -> PortRange:
    """The ports among which the system chooses one for port 0."""
    try:
        first, last = _EPHEMERAL_PORTS.read_text().split()
    except OSError:
        return PortRange(49152, 65535)  # RFC 6335, 6
    return PortRange(int(first), int(last))
