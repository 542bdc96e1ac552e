"""Carries connections from pods of the remote to home's pods, as relay pods tell of them.

To each relay pod that `sync.relay.reverse` shows there is one connection for control
(`bridge.relay.reverse.control_connection`). For each connection that has arrived in the pod
one more port-forward is opened, and joined to a connection that is dialled to a ready pod at home.

- Where a connection leads is decided here alone, by the port that it arrived at and by what was
  shown last (`translators.relay.reverse.Plan`): the relay pod names no address. One that lies
  reaches the ready pods of home's Services in that namespace, at these Services' ports, and no
  more.
- There are no more connections than the limits say, in all and for each Service, a namespace
  leaves as many free as it has (`bridge.net.limits`), and `DIALS` at
  most for which a way is being opened: then the relay pod is not listened to, and holds them.
- Connections that are carried go on when their Service or the control is gone; they end with either
  side, after the idle time, or with the bridge.
- What was broken off on one side is reset on the other, so that nobody takes a part for the whole.
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

from bridge.base.settings import RelaySettings
from bridge.net.limits import NamespaceLimit
from bridge.net.port_forward import PortForwardTransport, open_port_forward
from bridge.net.tunnel import Tunnel
from bridge.relay.forward.connections import reset
from bridge.relay.metrics import ReverseRelayMetrics
from bridge.relay.reverse import control_messages as words
from bridge.relay.reverse.control_connection import ControlConnection
from bridge.relay.reverse.framing import FramedTransport, LossDetector
from sync.base import exceptions
from sync.base.callbacks import Callbacks
from sync.kube.credentials import ClientConfig
from sync.kube.errors import KubeError
from sync.kube.http_upgrade import UpgradeResponse
from sync.kube.sockets import tunnel_socket
from sync.runtime.log_fields import name_fields
from translators.objects import HomeNamespace, Object, uid_of
from translators.relay.agent_pod import UNKNOWN_STATE, AgentState
from translators.relay.reverse import HomeTarget, ReverseRoute

log = logging.getLogger(__name__)

#: Ways that are opened at once.
DIALS = 64
#: Pods of home that are tried for one connection, and seconds for each.
TRIES, TRY_SECONDS = 3, 1.5
#: Seconds for which a pod of home that could not be reached is the last choice.
AVOID_SECONDS = 5.0
#: Seconds after which it is said again that no pod of a Service answers.
WARN_INTERVAL = 300.0


class ReverseForwarder:
    """What `sync.relay.reverse` has carry. One for each engine; ``measures`` may outlive it.
    ``leads`` says whether this bridge serves the node now."""

    def __init__(
        self,
        remote: ClientConfig,
        *,
        settings: RelaySettings,
        metrics: ReverseRelayMetrics,
        is_leader: Callable[[], bool],
    ) -> None:
        self._remote = remote
        self._limits = settings
        self._measures = metrics
        self._leads = is_leader
        self._stations: dict[str, ControlConnection] = {}
        self._handlers: Callbacks[HomeNamespace] = Callbacks("relay agents")
        self._group: asyncio.TaskGroup | None = None
        self._dials = asyncio.Semaphore(DIALS)
        self._limit = NamespaceLimit(settings.connections)
        self._ended = asyncio.Event()
        self._of_service: Counter[tuple[HomeNamespace, str]] = Counter()
        self._turn = 0
        self._avoided: cachetools.TTLCache[HomeTarget, bool] = cachetools.TTLCache(
            1024, AVOID_SECONDS
        )
        self._warned: cachetools.TTLCache[tuple[HomeNamespace, str], bool]
        self._warned = cachetools.TTLCache(1024, WARN_INTERVAL)

    # -- see `sync.relay.reverse.Carriers` -----------------------------------------------------

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls it with the namespace of a pod of which something else is `heard`."""
        self._handlers.add(handler)

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], ways: Mapping[int, ReverseRoute]
    ) -> None:
        """From now on these pods are the namespace's, and connections go so."""
        wanted = {uid_of(pod): pod for pod in pods}
        for uid, station in [*self._stations.items()]:
            if station.home == home and uid not in wanted:
                del self._stations[uid]
                if station.task is not None:
                    station.task.cancel()
        for uid, pod in wanted.items():
            if uid not in self._stations:
                self._stations[uid] = ControlConnection(
                    home,
                    pod,
                    remote=self._remote,
                    measures=self._measures,
                    leads=self._leads,
                    arrived=self._told,
                    changed=self._changed,
                )
            station = self._stations[uid]
            before, station.ways = station.ways, ways
            if before.keys() != ways.keys():
                station.listen()
            if station.task is None and self._group is not None:
                self._begin(self._group, station)

    def agent_state(self, pod: Object) -> AgentState:
        """What is known of the pod by what it says to this bridge, and by what it does not."""
        station = self._stations.get(uid_of(pod))
        return station.heard if station is not None else UNKNOWN_STATE

    async def run(self) -> NoReturn:
        """Carries connections until cancelled, and ends all that is open then."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for station in self._stations.values():
                self._begin(group, station)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None
        raise AssertionError("it runs until it is cancelled")

    async def finish(self) -> None:
        """Takes no more, and waits until nothing is open. Not to be shown anything afterwards."""
        for station in self._stations.values():
            if station.task is not None:
                station.task.cancel()
        while self._limit.used:
            self._ended.clear()
            await self._ended.wait()

    def _begin(self, group: asyncio.TaskGroup, station: ControlConnection) -> None:
        station.task = group.create_task(station.keep(), name=f"relay-back-{station}")

    # -- connections -----------------------------------------------------------------------

    async def _told(self, station: ControlConnection, said: dict[str, Any]) -> None:
        """A connection has arrived. Waits until one more way may be opened. Raises BadLine."""
        word, port, client = (said.get(it) for it in ("arrived", "port", "from"))
        if not (isinstance(word, str) and isinstance(port, int) and len(word) < 100):
            raise words.ProtocolError("it tells of no connection")
        await self._dials.acquire()
        if not self._arrived(station, word, port, str(client)):
            self._dials.release()

    def _changed(self, home: HomeNamespace) -> None:
        self._handlers(home)

    def _arrived(self, station: ControlConnection, word: str, port: int, client: str) -> bool:
        """Whether the connection is carried; then its task releases one of `_dials`."""
        way = station.ways.get(port)
        why = self._refused(station.home, way)
        if way is None or why or self._group is None:
            self._measures.results[why or "no-pod"] += 1
            station.say(refuse=word)
            return False
        self._limit.acquire(station.home)
        self._of_service[station.home, way.service] += 1
        self._measures.open += 1
        work = self._carried(station, way, word, client)
        self._group.create_task(work, name=f"relay-back-{station.home}/{way.service}")
        return True

    def _refused(self, home: HomeNamespace, way: ReverseRoute | None) -> str:
        """Why a connection is not carried; "" where it is."""
        if way is None or not way.targets:
            return "no-pod"
        if reason := self._limit.exceeded(home):
            return reason
        if self._of_service[home, way.service] >= self._limits.per_service:
            return "service-limit"
        return ""

    async def _carried(
        self, station: ControlConnection, way: ReverseRoute, word: str, client: str
    ) -> None:
        """One connection, to its end. Raises nothing."""
        key = station.home, way.service
        try:
            how = await self._carry(station, way, word, client)
            self._measures.results[how] += 1
        except Exception as error:  # noqa: BLE001  # one connection's defect must not end others
            log.error(  # noqa: TRY400  # without what the frames hold
                "relay: Service %s/%s: a defect in the bridge; please report it: %s",
                *key,
                exceptions.traced_summary(error),
                extra=name_fields("Service", way.service, namespace=station.home),
            )
        finally:
            self._limit.release(station.home)
            self._ended.set()
            self._measures.open -= 1
            self._of_service[key] -= 1
            if not self._of_service[key]:
                del self._of_service[key]

    async def _carry(
        self, station: ControlConnection, way: ReverseRoute, word: str, client: str
    ) -> str:
        """How it ended."""
        try:
            with self._measures.open_seconds.timed():
                found = await self._both(station, way, client)
        finally:
            self._dials.release()
        if found is None:
            station.say(refuse=word)
            return "no-way"
        sock, upgraded = found
        near: list[asyncio.Transport] = []
        broken: list[bool] = []

        def failed() -> None:
            broken.append(True)
            for transport in near:
                reset(transport)

        idle = self._limits.idle
        tunnel = Tunnel(self._measures.count_bytes, idle_timeout=idle, half_open_timeout=idle)
        preface = words.encode(take=word, idle=idle)
        chunks = FramedTransport(tunnel.client, failed, preface=preface)
        try:
            # From here on the tunnel ends what it has, and the transport owns the socket.
            upgraded.take(
                PortForwardTransport(chunks, partial(log.debug, "relay: pod %s: %s", station))
            )
            chunks.pause_reading()  # what comes has no place to go yet
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                lambda: LossDetector(tunnel.remote, chunks), sock=sock
            )
            near.append(transport)
            if broken or chunks.is_closing():
                reset(transport)
            else:
                chunks.resume_reading()
            await tunnel.run()
        finally:
            if not near:
                sock.close()
                chunks.abort()
        return "failed" if broken else "done"

    async def _both(
        self, station: ControlConnection, way: ReverseRoute, client: str
    ) -> tuple[socket.socket, UpgradeResponse] | None:
        """Connections to a pod at home and to the relay pod; None where one of them cannot be."""
        sock = await self._near(station, way, client)
        if sock is None:
            self._warn(station, way)
            return None
        try:
            return sock, await open_port_forward(self._remote, station.backend)
        except BaseException as error:
            sock.close()
            if not isinstance(error, KubeError):
                raise
            said = "relay: Service %s/%s: no way to relay pod %s: %s"
            log.info(said, station.home, way.service, station, error, extra=station.about)
            return None

    def _warn(self, station: ControlConnection, way: ReverseRoute) -> None:
        """Says that home's pods cannot be reached, once in a while for each Service."""
        key = station.home, way.service
        if key not in self._warned:
            self._warned[key] = True
            log.warning(
                "relay: Service %s/%s: none of its pods that were tried at home takes a connection "
                "of the bridge's: connections from the remote are refused; the bridge has to reach "
                "home's pods by their addresses: have it run in home's cluster (bridge join "
                "--in-cluster), or give its machine a way to them; if there is one, do the pods "
                "listen, and does a NetworkPolicy of home let the bridge in?",
                *key,
                extra=name_fields("Service", way.service, namespace=station.home, cluster="home"),
            )

    async def _near(
        self, station: ControlConnection, way: ReverseRoute, client: str
    ) -> socket.socket | None:
        """A connection to a ready pod of home."""
        loop = asyncio.get_running_loop()
        for target in self._choice(way, client)[:TRIES]:
            family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
            sock = tunnel_socket((family, socket.SOCK_STREAM, 0))
            sock.setblocking(False)
            try:
                async with asyncio.timeout(TRY_SECONDS):
                    await loop.sock_connect(sock, target)
            except OSError as error:  # TimeoutError is one
                sock.close()
                self._avoided[target] = True
                log.info(
                    "relay: Service %s/%s: no way to %s port %d at home: %s",
                    station.home,
                    way.service,
                    *target,
                    error or "no answer",
                    extra=name_fields(
                        "Service", way.service, namespace=station.home, cluster="home"
                    ),
                )
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        return None

    def _choice(self, way: ReverseRoute, client: str) -> list[HomeTarget]:
        """Home's pods in the order in which they are to be tried."""
        if way.sticky:
            # The same client gets the same order, and another pod only where its own is gone.
            order = sorted(way.targets, key=lambda it: _lot(client, it))
        else:
            self._turn += 1
            first = self._turn % len(way.targets)
            order = [*way.targets[first:], *way.targets[:first]]
        return sorted(order, key=lambda it: it in self._avoided)  # stable


def _lot(client: str, target: HomeTarget) -> bytes:
    return hashlib.sha256(f"{client}/{target}".encode()).digest()
