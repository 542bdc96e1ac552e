"""What runs in a relay pod of the remote: it listens for pods there, and a bridge at home fetches
what arrives.

Nothing here dials anybody: there is no credential and no address of home. The bridge comes in by
port-forwards to a port of the pod's loopback (`bridge.relay.reverse.control_messages`), and says on
which ports to listen.

- A connection that arrives is held, with one read of it at most, until the bridge takes it under
  the word that it was told; for `PICKUP` seconds, then it is reset. There are no more than `HELD`.
- One bridge is spoken to, the last that came: one that was started again takes the place of the one
  before, whose connection may not have ended yet.
- Without a bridge it listens on for `PICKUP` seconds, so that one can be started again and nobody
  is refused. Then it does not listen: who connects is refused at once.
- It begins to end when it is told to, and has ended when no bridge speaks to it and nothing that
  was taken is open.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from bridge.base.version import version
from bridge.net.tunnel import Tunnel
from bridge.relay.forward.connections import reset
from bridge.relay.reverse import control_messages as words
from bridge.relay.reverse.framing import FramedTransport, LossDetector
from sync.kube.sockets import enable_keepalive
from translators.relay.agent_pod import CONTROL_PORT

log = logging.getLogger(__name__)

#: Connections that wait to be taken.
HELD = 1024
#: Seconds for the first line of a connection to the port for bridges.
FIRST_SECONDS = 10.0
#: Seconds without a byte, beyond those after which the bridge ends a connection.
_IDLE_MORE = 60.0
#: Connections that the system keeps until they are taken.
_BACKLOG = 1024


class RelayAgent:
    """See the module. ``host`` is where it listens; all of the pod's addresses unless given."""

    def __init__(
        self,
        *,
        host: str = "",
        control_port: int = CONTROL_PORT,
        pickup: float = words.PICKUP,
        silence: float = words.SILENCE,
    ) -> None:
        self._host = host
        self.control_port = control_port
        self._pickup = pickup
        self._silence = silence
        self._held: dict[str, _HeldConnection] = {}
        self._open = 0
        self._control: _BridgeConnection | None = None
        self._wanted: frozenset[int] = frozenset()
        self._servers: dict[int, asyncio.Server] = {}
        self._changed = asyncio.Event()  # what is to be listened on
        self._moved = asyncio.Event()  # who speaks to us, or what is open
        self._alone: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set and nothing is open, or cancelled. Raises OSError where it cannot
        listen for bridges."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _BridgeConnection(self), "127.0.0.1", self.control_port, backlog=_BACKLOG
        )
        self.control_port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                listening = group.create_task(self._listen(), name="relay-listen")
                await stop.wait()
                log.info("relay: to end when nothing is open (%d)", self._open)
                while self._control is not None or self._open:
                    self._moved.clear()
                    await self._moved.wait()
                listening.cancel()
        finally:
            self._group = None
            server.close()
            if self._alone is not None:
                self._alone.cancel()
            if self._control is not None:
                self._control.end()
            for arrival in [*self._held.values()]:
                arrival.end()
            for port in [*self._servers]:
                self._servers.pop(port).close()

    # -- listening -------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listens where that is wanted, and says so."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for port in [*self._servers]:
                if port not in self._wanted:
                    self._servers.pop(port).close()
            for port in sorted(self._wanted - self._servers.keys()):
                try:
                    self._servers[port] = await self._server(port)
                except OSError as error:
                    log.warning("relay: port %d cannot be listened on: %s", port, error)
            if self._control is not None:
                self._control.say(listening=sorted(self._servers))

    async def _server(self, port: int) -> asyncio.Server:
        sock = _socket(self._host, port)
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(
                lambda: _HeldConnection(self, port), sock=sock, backlog=_BACKLOG
            )
        except BaseException:
            sock.close()
            raise

    # -- what arrives ----------------------------------------------------------------------

    def arrived(self, arrival: _HeldConnection) -> None:
        """A connection of a pod of the remote."""
        if self._group is None or len(self._held) >= HELD:
            reset(arrival.client)
            return
        self._held[arrival.word] = arrival
        loop = asyncio.get_running_loop()
        arrival.until = loop.call_later(self._pickup, self.refuse, arrival.word)
        if self._control is not None:
            self._tell(self._control, arrival)

    def _tell(self, control: _BridgeConnection, arrival: _HeldConnection) -> None:
        peer = arrival.client.get_extra_info("peername")
        control.say(
            arrived=arrival.word, port=arrival.port, **{"from": str(peer[0]) if peer else ""}
        )

    def taken_out(self, word: str) -> _HeldConnection | None:
        """It is held no longer; None where it was not."""
        arrival = self._held.pop(word, None)
        if arrival is not None and arrival.until is not None:
            arrival.until.cancel()
        return arrival

    def refuse(self, word: str) -> None:
        """Nobody takes it."""
        if arrival := self.taken_out(word):
            reset(arrival.client)

    # -- bridges ---------------------------------------------------------------------------

    def controlled(self, caller: _BridgeConnection) -> None:
        """A bridge speaks to us from now on, and no other."""
        before, self._control = self._control, caller
        if before is not None:
            before.end()
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        caller.hello()
        for arrival in self._held.values():
            self._tell(caller, arrival)
        caller.expect(self._silence)
        log.info("relay: a bridge has come")

    def told(self, caller: _BridgeConnection, said: dict[str, Any]) -> None:
        """A line of the bridge. Raises BadLine."""
        if caller is not self._control:
            return
        caller.expect(self._silence)
        if "listen" in said:
            self._wanted = words.decode_ports(said["listen"])
            self._changed.set()
        if "refuse" in said:
            self.refuse(str(said["refuse"]))
        if "ping" in said:
            caller.say(pong=said["ping"])

    def left(self, caller: _BridgeConnection) -> None:
        """A connection to the port for bridges has ended."""
        if caller is self._control:
            log.info("relay: the bridge has gone")
            self._control = None
            self._moved.set()
            loop = asyncio.get_running_loop()
            self._alone = loop.call_later(self._pickup, self._abandoned)

    def _abandoned(self) -> None:
        self._alone = None
        self._wanted = frozenset()
        self._changed.set()

    def take(self, transport: asyncio.Transport, said: dict[str, Any], rest: bytes) -> None:
        """The connection is for what has arrived under this word. ``rest`` came already."""
        arrival = self.taken_out(str(said.get("take")))
        idle = said.get("idle")
        if arrival is None or self._group is None or not isinstance(idle, int | float):
            transport.abort()
            return
        # The bridge minds the time: this is for one that is gone without a word.
        idle = float(idle) + _IDLE_MORE
        tunnel = Tunnel(idle_timeout=idle, half_open_timeout=idle)
        chunks = FramedTransport(tunnel.remote, partial(reset, arrival.client))
        transport.set_protocol(chunks)
        chunks.connection_made(transport)
        arrival.hand_over(LossDetector(tunnel.client, chunks))
        if rest:
            chunks.data_received(rest)
        self._open += 1
        self._group.create_task(self._carried(tunnel, arrival), name=f"relay-{arrival.port}")

    async def _carried(self, tunnel: Tunnel, arrival: _HeldConnection) -> None:
        try:
            await tunnel.run()
        finally:
            reset(arrival.client)  # where it was not closed in order
            self._open -= 1
            self._moved.set()


