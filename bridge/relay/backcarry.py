"""Carries connections from pods of the remote to home's pods, as relay pods tell of them.

To each relay pod that `sync.relayback` shows there is one connection for control, by a port-forward
through the remote's API server, opened again when it ends. For each connection that has arrived in
the pod one more is opened, and joined to one that is dialled to a ready pod at home.

- Where a connection leads is decided here alone, by the port that it arrived at and by what was
  shown last (`translators.relayback.Plan`): the relay pod names no address. One that lies reaches
  the ready pods of home's Services in that namespace, at these Services' ports, and no more.
- There are no more connections than the limits say, in all and for each Service, and `DIALS` at
  most for which a way is being opened: then the relay pod is not listened to, and holds them.
- Connections that are carried go on when their Service or the control is gone; they end with either
  side, after the idle time, or with the bridge.
- What was broken off on one side is reset on the other, so that nobody takes a part for the whole.
- A bridge that may not write opens no control: the one that serves the node has it.
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

from bridge.kubelet.tunnel import Tunnel
from bridge.relay import backwords as words
from bridge.relay.backchunks import Chunks, Watched
from bridge.relay.backmeasures import BackMeasures
from bridge.relay.channels import Channels
from bridge.relay.connections import reset
from bridge.relay.dial import dial
from bridge.settings import RelaySettings
from sync import defects
from sync.about import about
from sync.backoff import Backoff
from sync.kube.access import Access
from sync.kube.errors import KubeError
from sync.kube.sockets import tunnel_socket
from sync.kube.upgrade import Upgraded
from translators.relay import Backend
from translators.relayback import Target, Way
from translators.relaypod import CONTROL_PORT
from translators.types import HomeNamespace, Object, RemoteUid, name_of, namespace_of, uid_of

log = logging.getLogger(__name__)

#: Ways that are opened at once.
DIALS = 64
#: Pods of home that are tried for one connection, and seconds for each.
TRIES, TRY_SECONDS = 3, 1.5
#: Seconds for which a pod of home that could not be reached is the last choice.
AVOIDED = 5.0
#: Seconds after which it is said again that no pod of a Service answers.
WARNED = 300.0
#: Seconds until a control that ended is opened again: the first time, and at most.
AGAIN, AGAIN_CAP = 0.1, 3.0


class _Station:
    """One relay pod."""

    def __init__(self, home: HomeNamespace, pod: Object) -> None:
        self.home = home
        self.backend = Backend(
            namespace_of(pod), name_of(pod), RemoteUid(uid_of(pod)), CONTROL_PORT
        )
        self.ways: Mapping[int, Way] = {}
        self.listening: frozenset[int] = frozenset()
        self.control: Channels | None = None
        self.task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.backend.namespace}/{self.backend.name}"

    def say(self, **said: Any) -> None:
        """One line to the pod, if it is spoken to."""
        if self.control is not None and not self.control.is_closing():
            self.control.write(words.line(**said))

    def listen(self) -> None:
        """Has it listen where there are ways."""
        self.say(listen=sorted(self.ways))


class BackCarriers:
    """What `sync.relayback` has carry. One for each engine; ``measures`` may outlive it. ``leads``
    says whether this bridge serves the node now."""

    def __init__(
        self,
        remote: Access,
        *,
        asked: RelaySettings,
        measures: BackMeasures,
        leads: Callable[[], bool],
    ) -> None:
        self._remote = remote
        self._limits = asked
        self._measures = measures
        self._leads = leads
        self._stations: dict[str, _Station] = {}
        self._handlers: list[Callable[[HomeNamespace], None]] = []
        self._group: asyncio.TaskGroup | None = None
        self._dials = asyncio.Semaphore(DIALS)
        self._open = 0
        self._ended = asyncio.Event()
        self._of_service: Counter[tuple[HomeNamespace, str]] = Counter()
        self._turn = 0
        self._avoided: cachetools.TTLCache[Target, bool] = cachetools.TTLCache(1024, AVOIDED)
        self._warned: cachetools.TTLCache[tuple[HomeNamespace, str], bool]
        self._warned = cachetools.TTLCache(1024, WARNED)

    # -- see `sync.relayback.Carriers` -----------------------------------------------------

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        """Calls it with the namespace for which something is listened on, or no more."""
        self._handlers.append(handler)

    def show(self, home: HomeNamespace, pods: Sequence[Object], ways: Mapping[int, Way]) -> None:
        """From now on these pods are the namespace's, and connections go so."""
        wanted = {uid_of(pod): pod for pod in pods}
        for uid, station in [*self._stations.items()]:
            if station.home == home and uid not in wanted:
                del self._stations[uid]
                if station.task is not None:
                    station.task.cancel()
        for uid, pod in wanted.items():
            if uid not in self._stations:
                self._stations[uid] = _Station(home, pod)
            station = self._stations[uid]
            before, station.ways = station.ways, ways
            if before.keys() != ways.keys():
                station.listen()
            if station.task is None and self._group is not None:
                self._begin(self._group, station)

    def listening(self, pod: Object) -> frozenset[int]:
        """The ports that the pod says it listens on, to this bridge, now."""
        station = self._stations.get(uid_of(pod))
        return station.listening if station is not None else frozenset()

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
        while self._open:
            self._ended.clear()
            await self._ended.wait()

    def _begin(self, group: asyncio.TaskGroup, station: _Station) -> None:
        station.task = group.create_task(self._keep(station), name=f"relay-back-{station}")

    # -- control ---------------------------------------------------------------------------

    async def _keep(self, station: _Station) -> None:
        """Keeps a control to the pod, until cancelled. Raises nothing else."""
        backoff = Backoff(first=AGAIN, cap=AGAIN_CAP)
        said = ""
        while True:
            why, level = "this bridge does not serve the node now", logging.INFO
            if self._leads():
                try:
                    await self._control(station, backoff)
                    why = "it hung up"
                except (KubeError, OSError, ValueError) as error:
                    why = str(error)
                    level = logging.WARNING if isinstance(error, words.BadLine) else logging.INFO
            if why != said:
                said = why
                about_it = "relay: pod %s is not spoken to: %s"
                log.log(level, about_it, station, why, extra=_about(station))
            await asyncio.sleep(backoff.next())

    async def _control(self, station: _Station, backoff: Backoff) -> None:
        """One control, to its end. Raises KubeError, OSError, ValueError where there is none."""
        upgraded = await dial(self._remote, station.backend)
        reader = asyncio.StreamReader(limit=words.LINE)
        wrong: list[str] = []
        control = Channels(asyncio.StreamReaderProtocol(reader), wrong.append)
        upgraded.take(control)
        try:
            station.control = control
            station.say(control=words.VERSION)
            first = await self._line(station, reader)
            if not first:
                raise ConnectionError(wrong[0] if wrong else "it hung up")
            if first.get("version") != words.VERSION:
                raise words.BadLine(
                    f"it speaks version {first.get('version')} of the relay's protocol, and this "
                    f"bridge {words.VERSION}; give --relay-image the image of this version"
                )
            backoff.reset()
            self._measures.pods += 1
            try:
                station.listen()
                while said := await self._line(station, reader):
                    await self._told(station, said)
            finally:
                self._measures.pods -= 1
            if wrong:
                raise ConnectionError(wrong[0])
        finally:
            station.control = None
            control.abort()
            self._listens(station, frozenset())

    async def _line(self, station: _Station, reader: asyncio.StreamReader) -> dict[str, Any]:
        """The next line; {} at the end. Raises BadLine, ConnectionError and ValueError."""
        for _ in range(words.PINGS + 1):
            try:
                async with asyncio.timeout(words.PING):
                    raw = await reader.readline()
            except TimeoutError:
                station.say(ping=1)
                continue
            return words.read(raw) if raw.endswith(b"\n") else {}
        raise ConnectionError("it does not answer any more")

    async def _told(self, station: _Station, said: dict[str, Any]) -> None:
        """One line of the pod. Waits until one more way may be opened. Raises BadLine."""
        if "listening" in said:
            self._listens(station, words.ports(said["listening"]))
        if "arrived" in said:
            word, port, client = (said.get(it) for it in ("arrived", "port", "from"))
            if not (isinstance(word, str) and isinstance(port, int) and len(word) < 100):
                raise words.BadLine("it tells of no connection")
            await self._dials.acquire()
            if not self._arrived(station, word, port, str(client)):
                self._dials.release()

    def _listens(self, station: _Station, ports: frozenset[int]) -> None:
        if station.listening != ports:
            station.listening = ports
            for handler in self._handlers:
                handler(station.home)

    # -- connections -----------------------------------------------------------------------

    def _arrived(self, station: _Station, word: str, port: int, client: str) -> bool:
        """Whether the connection is carried; then its task releases one of `_dials`."""
        way = station.ways.get(port)
        why = self._refused(station.home, way)
        if way is None or why or self._group is None:
            self._measures.ended[why or "no-pod"] += 1
            station.say(refuse=word)
            return False
        self._open += 1
        self._of_service[station.home, way.service] += 1
        self._measures.open += 1
        work = self._carried(station, way, word, client)
        self._group.create_task(work, name=f"relay-back-{station.home}/{way.service}")
        return True

    def _refused(self, home: HomeNamespace, way: Way | None) -> str:
        """Why a connection is not carried; "" where it is."""
        if way is None or not way.targets:
            return "no-pod"
        if self._open >= self._limits.connections:
            return "limit"
        if self._of_service[home, way.service] >= self._limits.per_service:
            return "service-limit"
        return ""

    async def _carried(self, station: _Station, way: Way, word: str, client: str) -> None:
        """One connection, to its end. Raises nothing."""
        key = station.home, way.service
        try:
            how = await self._carry(station, way, word, client)
            self._measures.ended[how] += 1
        except Exception as error:  # noqa: BLE001  # one connection's defect must not end others
            log.error(  # noqa: TRY400  # without what the frames hold
                "relay: Service %s/%s: a defect in the bridge; please report it: %s",
                *key,
                defects.trace(error),
                extra=about("Service", way.service, namespace=station.home),
            )
        finally:
            self._open -= 1
            self._ended.set()
            self._measures.open -= 1
            self._of_service[key] -= 1
            if not self._of_service[key]:
                del self._of_service[key]

    async def _carry(self, station: _Station, way: Way, word: str, client: str) -> str:
        """How it ended."""
        try:
            with self._measures.opening.timed():
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
        tunnel = Tunnel(self._measures.moved, idle=idle, half_open=idle, answered=idle)
        preface = words.line(take=word, idle=idle)
        chunks = Chunks(tunnel.client, failed, preface=preface)
        try:
            # From here on the tunnel ends what it has, and the transport owns the socket.
            upgraded.take(Channels(chunks, partial(log.debug, "relay: pod %s: %s", station)))
            chunks.pause_reading()  # what comes has no place to go yet
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(
                lambda: Watched(tunnel.remote, chunks), sock=sock
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
        self, station: _Station, way: Way, client: str
    ) -> tuple[socket.socket, Upgraded] | None:
        """Connections to a pod at home and to the relay pod; None where one of them cannot be."""
        sock = await self._near(station, way, client)
        if sock is None:
            self._warn(station, way)
            return None
        try:
            return sock, await dial(self._remote, station.backend)
        except BaseException as error:
            sock.close()
            if not isinstance(error, KubeError):
                raise
            said = "relay: Service %s/%s: no way to relay pod %s: %s"
            log.info(said, station.home, way.service, station, error, extra=_about(station))
            return None

    def _warn(self, station: _Station, way: Way) -> None:
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
                extra=about("Service", way.service, namespace=station.home, cluster="home"),
            )

    async def _near(self, station: _Station, way: Way, client: str) -> socket.socket | None:
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
                    extra=about("Service", way.service, namespace=station.home, cluster="home"),
                )
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        return None

    def _choice(self, way: Way, client: str) -> list[Target]:
        """Home's pods in the order in which they are to be tried."""
        if way.sticky:
            # The same client gets the same order, and another pod only where its own is gone.
            order = sorted(way.targets, key=lambda it: _lot(client, it))
        else:
            self._turn += 1
            first = self._turn % len(way.targets)
            order = [*way.targets[first:], *way.targets[:first]]
        return sorted(order, key=lambda it: it in self._avoided)  # stable


def _lot(client: str, target: Target) -> bytes:
    return hashlib.sha256(f"{client}/{target}".encode()).digest()


def _about(station: _Station) -> Mapping[str, Mapping[str, str]]:
    backend = station.backend
    return about("Pod", backend.name, namespace=backend.namespace, cluster="remote")
