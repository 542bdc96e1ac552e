"""Forwards connections that relay agents accept in the remote to pods at home.

There is one control connection per relay agent (`bridge.relay.reverse.control_connection`). For
each connection that an agent announces, the bridge opens one more port-forward to the agent and
splices it with a TCP connection to a ready pod at home. Datagrams of UDP come on one stream per
agent (`bridge.relay.reverse.home_pod_datagrams`).

- The bridge alone decides the destination, by the agent's port and the latest routes
  (`translators.relay.reverse_plan.ReversePlan`): the agent names no address. A compromised agent
  can reach the ready pods of home's Services in its namespace, on the ports of these Services only.
- Connections are limited in all, per Service and per namespace (`bridge.net.open_file_budget`). At
  most `MAX_DIALS` are being set up, for which namespaces take turns (`bridge.relay.rate_limits`);
  beyond that, the bridge stops reading control connections and agents hold their clients.
- Forwarded connections continue when their Service or the control connection ends; they end with
  either side, after the idle timeout, or with the bridge.
- A peer sees an orderly end only after that of the other side, otherwise a reset
  (`bridge.net.splice`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import cachetools

from bridge.base.join_settings import RelaySettings
from bridge.net.open_file_budget import NamespaceLimit
from bridge.net.port_forward_connection import PortForwardTransport, open_port_forward
from bridge.net.splice import Tunnel
from bridge.relay.rate_limits import FairLimiter
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse import control_messages
from bridge.relay.reverse.control_connection import MAX_TOKEN, ControlConnection
from bridge.relay.reverse.framing import FramedTransport
from bridge.relay.reverse.home_pod_datagrams import HomePodDatagrams
from sync.base import exception_summary
from sync.base.safe_callbacks import Callbacks
from sync.kube.api_errors import KubeError
from sync.kube.http_upgrade import UpgradeResponse
from sync.kube.sockets import tunnel_socket
from sync.kube.transport import Transport
from sync.runtime.log_fields import name_fields
from translators.object_accessors import HomeNamespace, Object, uid_of
from translators.relay.agent_pod import UNKNOWN_STATE, AgentState
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

log = logging.getLogger(__name__)

#: Connections that are set up at once.
MAX_DIALS = 64
#: Pods at home that are tried for one connection, and seconds for each.
TRIES, TRY_TIMEOUT = 3, 1.5
#: Seconds for which an unreachable pod at home is the last choice.
AVOID_SECONDS = 5.0
#: Seconds until the warning that no pod of a Service is reachable is repeated.
WARN_INTERVAL = 300.0


class HomePodConnections:
    """Implements `sync.relay.reverse_controller.Forwarder` for one engine. ``metrics`` may outlive
    it; ``is_leader`` returns whether this bridge serves the node now."""

    def __init__(
        self,
        remote: Transport,
        *,
        settings: RelaySettings,
        metrics: ReverseRelayMetrics,
        is_leader: Callable[[], bool],
    ) -> None:
        self._remote = remote
        self._settings = settings
        self._metrics = metrics
        self._is_leader = is_leader
        self._controls: dict[str, ControlConnection] = {}
        self._on_change: Callbacks[HomeNamespace] = Callbacks("relay agents")
        self._group: asyncio.TaskGroup | None = None
        self._dials = FairLimiter(MAX_DIALS)
        self._limit = NamespaceLimit(settings.connections)
        self._datagrams = HomePodDatagrams(limit=settings.connections, metrics=metrics)
        self._connection_ended = asyncio.Event()
        self._open_per_service: Counter[tuple[HomeNamespace, str]] = Counter()
        self._round_robin = 0
        self._avoided: cachetools.TTLCache[HomeTarget, bool]
        self._avoided = cachetools.TTLCache(1024, AVOID_SECONDS)
        self._warned: cachetools.TTLCache[tuple[HomeNamespace, str], bool]
        self._warned = cachetools.TTLCache(1024, WARN_INTERVAL)

    # -- `sync.relay.reverse_controller.Forwarder` -----------------------------------------

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls ``handler`` with the namespace of an agent whose `agent_state` has changed."""
        self._on_change.add(handler)

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], routes: Mapping[int, ReverseRoute]
    ) -> None:
        """Sets the agents of the namespace, and the route of each of their ports."""
        wanted = {uid_of(pod): pod for pod in pods}
        for uid, control in [*self._controls.items()]:
            if control.home == home and uid not in wanted:
                del self._controls[uid]
                control.routes = {}  # what its task still receives leads nowhere
                if control.task is not None:
                    control.task.cancel()
                    control.task = None  # they refer to each other
        self._datagrams.update(home, routes)
        for uid, pod in wanted.items():
            if uid not in self._controls:
                self._controls[uid] = ControlConnection(
                    home,
                    pod,
                    remote=self._remote,
                    metrics=self._metrics,
                    is_leader=self._is_leader,
                    on_arrival=self._arrived,
                    on_change=self._on_change,
                    new_stream=self._datagrams.new_stream,
                )
            control = self._controls[uid]
            control.set_routes(routes)
            if control.task is None and self._group is not None:
                self._start(self._group, control)

    def agent_state(self, pod: Object) -> AgentState:
        """The state of the agent, known from its control connection."""
        control = self._controls.get(uid_of(pod))
        return control.state if control is not None else UNKNOWN_STATE

    async def run(self) -> NoReturn:
        """Forwards connections until cancelled, then aborts those that are open."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for control in self._controls.values():
                    self._start(group, control)
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None
        finally:
            self._datagrams.close()  # after the tasks that receive datagrams
        raise AssertionError("it runs until it is cancelled")

    async def drain(self) -> None:
        """Closes the control connections and waits until no connection is open. Nothing may be
        updated afterwards."""
        for control in self._controls.values():
            if control.task is not None:
                control.task.cancel()
        while self._limit.used:
            self._connection_ended.clear()
            await self._connection_ended.wait()

    def _start(self, group: asyncio.TaskGroup, control: ControlConnection) -> None:
        control.task = group.create_task(control.keep_open(), name=f"relay-reverse-{control}")

    # -- connections -----------------------------------------------------------------------

    async def _arrived(self, control: ControlConnection, message: dict[str, Any]) -> None:
        """Starts to forward an announced connection, once fewer than `MAX_DIALS` are being set up.
        Raises ProtocolError."""
        token, port = message.get("arrived"), message.get("port")
        client = message.get("from", "")
        if not (
            isinstance(token, str)
            and len(token) < MAX_TOKEN
            and isinstance(port, int)
            and isinstance(client, str)
        ):
            raise control_messages.ProtocolError("an announced connection is malformed")
        await self._dials.acquire(control.home)
        if not self._accept(control, token, port, client):
            self._dials.release(control.home)

    def _accept(self, control: ControlConnection, token: str, port: int, client: str) -> bool:
        """Starts a task that forwards the connection and releases one of `_dials`; returns False
        if the connection is rejected."""
        route = control.routes.get(port)
        if route is not None and route.is_udp:
            route = None  # the agent is not trusted
        rejected = self._rejection(control.home, route)
        if route is None or rejected or self._group is None:
            self._metrics.results[rejected or "no-pod"] += 1
            control.send(refuse=token)
            return False
        self._limit.acquire(control.home)
        self._open_per_service[control.home, route.service] += 1
        self._metrics.open += 1
        work = self._forward(control, route, token, client)
        self._group.create_task(work, name=f"relay-reverse-{control.home}/{route.service}")
        return True

    def _rejection(self, home: HomeNamespace, route: ReverseRoute | None) -> str:
        """The result of `REVERSE_RESULTS` if the connection is rejected; "" otherwise."""
        if route is None or not route.targets:
            return "no-pod"
        if limit := self._limit.exceeded(home):
            return limit
        if self._open_per_service[home, route.service] >= self._settings.service_connections:
            return "service-limit"
        return ""

    async def _forward(
        self, control: ControlConnection, route: ReverseRoute, token: str, client: str
    ) -> None:
        """Forwards one connection to its end. Raises nothing."""
        key = control.home, route.service
        subject = f"relay: Service {control.home}/{route.service}"
        fields = name_fields("Service", route.service, namespace=control.home)
        try:
            with exception_summary.log_defects(subject, extra=fields):
                result = await self._splice(control, route, token, client)
                self._metrics.results[result] += 1
        finally:
            self._limit.release(control.home)
            self._connection_ended.set()
            self._metrics.open -= 1
            self._open_per_service[key] -= 1
            if not self._open_per_service[key]:
                del self._open_per_service[key]

    async def _splice(
        self, control: ControlConnection, route: ReverseRoute, token: str, client: str
    ) -> str:
        """Splices one connection; returns its result."""
        try:
            with self._metrics.open_seconds.timed():
                dialed = await self._dial(control, route, client)
        finally:
            self._dials.release(control.home)
        if dialed is None:
            control.send(refuse=token)
            return "no-way"
        sock, upgraded = dialed
        idle = self._settings.idle
        tunnel = Tunnel(
            self._metrics.unsent.share(control.home),
            self._metrics.count_bytes,
            idle_timeout=idle,
            half_open_timeout=idle,
        )
        preface = control_messages.encode(take=token, idle=idle)
        framed = FramedTransport(tunnel.client, preface=preface)
        try:
            on_error = partial(log.debug, "relay: relay agent %s: %s", control)
            upgraded.take(PortForwardTransport(framed, on_error))
            framed.pause_reading()  # there is no destination for its data yet
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: tunnel.remote, sock=sock)
            tunnel.client.set_reading(True)
            await tunnel.run()
        except BaseException:
            tunnel.abort()
            if tunnel.remote.is_gone:
                sock.close()  # no transport owns it
            raise
        return "failed" if tunnel.lost else "done"

    async def _dial(
        self, control: ControlConnection, route: ReverseRoute, client: str
    ) -> tuple[socket.socket, UpgradeResponse] | None:
        """Connects to a pod at home and to the agent; None if one of them is unreachable."""
        sock = await self._dial_pod(control.home, route, client)
        if sock is None:
            self._warn(control.home, route)
            return None
        try:
            return sock, await open_port_forward(self._remote, control.backend)
        except BaseException as error:
            sock.close()
            if not isinstance(error, KubeError):
                raise
            log.info(
                "relay: Service %s/%s: no port-forward to relay agent %s: %s",
                control.home,
                route.service,
                control,
                error,
                extra=control.log_fields,
            )
            return None

    def _warn(self, home: HomeNamespace, route: ReverseRoute) -> None:
        """Logs that home's pods are unreachable, once per `WARN_INTERVAL` and Service."""
        key = home, route.service
        if key not in self._warned:
            self._warned[key] = True
            log.warning(
                "relay: Service %s/%s: the bridge cannot connect to its pods at home, so "
                "connections from the remote are refused. The bridge must reach home's pod IPs: "
                "run it in home's cluster (bridge install), or give its node a route to the pods. "
                "If there is a route, check that the pods listen and that no NetworkPolicy blocks "
                "the bridge",
                *key,
                extra=name_fields("Service", route.service, namespace=home, cluster="home"),
            )

    async def _dial_pod(
        self, home: HomeNamespace, route: ReverseRoute, client: str
    ) -> socket.socket | None:
        """Connects to a ready pod at home; None if none of those tried is reachable."""
        loop = asyncio.get_running_loop()
        for target in self._ordered_targets(route, client)[:TRIES]:
            family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
            sock = tunnel_socket((family, socket.SOCK_STREAM, 0))
            sock.setblocking(False)
            try:
                async with asyncio.timeout(TRY_TIMEOUT):
                    await loop.sock_connect(sock, target)
            except OSError as error:  # includes TimeoutError
                sock.close()
                self._avoided[target] = True
                log.info(
                    "relay: Service %s/%s: cannot connect to %s port %d at home: %s",
                    home,
                    route.service,
                    *target,
                    error or f"no answer within {TRY_TIMEOUT} s",
                    extra=name_fields("Service", route.service, namespace=home, cluster="home"),
                )
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        return None

    def _ordered_targets(self, route: ReverseRoute, client: str) -> list[HomeTarget]:
        """Home's pods in the order in which to try them."""
        if route.sticky:
            # The same order for the same client: it gets another pod only if its own has ended.
            order = sorted(
                route.targets, key=lambda it: hashlib.sha256(f"{client}/{it}".encode()).digest()
            )
        else:
            self._round_robin += 1
            first = self._round_robin % len(route.targets)
            order = [*route.targets[first:], *route.targets[:first]]
        return sorted(order, key=lambda it: it in self._avoided)  # stable
