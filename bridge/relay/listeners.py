"""Listens at home for Services whose pods are in the remote, and carries each connection to one.

Guarantees:

- Only ports of pods that a plan names are reached (`translators.relay`), by `serve` alone.
- A connection is taken, then a pod is chosen and a way to it is opened; of pods to which there is
  none, `TRIES` are tried. Until then no more than one read of the client is held. A client for whom
  there is nothing (no pod, no way, too many connections) is reset at once, so that it knows.
- Connections that are carried are not cut when their pod is no longer ready, or when their Service
  goes: they end when either side does, or after the idle time.
- An end that is not in order, on the remote's side, resets the client: it must not take a part for
  the whole.
- A place that is not wanted any more is still listened on for `LINGER` seconds.
- There are no more connections than the limits say, in all and for each Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Mapping
from typing import NoReturn, cast

from bridge.kubelet.tunnel import End, Tunnel
from bridge.relay.balance import Balance
from bridge.relay.channels import Channels
from bridge.relay.dial import DIAL_SECONDS, dial
from bridge.relay.measures import Measures
from bridge.settings import RelaySettings
from sync import defects
from sync.about import about
from sync.kube.access import Access
from sync.kube.errors import KubeError
from sync.kube.sockets import probe_when_silent
from sync.kube.upgrade import Upgraded
from sync.relay import NoPort
from sync.store import Key
from translators.relay import Backend, Place, Plan

log = logging.getLogger(__name__)

#: Pods that are tried for one connection.
TRIES = 3
#: Ways that are opened at once: each is a TLS handshake, and clients that come by the thousand must
#: not keep all else from its turn.
DIALS = 64
#: Seconds for which a place is listened on after it is no longer published: kube-proxies learn of
#: that at their own pace, within a second mostly.
LINGER = 10.0
#: Seconds that a pod may be silent after its client has ended its own direction: while it owes an
#: answer, and else. A client that has closed looks the same, and the pod cannot be told: of many
#: short connections each would stay for so long.
HALF_OPEN, ANSWERED = 60.0, 1.0
#: Connections that the system keeps until they are taken.
_BACKLOG = 1024
_LINGER_ZERO = struct.pack("ii", 1, 0)


class _Served:
    """One Service: what is open for it, and where it is listened on."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.open = 0
        self.ports: dict[str, Balance] = {}
        self.sockets: dict[Place, asyncio.Server] = {}
        self.numbers: dict[Place, int] = {}
        self.ending: dict[Place, asyncio.TimerHandle] = {}