class _HeldConnection(asyncio.Protocol):
    """A connection that nobody has taken yet. One read of it is held."""

    __slots__ = ("_eof", "_read", "_relay", "client", "port", "until", "word")

    client: asyncio.Transport

    def __init__(self, relay: RelayAgent, port: int) -> None:
        self._relay = relay
        self._read = b""
        self._eof = False
        self.port = port
        self.word = secrets.token_urlsafe(16)
        self.until: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast("asyncio.Transport", transport)
        self._relay.arrived(self)

    def data_received(self, data: bytes) -> None:
        self._read += data
        self.client.pause_reading()

    def eof_received(self) -> bool:
        self._eof = True
        return True  # it may still be answered

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # how is all the same
        self._relay.taken_out(self.word)

    def end(self) -> None:
        """Nobody will take it."""
        self._relay.refuse(self.word)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Makes this the connection's protocol, with what was held."""
        self.client.set_protocol(protocol)
        protocol.connection_made(self.client)
        if self._read:
            protocol.data_received(self._read)
            self._read = b""
        if self._eof:
            protocol.eof_received()
        elif not self.client.is_closing():
            self.client.resume_reading()


class _BridgeConnection(asyncio.Protocol):
    """A connection to the port for bridges: first a line that says what it is for."""

    def __init__(self, relay: RelayAgent) -> None:
        self._relay = relay
        self._transport: asyncio.Transport
        self._held = b""
        self._is_control = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.expect(FIRST_SECONDS)

    def expect(self, seconds: float) -> None:
        """Ends unless something is said in this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def say(self, **said: Any) -> None:
        """One line to the bridge."""
        if not self._transport.is_closing():
            self._transport.write(words.encode(**said))

    def hello(self) -> None:
        """The first line."""
        self.say(version=words.VERSION, release=version())

    def end(self) -> None:
        """Hangs up."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._held += data
        try:
            while b"\n" in self._held and not self._transport.is_closing():
                raw, _, self._held = self._held.partition(b"\n")
                said = words.decode(raw)
                if self._is_control:
                    self._relay.told(self, said)
                elif self._first(said):
                    return
            longest = words.LINE if self._is_control else words.FIRST_LINE
            if len(self._held) > longest:
                raise words.ProtocolError("it is too long")  # noqa: TRY301  # as any other
        except words.ProtocolError as error:
            log.warning("relay: a line that a bridge does not say: %s", error)
            self.end()

    def _first(self, said: dict[str, Any]) -> bool:
        """Whether the connection is another's from now on."""
        if "take" in said:
            if self._timer is not None:
                self._timer.cancel()
            self._relay.take(self._transport, said, self._held)
            return True
        if said.get("control") != words.VERSION:
            # For one of another version to read.
            self.hello()
            self._transport.close()
            return True
        self._is_control = True
        self._relay.controlled(self)
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # how is all the same
        if self._timer is not None:
            self._timer.cancel()
        self._relay.left(self)


def _socket(host: str, port: int) -> socket.socket:
    """Listens on all addresses of both families, or of the one that there is."""
    if not host and socket.has_dualstack_ipv6():
        sock = socket.create_server(
            (host, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        sock = socket.create_server((host, port), backlog=_BACKLOG)
    enable_keepalive(sock)
    sock.setblocking(False)
    return sock


async def serve(stop: asyncio.Event, *, told: Callable[[str], None]) -> None:
    """The command."""
    relay = RelayAgent()
    told("relay: waiting for a bridge")
    await relay.run(stop)
