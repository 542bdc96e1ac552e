"""Listens on the pod addresses of headless Services; each port leads to its own pod only.

Two headless Services may select the same port of a pod: the bridge listens on it once, and the
connections count as those of the Service that came first. A port that is no longer wanted is closed
at once; forwarded connections continue (`bridge.relay.forward.remote_pod_connections`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from bridge.net.listening_socket import BACKLOG, AcceptedConnection, listening_socket
from bridge.net.open_file_budget import NamespaceLimit
from bridge.relay.forward.balancer import Balancer
from bridge.relay.forward.relay_cidr_route import LocalRoute
from bridge.relay.forward.remote_pod_connections import RemotePodConnections, ServiceUsage
from bridge.relay.relay_counters import RelayMetrics
from sync.cache.store import Key
from sync.relay.forward_controller import PortUnavailableError
from translators.relay.forward_plan import Backend
from translators.relay.headless_forward_plan import ListenAddress

#: Causes that a user can remedy.
_BIND_FAILURES = {
    errno.EADDRINUSE: "a program on its node listens on that port at all addresses; make that "
    "program listen on its own address, or the pods on another port",
    errno.EACCES: "ports below 1024 require CAP_NET_BIND_SERVICE, or "
    "net.ipv4.ip_unprivileged_port_start=0 on its node",
}


class _PodPortListener:
    """One port of one pod."""

    def __init__(self, usage: ServiceUsage, server: asyncio.Server) -> None:
        self.namespace = usage.key.namespace
        """The namespace whose share of all listeners this one counts against."""
        self.usage = usage
        """The Service that the connections count as."""
        self.server = server
        self.balancer = Balancer()
        self.owners: dict[Key, ServiceUsage] = {}

    def add_owner(self, key: Key, usage: ServiceUsage, backend: Backend) -> None:
        """Adds a Service that selects this port, and sets the pod."""
        self.owners[key] = usage
        self.balancer.update((backend,), None)

    def remove_owner(self, key: Key) -> bool:
        """Removes a Service; returns whether it was the last. Then connections that are being set
        up are reset."""
        del self.owners[key]
        if not self.owners:
            self.balancer.update((), None)
            return True
        self.usage = next(iter(self.owners.values()))
        return False


class HeadlessServiceListeners:
    """Implements `sync.relay.headless_forward.AddressListeners`. ``metrics`` may outlive it."""

    def __init__(
        self,
        connections: RemotePodConnections,
        route: LocalRoute,
        limit: NamespaceLimit,
        metrics: RelayMetrics,
    ) -> None:
        self._connections = connections
        self._route = route
        self._limit = limit
        self._metrics = metrics
        self._listeners: dict[ListenAddress, _PodPortListener] = {}
        self._addresses_of: dict[Key, set[ListenAddress]] = {}
        self._ports_per_ip: Counter[str] = Counter()
        self._opening = asyncio.Lock()

    async def listen(self, key: Key, addresses: Mapping[ListenAddress, Backend]) -> None:
        """Listens for the Service at these addresses only. Raises PortUnavailableError."""
        for address in self._addresses_of.get(key, set()) - addresses.keys():
            self._leave(key, address)
        if addresses and self._route.unavailable_reason:
            raise PortUnavailableError(self._route.unavailable_reason)
        usage = self._connections.service_usage(key)
        async with self._opening:
            for address, backend in addresses.items():
                listener = self._listeners.get(address) or await self._open(address, usage)
                listener.add_owner(key, usage, backend)
                self._addresses_of.setdefault(key, set()).add(address)
                # Last, because it awaits: a cancellation here leaves no unregistered listener.
                await listener.server.start_serving()

    async def _open(self, address: ListenAddress, usage: ServiceUsage) -> _PodPortListener:
        def accept(accepted: AcceptedConnection) -> None:
            self._connections.accept(listener.usage, listener.balancer, accepted)

        server = await create_server(
            self._limit, usage.key.namespace, partial(_bind, address), accept
        )
        listener = self._listeners[address] = _PodPortListener(usage, server)
        self._ports_per_ip[address.address] += 1
        self._count(+1)
        return listener

    def _leave(self, key: Key, address: ListenAddress) -> None:
        self._addresses_of[key].remove(address)
        if not self._addresses_of[key]:
            del self._addresses_of[key]
        listener = self._listeners[address]
        if not listener.remove_owner(key):
            return
        del self._listeners[address]
        self._ports_per_ip[address.address] -= 1
        self._ports_per_ip += Counter()  # drops zeros
        listener.server.close()
        self._limit.release(listener.namespace)
        self._count(-1)

    def close(self) -> None:
        for key, addresses in [*self._addresses_of.items()]:
            for address in [*addresses]:
                self._leave(key, address)

    def _count(self, change: int) -> None:
        self._metrics.listening += change
        self._metrics.addresses = len(self._ports_per_ip)


async def create_server(
    limit: NamespaceLimit,
    namespace: str,
    bind: Callable[[], socket.socket],
    accept: Callable[[AcceptedConnection], None],
) -> asyncio.Server:
    """A server on the socket of ``bind``, counted against the namespace's share of ``limit``; the
    caller starts it. Raises PortUnavailableError if the namespace may not have one more."""
    _check_limit(limit, namespace)
    sock = bind()
    limit.acquire(namespace)
    try:
        return await asyncio.get_running_loop().create_server(
            lambda: AcceptedConnection(accept), sock=sock, backlog=BACKLOG, start_serving=False
        )
    except BaseException:
        limit.release(namespace)
        raise


def _check_limit(limit: NamespaceLimit, namespace: str) -> None:
    exceeded = limit.exceeded(namespace)
    if exceeded is None:
        return
    used = f"the bridge listens on {limit.used} ports"
    if exceeded == "namespace-limit":
        used = f"the bridge listens on {limit.used_by(namespace)} ports for namespace {namespace}"
    raise PortUnavailableError(
        f"{used}, which is the limit: {limit.limit} in all, of which a namespace leaves as many "
        "free as it has; reduce the Services, their ports or the ready pods behind them, or raise "
        "the bridge's limit of open files (ulimit -Hn)"
    )


def _bind(address: ListenAddress) -> socket.socket:
    try:
        return listening_socket(address.address, address.port, free_bind=True)
    except OSError as error:
        cause = _BIND_FAILURES.get(error.errno or 0, error.strerror or str(error))
        raise PortUnavailableError(
            f"the bridge cannot listen on port {address.port} of {address.address} (--relay-cidr): "
            f"{cause}"
        ) from error