class RelayListeners:
    """What `sync.relay` has listen. One for each engine; ``measures`` may outlive it."""

    def __init__(
        self,
        remote: Access,
        *,
        address: str,
        asked: RelaySettings,
        measures: Measures,
        linger: float = LINGER,
    ) -> None:
        self._remote = remote
        self._address = address
        self._ports = asked.ports
        self._limits = asked
        self._measures = measures
        self._linger = linger
        self._served: dict[Key, _Served] = {}
        self._group: asyncio.TaskGroup | None = None
        self._dials = asyncio.Semaphore(DIALS)
        self._open = 0

    # -- listening -------------------------------------------------------------------------

    async def serve(self, key: Key, plan: Plan, known: Mapping[Place, int]) -> dict[Place, int]:
        """See `sync.relay.Listeners`. One call for a key at a time."""
        places = plan.places
        served = self._served.get(key)
        if served is None:
            if not places:
                return {}
            served = self._served[key] = _Served(key)
        for port in {*served.ports, *plan.backends}:
            balance = served.ports.setdefault(port, Balance())
            balance.show(plan.backends.get(port, ()), plan.affinity)
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

    async def _listen(self, served: _Served, place: Place, wish: int | None) -> None:
        sock = self._bound(wish)
        balance = served.ports[place.port]

        def arrival() -> _Arrival:
            return _Arrival(self, served, balance)

        loop = asyncio.get_running_loop()
        served.sockets[place] = await loop.create_server(arrival, sock=sock, backlog=_BACKLOG)
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
                    raise NoPort(
                        f"the bridge cannot listen on {self._address}: {why}; give --relay-address "
                        "an address of the machine that it runs on"
                    ) from error
        raise NoPort(
            f"no port of --relay-ports {self._ports} is free for the bridge to listen on; give it "
            "more: one for each port of a Service and each ready pod behind it, up to 16"
        )

    def _close(self, served: _Served, place: Place) -> None:
        served.ending.pop(place, None)
        served.numbers.pop(place, None)
        server = served.sockets.pop(place, None)
        if server is not None:
            server.close()
            self._measures.listening -= 1
        if not served.sockets and self._served.get(served.key) is served:
            del self._served[served.key]

    async def run(self) -> NoReturn:
        """Carries connections until cancelled, and ends all that is open then."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self._group = None  # what still comes is reset
            raise AssertionError("it runs until it is cancelled")
        finally:
            for served in [*self._served.values()]:
                for timer in served.ending.values():
                    timer.cancel()
                for place in [*served.sockets]:
                    self._close(served, place)

    # -- connections -----------------------------------------------------------------------

    def arrived(self, served: _Served, balance: Balance, arrival: _Arrival) -> None:
        """A connection was made to a port of the Service."""
        group, client = self._group, arrival.client
        if group is None:
            reset(client)
        elif self._open >= self._limits.connections:
            self._reset(client, "limit")
        elif served.open >= self._limits.per_service:
            self._reset(client, "service-limit")
        else:
            self._open += 1
            served.open += 1
            self._measures.open += 1
            work = self._carried(served, balance, arrival)
            group.create_task(work, name=f"relay-{served.key}")

    async def _carried(self, served: _Served, balance: Balance, arrival: _Arrival) -> None:
        """One connection, to its end. Raises nothing."""
        try:
            how = await self._carry(served, balance, arrival)
            self._measures.ended[how] += 1
        except Exception as error:  # noqa: BLE001  # one connection's defect must not end others
            log.error(  # noqa: TRY400  # without what the frames hold
                "relay: Service %s: a defect in the bridge; please report it: %s",
                served.key,
                defects.trace(error),
                extra=about("Service", served.key.name, namespace=served.key.namespace),
            )
        finally:
            reset(arrival.client)  # where it was not closed in order
            self._open -= 1
            served.open -= 1
            self._measures.open -= 1

    async def _carry(self, served: _Served, balance: Balance, arrival: _Arrival) -> str:
        """How it ended."""
        client = arrival.client
        peer = client.get_extra_info("peername")
        way = await self._way(served, balance, str(peer[0]) if peer else "")
        if not isinstance(way, tuple):
            return way
        backend, upgraded = way
        wrong: list[str] = []

        def failed(why: str) -> None:
            wrong.append(why)
            log.info(
                "relay: Service %s: pod %s/%s port %d: %s",
                served.key,
                backend.namespace,
                backend.name,
                backend.port,
                why,
                extra=about("Pod", backend.name, namespace=backend.namespace, cluster="remote"),
            )
            reset(client)

        try:
            if client.is_closing():
                return "done"
            tunnel = Tunnel(
                self._measures.moved,
                idle=self._limits.idle,
                half_open=HALF_OPEN,
                answered=ANSWERED,
            )
            upgraded.take(Channels(tunnel.remote, failed))
            arrival.hand_over(tunnel.client)
            await tunnel.run()
        finally:
            upgraded.close()
        return "failed" if wrong else "done"

    async def _way(
        self, served: _Served, balance: Balance, client: str
    ) -> tuple[Backend, Upgraded] | str:
        """A way to a pod, or why there is none."""
        loop = asyncio.get_running_loop()
        tried: list[Backend] = []
        # Where it takes so long, it is mostly the remote that is away, and not one pod.
        until = loop.time() + DIAL_SECONDS
        while len(tried) < TRIES and loop.time() < until:
            backend = balance.choose(client, loop.time(), tried)
            if backend is None:
                break
            tried.append(backend)
            try:
                async with self._dials:
                    with self._measures.dialling.timed():
                        upgraded = await dial(self._remote, backend)
            except KubeError as error:
                self._measures.dials["failed"] += 1
                balance.failed(backend, loop.time())
                said = "relay: Service %s: no way to pod %s/%s: %s"
                where = about("Pod", backend.name, namespace=backend.namespace, cluster="remote")
                log.info(said, served.key, backend.namespace, backend.name, error, extra=where)
            else:
                self._measures.dials["ok"] += 1
                return backend, upgraded
        return "no-way" if tried else "no-pod"

    def _reset(self, client: asyncio.Transport, why: str) -> None:
        self._measures.ended[why] += 1
        reset(client)


class _Arrival(asyncio.Protocol):
    """A connection for which there is no way yet. What it says meanwhile is held, one read of it.

    uvloop begins to read after `connection_made`, whatever that says; so it is the first bytes that
    stop the reading.
    """

    __slots__ = ("_balance", "_eof", "_held", "_listeners", "_served", "client")

    client: asyncio.Transport

    def __init__(self, listeners: RelayListeners, served: _Served, balance: Balance) -> None:
        self._listeners = listeners
        self._served = served
        self._balance = balance
        self._held = b""
        self._eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast("asyncio.Transport", transport)
        self._listeners.arrived(self._served, self._balance, self)

    def data_received(self, data: bytes) -> None:
        self._held += data
        self.client.pause_reading()

    def eof_received(self) -> bool:
        self._eof = True
        return True  # it may still be answered

    def hand_over(self, end: End) -> None:
        """Makes this end of a tunnel the connection's protocol, with what was held."""
        self.client.set_protocol(end)
        end.connection_made(self.client)
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


def _socket(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    probe_when_silent(sock)
    sock.setblocking(False)
    return sock
