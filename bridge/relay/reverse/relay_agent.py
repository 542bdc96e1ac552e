"""The relay agent, the program of the Pod that the bridge runs in the remote (`bridge relay-pod`).

The agent listens for pods of the remote and holds the connections that it accepts; the bridge at
home fetches them. The agent opens no connections and has neither a credential nor an address of
home: the bridge connects by port-forwards to the agent's loopback and sends the ports to listen on
(`bridge.relay.reverse.control_messages`).

- The agent holds an accepted connection, with at most one read of it, until the bridge takes it by
  its token, and resets it after `HOLD_TIMEOUT` seconds. It holds at most `MAX_HELD`.
- The agent serves one bridge, the latest: a restarted bridge replaces the previous one, whose
  control connection may not have ended yet.
- Without a bridge the agent continues to listen for `HOLD_TIMEOUT` seconds, so that a restart
  refuses no client. Then it closes its listeners, and clients are refused at once.
- Datagrams are not held (`bridge.relay.reverse.agent_datagrams`). Their stream belongs to the
  control connection, whose token the bridge sends, and ends with it.
- A bridge that does not read what the agent sends is disconnected at `MAX_UNSENT` bytes.
- On ``stop`` the agent ends as soon as no bridge is connected and no taken connection is open.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from bridge.base.progress_lines import Waiting
from bridge.base.version import version
from bridge.net.listening_socket import (
    BACKLOG,
    AcceptedConnection,
    listening_socket,
)
from bridge.net.splice import Tunnel
from bridge.net.unsent_budget import UnsentBudget
from bridge.relay.reverse import control_messages
from bridge.relay.reverse.agent_datagrams import AgentDatagrams
from bridge.relay.reverse.framing import FramedTransport
from sync.kube.layered_transport import reset_connection
from translators.relay.agent_pod import CONTROL_PORT

log = logging.getLogger(__name__)

#: Connections that are held until the bridge takes them.
MAX_HELD = 1024
#: Bytes for a bridge that it has not read: more than the announcements of all held connections.
MAX_UNSENT = 2**20
#: Seconds for the first line of a connection to the control port.
FIRST_LINE_TIMEOUT = 10.0
#: Seconds added to the bridge's idle timeout: the bridge closes first unless it has ended.
_IDLE_MARGIN = 60.0


class RelayAgent:
    """See the module. ``host`` is the address to listen on; "" means all addresses."""

    def __init__(
        self,
        *,
        host: str = "",
        control_port: int = CONTROL_PORT,
        hold_timeout: float = control_messages.HOLD_TIMEOUT,
    ) -> None:
        self._host = host
        self.control_port = control_port
        self._hold_timeout = hold_timeout
        self._held: dict[str, _HeldConnection] = {}
        self._open = 0
        self._unsent = UnsentBudget().share("")
        self._control: _BridgeConnection | None = None
        self._ports: frozenset[int] = frozenset()
        self._datagrams = AgentDatagrams(host, self._report_dropped)
        self._datagram_ports: frozenset[int] = frozenset()
        self._datagram_token = ""
        self._servers: dict[int, asyncio.Server] = {}
        self._ports_changed = asyncio.Event()
        self._idle_changed = asyncio.Event()  # the bridge has gone, or a connection has ended
        self._abandon_timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until ``stop`` is set and nothing is open, or until cancelled. Raises OSError if it
        cannot listen on the control port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _BridgeConnection(self),
            sock=listening_socket("127.0.0.1", self.control_port),
            backlog=BACKLOG,
        )
        self.control_port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                listening = group.create_task(self._update_listeners(), name="relay-listen")
                await stop.wait()
                log.info("relay: stopping when no connection is open (%d are)", self._open)
                while self._control is not None or self._open:
                    self._idle_changed.clear()
                    await self._idle_changed.wait()
                listening.cancel()
        finally:
            self._group = None
            server.close()
            if self._abandon_timer is not None:
                self._abandon_timer.cancel()
            if self._control is not None:
                self._control.abort()
            self._datagrams.close()
            for token in [*self._held]:
                self.refuse(token)
            for port in [*self._servers]:
                self._servers.pop(port).close()

    # -- listening -------------------------------------------------------------------------

    async def _update_listeners(self) -> None:
        """Listens on the requested ports and reports them to the bridge."""
        while True:
            await self._ports_changed.wait()
            self._ports_changed.clear()
            for port in [*self._servers]:
                if port not in self._ports:
                    self._servers.pop(port).close()
            for port in sorted(self._ports - self._servers.keys()):
                try:
                    self._servers[port] = await self._listen(port)
                except OSError as error:
                    log.warning("relay: cannot listen on port %d: %s", port, error)
            datagram_ports = self._datagrams.listen(self._datagram_ports)
            if self._control is not None:
                self._control.send(
                    listening=sorted(self._servers), listening_datagrams=sorted(datagram_ports)
                )

    async def _listen(self, port: int) -> asyncio.Server:
        sock = listening_socket(self._host, port)
        try:
            return await asyncio.get_running_loop().create_server(
                lambda: _HeldConnection(self, port), sock=sock, backlog=BACKLOG
            )
        except BaseException:
            sock.close()
            raise

    # -- accepted connections --------------------------------------------------------------

    def hold(self, held: _HeldConnection) -> None:
        """Holds a connection of a pod in the remote until it is taken, refused or times out."""
        if self._group is None or len(self._held) >= MAX_HELD:
            reset_connection(held.client)
            return
        self._held[held.token] = held
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(self._hold_timeout, self.refuse, held.token)
        if self._control is not None:
            self._control.announce(held)

    def release(self, token: str) -> _HeldConnection | None:
        """Removes a connection from those held and returns it; None if it is not held."""
        held = self._held.pop(token, None)
        if held is not None and held.timer is not None:
            held.timer.cancel()
        return held

    def refuse(self, token: str) -> None:
        if held := self.release(token):
            reset_connection(held.client)

    # -- bridges ---------------------------------------------------------------------------

    def set_control(self, connection: _BridgeConnection) -> None:
        """Makes this the control connection, and aborts the previous one."""
        previous, self._control = self._control, connection
        if previous is not None:
            previous.abort()
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
            self._abandon_timer = None
        self._datagrams.set_stream(None)
        self._datagram_token = secrets.token_urlsafe(16)
        connection.send_hello(datagrams=self._datagram_token)
        for held in self._held.values():
            connection.announce(held)
        connection.set_timeout(control_messages.BRIDGE_TIMEOUT)
        log.info("relay: a bridge has connected")

    def handle(self, connection: _BridgeConnection, message: dict[str, Any]) -> None:
        """Handles a message of the bridge. Raises ProtocolError."""
        if connection is not self._control:
            return
        connection.set_timeout(control_messages.BRIDGE_TIMEOUT)
        if "listen" in message:
            self._ports = control_messages.decode_ports(message["listen"])
            udp = message.get("listen_datagrams", [])  # an older bridge does not send it
            self._datagram_ports = control_messages.decode_ports(udp)
            self._ports_changed.set()
        if "refuse" in message:
            self.refuse(str(message["refuse"]))
        if "ping" in message:
            connection.send(pong=message["ping"])

    def disconnected(self, connection: _BridgeConnection) -> None:
        """A connection to the control port has ended."""
        if connection is self._control:
            log.info("relay: the bridge has disconnected")
            self._control = None
            self._datagram_token = ""
            self._datagrams.set_stream(None)
            self._idle_changed.set()
            loop = asyncio.get_running_loop()
            self._abandon_timer = loop.call_later(self._hold_timeout, self._abandon)

    def _abandon(self) -> None:
        self._abandon_timer = None
        self._ports = self._datagram_ports = frozenset()
        self._ports_changed.set()

    def take_datagrams(
        self, transport: asyncio.Transport, message: dict[str, Any], rest: bytes
    ) -> None:
        """Makes a bridge's connection the stream of datagrams; ``rest`` are the bytes after the
        message."""
        token = str(message.get("datagrams")).encode()
        if not self._datagram_token or not secrets.compare_digest(
            token, self._datagram_token.encode()
        ):
            transport.abort()
            return
        stream = self._datagrams.new_stream()
        transport.set_protocol(stream)
        stream.connection_made(transport)
        if rest:
            stream.data_received(rest)

    def _report_dropped(self, dropped: Counter[str]) -> bool:
        if self._control is None:
            return False
        self._control.send(dropped=dropped)
        return True

    def take(self, transport: asyncio.Transport, message: dict[str, Any], rest: bytes) -> None:
        """Splices a bridge's connection with the held one of its token; ``rest`` are the bytes
        after the message."""
        held = self.release(str(message.get("take")))
        idle = message.get("idle")
        if held is None or self._group is None or not isinstance(idle, int | float):
            transport.abort()
            return
        timeout = float(idle) + _IDLE_MARGIN
        tunnel = Tunnel(self._unsent, idle_timeout=timeout, half_open_timeout=timeout)
        framed = FramedTransport(tunnel.remote)
        transport.set_protocol(framed)
        framed.connection_made(transport)
        held.attach(tunnel.client)
        held.resume(tunnel.client)
        if rest:
            framed.data_received(rest)
        self._open += 1
        self._group.create_task(self._forward(tunnel), name=f"relay-{held.port}")

    async def _forward(self, tunnel: Tunnel) -> None:
        try:
            await tunnel.run()
        finally:
            self._open -= 1
            self._idle_changed.set()


class _HeldConnection(AcceptedConnection):
    """An accepted connection that no bridge has taken yet."""

    __slots__ = ("_agent", "port", "timer", "token")

    def __init__(self, agent: RelayAgent, port: int) -> None:
        super().__init__(agent.hold)
        self._agent = agent
        self.port = port
        self.token = secrets.token_urlsafe(16)
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # any cause
        self._agent.release(self.token)


class _BridgeConnection(asyncio.Protocol):
    """A connection to the control port. Its first line states its purpose."""

    def __init__(self, agent: RelayAgent) -> None:
        self._agent = agent
        self._transport: asyncio.Transport
        self._buffer = b""
        self._is_control = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.set_timeout(FIRST_LINE_TIMEOUT)

    def set_timeout(self, seconds: float) -> None:
        """Aborts the connection after so many seconds, unless this is called again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def send(self, **message: Any) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            log.warning("relay: the bridge does not read what the agent sends: disconnecting it")
            self.abort()
            return
        self._transport.write(control_messages.encode(**message))

    def send_hello(self, **more: Any) -> None:
        self.send(version=control_messages.VERSION, release=version(), **more)

    def announce(self, held: _HeldConnection) -> None:
        self.send(arrived=held.token, port=held.port, **{"from": held.client_address})

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            while b"\n" in self._buffer and not self._transport.is_closing():
                line, _, self._buffer = self._buffer.partition(b"\n")
                message = control_messages.decode(line)
                if self._is_control:
                    self._agent.handle(self, message)
                elif self._handle_first(message):
                    return
            longest = (
                control_messages.MAX_LINE if self._is_control else control_messages.MAX_FIRST_LINE
            )
            if len(self._buffer) > longest:
                raise control_messages.ProtocolError("a line is too long")  # noqa: TRY301
        except control_messages.ProtocolError as error:
            log.warning("relay: the bridge violates the protocol: %s", error)
            self.abort()

    def _handle_first(self, message: dict[str, Any]) -> bool:
        """Handles the first message; returns whether this object is done with the connection."""
        takes = {"take": self._agent.take, "datagrams": self._agent.take_datagrams}
        for purpose, take in takes.items():
            if purpose in message:
                if self._timer is not None:
                    self._timer.cancel()
                take(self._transport, message, self._buffer)
                return True
        if message.get("control") != control_messages.VERSION:
            self.send_hello()  # for a bridge of another version to read
            self._transport.close()
            return True
        self._is_control = True
        self._agent.set_control(self)
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # any cause
        if self._timer is not None:
            self._timer.cancel()
        self._agent.disconnected(self)


async def serve(stop: asyncio.Event, *, notify: Callable[[str], None]) -> None:
    """Runs a relay agent; ``report`` shows progress to the user."""
    notify(Waiting("relay: waiting for a bridge"))
    await RelayAgent().run(stop)
