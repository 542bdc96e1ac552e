"""Forwards accepted connections to pods in the remote, each through a port-forward.

Guarantees:

- The bridge accepts a connection, picks a pod and opens a port-forward; it tries up to `TRIES`
  pods. Until then it buffers at most one read of the client. If there is no pod, no port-forward or
  a limit is exceeded, the client is reset at once.
- Forwarded connections are not closed when their pod becomes unready or their Service is deleted:
  they end when either side closes, or after the idle timeout.
- A client sees an orderly end only after that of the pod, otherwise a reset (`bridge.net.splice`).
- Connections are limited in number (in all, per namespace (`bridge.net.open_file_budget`) and per
  Service) and in rate (in all and per Service). Those that exceed a rate wait for up to `RATE_WAIT`
  and `SLOT_WAIT` seconds; namespaces take turns, and the Services of each. ``on_limited`` is
  called for each connection that a limit rejects.

A forwarded connection has no task, only a `Tunnel`; a task runs while its port-forward is opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import NoReturn
from weakref import WeakValueDictionary

from bridge.base.join_settings import RelaySettings
from bridge.net.listening_socket import AcceptedConnection
from bridge.net.open_file_budget import NamespaceLimit
from bridge.net.port_forward_connection import OPEN_TIMEOUT, PortForwardTransport
from bridge.net.port_forward_sessions import OpenedPortForward, PortForwards
from bridge.net.spdy_session import ForwardedStream
from bridge.net.splice import Tunnel
from bridge.relay.forward.balancer import Balancer
from bridge.relay.rate_limits import FairLimiter, TokenBucket
from bridge.relay.relay_counters import RelayMetrics
from sync.base import exception_summary
from sync.cache.store import Key
from sync.kube.api_errors import KubeError
from sync.kube.layered_transport import LayeredTransport, reset_connection
from sync.kube.transport import Transport
from sync.relay.forward_controller import OnLimited
from sync.runtime.log_fields import name_fields
from translators.relay.forward_plan import Backend

log = logging.getLogger(__name__)

#: Pods that are tried for one connection.
TRIES = 3
#: Port-forwards that are opened at once: each takes a TLS handshake, and thousands of clients must
#: not starve the rest of the bridge.
MAX_DIALS = 64
#: The slots that the Services of one namespace share.
NAMESPACE_DIALS = 48
#: The idle timeout is checked this many times per timeout, so it may be exceeded by that fraction.
_IDLE_CHECKS = 20
#: Seconds that a connection waits when its Service's rate is exceeded.
RATE_WAIT = 4.0
#: Seconds that a connection waits for its turn among all others: on a busy node, hundreds of
#: simultaneous connections take more than a few.
SLOT_WAIT = 30.0
#: Seconds that a pod may be silent after its client's EOF: while its response is due, and after
#: part of the response.
HALF_OPEN_TIMEOUT, ANSWERED_TIMEOUT = 60.0, 10.0
#: A client that has closed looks like one that was answered in part; the protocol has no message.
#: Where clients come and go fast, such connections would use up the limit: when more than this
#: fraction of a limit lingers in a namespace, the timeout is shorter there.
LINGERING_FRACTION, LINGERING_TIMEOUT = 0.1, 1.0


class ServiceUsage:
    """The open connections and the rate limit of one Service."""

    __slots__ = ("__weakref__", "key", "open", "rate_limit")

    def __init__(self, key: Key, rate: float) -> None:
        self.key = key
        self.open = 0
        self.rate_limit = TokenBucket(rate)


class RemotePodConnections:
    """All forward connections of one bridge. ``metrics`` may outlive it."""

    def __init__(
        self, remote: Transport, *, settings: RelaySettings, metrics: RelayMetrics
    ) -> None:
        self._port_forwards = PortForwards(remote)
        self._settings = settings
        self._metrics = metrics
        self._dials = FairLimiter(MAX_DIALS, settings.rate, member_slots=NAMESPACE_DIALS)
        self._group: asyncio.TaskGroup | None = None
        self._on_limited: OnLimited = lambda _, __: None
        self._limit = NamespaceLimit(settings.connections)
        metrics.limit = settings.connections
        self._forwarded: set[_ForwardedConnection] = set()
        self._lingering: dict[str, set[_ForwardedConnection]] = {}  # by namespace
        self._idle_timer: asyncio.TimerHandle | None = None
        # A Service that returns finds the connections that are still open.
        self._usages: WeakValueDictionary[Key, ServiceUsage] = WeakValueDictionary()

    def service_usage(self, key: Key) -> ServiceUsage:
        """The usage of a Service, kept for as long as a caller holds it."""
        return self._usages.setdefault(key, ServiceUsage(key, self._settings.service_rate))

    async def run(self, on_limited: OnLimited) -> NoReturn:
        """Forwards connections until cancelled, then aborts those that are open."""
        self._on_limited = on_limited
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None  # further connections are reset
            raise AssertionError("it runs until it is cancelled")
        finally:
            self._dials.close()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            for connection in [*self._forwarded]:
                connection.tunnel.abort()
                self._closed(connection)
            self._port_forwards.close()

    def accept(self, usage: ServiceUsage, balancer: Balancer, accepted: AcceptedConnection) -> None:
        """Starts to forward a connection to a port of the Service, or resets it."""
        group, settings, namespace = self._group, self._settings, usage.key.namespace
        if group is None:
            reset_connection(accepted.client)
        elif limit := self._limit.exceeded(namespace):
            why = f"the bridge has {self._limit.used} connections open, the limit"
            if limit == "namespace-limit":
                why = (
                    f"namespace {namespace} has {self._limit.used_by(namespace)} connections open, "
                    f"its share of {settings.connections}"
                )
            self._reject(usage, accepted, limit, why)
        elif usage.open >= settings.service_connections:
            why = f"it has {usage.open} connections open, the limit of a Service"
            self._reject(usage, accepted, "service-limit", why)
        else:
            now = asyncio.get_running_loop().time()
            wait = usage.rate_limit.take(now, RATE_WAIT)
            if wait is None:
                rate = f"{settings.service_rate:g} connections per second"
                self._reject(usage, accepted, "service-rate", f"it gets more than {rate}")
                return
            self._limit.acquire(namespace)
            usage.open += 1
            self._metrics.open += 1
            work = self._forward(usage, balancer, accepted, wait)
            group.create_task(work, name=f"relay-{usage.key}")

    def _reject(
        self, usage: ServiceUsage, accepted: AcceptedConnection, result: str, why: str
    ) -> None:
        self._metrics.results[result] += 1
        reset_connection(accepted.client)
        self._on_limited(usage.key, why)

    # -- one connection --------------------------------------------------------------------

    async def _forward(
        self, usage: ServiceUsage, balancer: Balancer, accepted: AcceptedConnection, wait: float
    ) -> None:
        """Splices the client with a port-forward, or resets the client. Raises nothing."""
        spliced = False
        fields = name_fields("Service", usage.key.name, namespace=usage.key.namespace)
        try:
            with exception_summary.log_defects(f"relay: Service {usage.key}", extra=fields):
                if wait:
                    await asyncio.sleep(wait)
                opened = await self._open(usage, balancer, accepted)
                if isinstance(opened, tuple):
                    spliced = self._splice(usage, accepted, *opened)
                    opened = "done"
                if not spliced:
                    self._metrics.results[opened] += 1
        finally:
            if not spliced:
                reset_connection(accepted.client)
                self._release(usage)

    async def _open(
        self, usage: ServiceUsage, balancer: Balancer, accepted: AcceptedConnection
    ) -> tuple[Backend, OpenedPortForward] | str:
        """A port-forward to a pod, or the result of `FORWARD_RESULTS` that explains its absence."""
        loop = asyncio.get_running_loop()
        client = accepted.client_address
        tried: list[Backend] = []
        # If it takes that long, the remote is more likely to be unreachable than one pod.
        deadline = loop.time() + SLOT_WAIT + OPEN_TIMEOUT
        while len(tried) < TRIES and loop.time() < deadline:
            try:
                namespace, service = usage.key
                async with self._dials.slot(namespace, SLOT_WAIT, member=service):
                    backend = balancer.pick(client, loop.time(), tried)
                    if backend is None:
                        break
                    tried.append(backend)
                    deadline = min(deadline, loop.time() + OPEN_TIMEOUT)
                    opened_forward = await self._dial(usage, backend)
            except TimeoutError:
                if not self._dials.is_rate_exhausted:
                    return "no-way"
                rate = f"{self._settings.rate:g} connections per second"
                self._on_limited(usage.key, f"the bridge gets more than {rate}")
                return "rate"
            if opened_forward is not None:
                return backend, opened_forward
            balancer.mark_failed(backend, loop.time())
        return "no-way" if tried else "no-pod"

    async def _dial(self, usage: ServiceUsage, backend: Backend) -> OpenedPortForward | None:
        """A port-forward to the pod; None if the API server cannot open one."""
        try:
            with self._metrics.dial_seconds.timed():
                opened_forward = await self._port_forwards.open(backend)
        except KubeError as error:
            self._metrics.dials["failed"] += 1
            log.info(
                "relay: Service %s: no port-forward to pod %s/%s: %s",
                usage.key,
                backend.namespace,
                backend.name,
                error,
                extra=_pod_fields(backend),
            )
            return None
        self._metrics.dials["ok"] += 1
        return opened_forward

    def _splice(
        self,
        usage: ServiceUsage,
        accepted: AcceptedConnection,
        backend: Backend,
        opened_forward: OpenedPortForward,
    ) -> bool:
        """Joins the two connections; returns False if the client has gone."""
        if accepted.client.is_closing():
            opened_forward.close()
            return False
        connection = _ForwardedConnection(usage, backend)
        connection.tunnel = tunnel = Tunnel(
            self._metrics.unsent.share(usage.key.namespace),
            self._metrics.count_bytes,
            idle_timeout=None,
            half_open_timeout=HALF_OPEN_TIMEOUT,
            answered_timeout=partial(self._linger, connection),
            on_close=partial(self._closed, connection),
        )
        self._forwarded.add(connection)
        self._schedule_idle_check()
        try:
            # Attach both ends before either gets buffered data: a pod may have sent data already,
            # and even closed.
            accepted.attach(tunnel.client)
            connection.transport = transport = opened_forward.attach(
                tunnel.remote, connection.failed
            )
            if isinstance(transport, PortForwardTransport) and not accepted.has_data:
                transport.release_write_buffer()
            accepted.resume(tunnel.client)
        except BaseException:
            self._forwarded.discard(connection)
            tunnel.abort()
            raise
        return True

    def _schedule_idle_check(self) -> None:
        if self._idle_timer is None and self._forwarded:
            loop = asyncio.get_running_loop()
            interval = self._settings.idle / _IDLE_CHECKS
            self._idle_timer = loop.call_later(interval, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        for connection in [*self._forwarded]:
            connection.tunnel.close_if_idle(self._settings.idle)
        self._schedule_idle_check()

    def _linger(self, connection: _ForwardedConnection) -> float:
        """Registers a connection whose client has sent EOF and was answered; returns the seconds
        that it may stay silent."""
        lingering = self._lingering.setdefault(connection.usage.key.namespace, set())
        lingering.add(connection)
        if isinstance(connection.transport, ForwardedStream):
            connection.transport.release()
        limit = min(self._settings.connections, self._settings.service_connections)
        few = len(lingering) <= LINGERING_FRACTION * limit
        return ANSWERED_TIMEOUT if few else LINGERING_TIMEOUT

    def _closed(self, connection: _ForwardedConnection) -> None:
        """Unregisters a connection whose ends are both closed or aborted."""
        namespace = connection.usage.key.namespace
        if (lingering := self._lingering.get(namespace)) is not None:
            lingering.discard(connection)
            if not lingering:
                del self._lingering[namespace]
        if connection in self._forwarded:
            self._forwarded.remove(connection)
            has_failed = connection.tunnel.lost is connection.tunnel.remote
            self._metrics.results["failed" if has_failed else "done"] += 1
            self._release(connection.usage)

    def _release(self, usage: ServiceUsage) -> None:
        self._limit.release(usage.key.namespace)
        usage.open -= 1
        self._metrics.open -= 1


class _ForwardedConnection:
    """One connection with its tunnel."""

    __slots__ = ("_backend", "transport", "tunnel", "usage")

    transport: LayeredTransport
    tunnel: Tunnel

    def __init__(self, usage: ServiceUsage, backend: Backend) -> None:
        self._backend = backend
        self.usage = usage

    def failed(self, why: str) -> None:
        """Logs an abnormal end of the port-forward."""
        backend = self._backend
        log.info(
            "relay: Service %s: pod %s/%s port %d: %s",
            self.usage.key,
            backend.namespace,
            backend.name,
            backend.port,
            why,
            extra=_pod_fields(backend),
        )


def _pod_fields(backend: Backend) -> Mapping[str, Mapping[str, str]]:
    return name_fields("Pod", backend.name, namespace=backend.namespace, cluster="remote")
