"""Listens at addresses of pods: of each leads every port to that pod, and no other.

Two headless Services may lead to the same port of a pod: it is listened on once, and counts as the
connection of the one that came first. What is not wanted any more is closed at once; connections
that stand go on (`bridge.relay.forward.connections`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import Mapping

from bridge.net.limits import NamespaceLimit
from bridge.relay.forward.balancer import Balancer
from bridge.relay.forward.connections import AcceptedConnection, ForwardConnections, ServiceUsage
from bridge.relay.forward.local_route import LocalRoute
from bridge.relay.metrics import RelayMetrics
from sync.cache.store import Key
from sync.kube.sockets import enable_keepalive
from sync.relay.forward import PortUnavailableError
from translators.relay.forward import Backend
from translators.relay.headless import ListenAddress

#: Connections that the system keeps until they are taken.
_BACKLOG = 1024
#: Has an IPv6 address be bound that is the machine's by a route alone (linux/in6.h).
_IPV6_FREEBIND = 78


class _PodListener:
    """One port of one pod."""

    def __init__(self, share: ServiceUsage, server: asyncio.Server) -> None:
        self.namespace = share.key.namespace
        """Of the Service that it was opened for: whose share of all listeners it is."""
        self.share = share
        """Of the Service whose connections these count as."""
        self.server = server
        self.balance = Balancer()
        self.owners: dict[Key, ServiceUsage] = {}

    def owned(self, key: Key, share: ServiceUsage, backend: Backend) -> None:
        """The Service leads here, and this is the pod now."""
        self.owners[key] = share
        self.balance.update((backend,), None)

    def left(self, key: Key) -> bool:
        """The Service leads here no more; whether none does. Who is being let in then is reset."""
        del self.owners[key]
        if not self.owners:
            self.balance.update((), None)
            return True
        self.share = next(iter(self.owners.values()))
        return False


class PodListeners:
    """See `sync.relay.headless.Doors`. ``measures`` may outlive it."""

    def __init__(
        self,
        connections: ForwardConnections,
        cidr: LocalRoute,
        limit: NamespaceLimit,
        measures: RelayMetrics,
    ) -> None:
        self._connections = connections
        self._range = cidr
        self._limit = limit
        self._measures = measures
        self._doors: dict[ListenAddress, _PodListener] = {}
        self._of: dict[Key, set[ListenAddress]] = {}
        self._addresses: Counter[str] = Counter()
        self._opening = asyncio.Lock()

    async def listen(self, key: Key, addresses: Mapping[ListenAddress, Backend]) -> None:
        """Listens for the Service at these, and at no other. Raises NoPort."""
        for at in self._of.get(key, set()) - addresses.keys():
            self._leave(key, at)
        if addresses and self._range.unavailable_reason:
            raise PortUnavailableError(self._range.unavailable_reason)
        share = self._connections.service_usage(key)
        async with self._opening:
            for at, backend in addresses.items():
                door = self._doors.get(at) or await self._made(at, share)
                door.owned(key, share, backend)
                self._of.setdefault(key, set()).add(at)
                # Only now: it waits, and who is cancelled there leaves nothing that nobody knows.
                await door.server.start_serving()

    async def _made(self, at: ListenAddress, share: ServiceUsage) -> _PodListener:
        def arrival() -> AcceptedConnection:
            return AcceptedConnection(self._connections, door.share, door.balance)

        namespace = share.key.namespace
        check_listener_limit(self._limit, namespace)
        sock = _bound(at)
        self._limit.acquire(namespace)
        try:
            server = await asyncio.get_running_loop().create_server(
                arrival, sock=sock, backlog=_BACKLOG, start_serving=False
            )
        except BaseException:
            self._limit.release(namespace)
            raise
        door = self._doors[at] = _PodListener(share, server)
        self._addresses[at.address] += 1
        self._count(+1)
        return door

    def _leave(self, key: Key, at: ListenAddress) -> None:
        self._of[key].remove(at)
        if not self._of[key]:
            del self._of[key]
        door = self._doors[at]
        if not door.left(key):
            return
        del self._doors[at]
        self._addresses[at.address] -= 1
        self._addresses += Counter()  # without those that are at nought
        door.server.close()
        self._limit.release(door.namespace)
        self._count(-1)

    def close(self) -> None:
        """Listens no more."""
        for key, known in [*self._of.items()]:
            for at in [*known]:
                self._leave(key, at)

    def _count(self, more: int) -> None:
        self._measures.listening += more
        self._measures.addresses = len(self._addresses)


def check_listener_limit(limit: NamespaceLimit, namespace: str) -> None:
    """Raises NoPort where the namespace may have no more listeners."""
    reason = limit.exceeded(namespace)
    if reason is None:
        return
    said = f"the bridge listens on {limit.used} ports"
    if reason == "namespace-limit":
        said = f"the bridge listens on {limit.used_by(namespace)} ports for namespace {namespace}"
    raise PortUnavailableError(
        f"{said}, as many as it may: {limit.limit} in all, of which a namespace leaves as many "
        "free as it has; have fewer Services, ports or ready pods behind them, or raise the "
        "bridge's limit of open files (ulimit -Hn)"
    )


def _bound(at: ListenAddress) -> socket.socket:
    """Raises NoPort."""
    family = socket.AF_INET6 if ":" in at.address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        sock.bind(at)
        sock.listen(_BACKLOG)
        enable_keepalive(sock)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise PortUnavailableError(_refused(at, error)) from error
    return sock


def _refused(at: ListenAddress, error: OSError) -> str:
    said = f"the bridge cannot listen on port {at.port} of {at.address} (--relay-cidr)"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{said}: a program of its machine listens on that port at all addresses; have that "
            "listen at its own, or the pods on another port"
        )
    if error.errno == errno.EACCES:
        return (
            f"{said}: ports below 1024 take CAP_NET_BIND_SERVICE, or "
            "net.ipv4.ip_unprivileged_port_start=0 on its machine"
        )
    return f"{said}: {error.strerror or error}"
