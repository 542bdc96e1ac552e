"""The bridge's control connection to one relay agent.

It is a port-forward through the remote's API server to the agent's loopback, and is reopened when
it ends. `bridge.relay.reverse.control_messages` defines its messages.

- Only a bridge that may write (`is_leader`) opens one: the agent belongs to the bridge that serves
  the node.
- An agent is reported as unresponsive after `MAX_SILENT` consecutive control connections without an
  answer: a single one may have been lost in the network. `sync.relay.reverse_controller` decides
  what follows.
- While the control connection is open and a route is of UDP, the stream of datagrams
  (`bridge.relay.reverse.datagram_stream`) is kept open by another port-forward, if the agent's
  release forwards UDP. Otherwise these ports are reported as unsupported.
- Neither messages of an agent, nor changes of its ports, are handled faster than a rate; an agent
  that does not read its messages is disconnected.
- A malformed message ends the control connection. So does a defect of the bridge in handling one,
  which is logged: the connections to other agents are unaffected.
- An agent with another protocol version is not used. One of another release is used. Both are
  reported as a version warning.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from bridge.base.version import version
from bridge.net.port_forward_connection import PortForwardTransport, open_port_forward
from bridge.relay.rate_limits import TokenBucket
from bridge.relay.relay_counters import ReverseRelayMetrics
from bridge.relay.reverse import control_messages
from bridge.relay.reverse.datagram_stream import DatagramStream
from sync.base.background_task import background_task
from sync.base.backoff import Backoff
from sync.base.exception_summary import log_defects
from sync.kube.api_errors import KubeError
from sync.kube.transport import Transport
from sync.runtime.log_fields import name_fields
from translators.object_accessors import (
    HomeNamespace,
    Object,
    RemoteUid,
    name_of,
    namespace_of,
    uid_of,
)
from translators.relay.agent_pod import CONTROL_PORT, UNKNOWN_STATE
from translators.relay.forward_plan import Backend
from translators.relay.reverse_plan import ReverseRoute

log = logging.getLogger(__name__)

#: Seconds until an ended control connection is reopened: the first time, and at most.
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 3.0
#: The same for an agent of another protocol version; its container may restart with another image.
VERSION_RETRY_SECONDS = 60.0
#: Control connections without an answer until the agent counts as unresponsive.
MAX_SILENT = 2
#: The longest token of an agent.
MAX_TOKEN = 100
#: Messages of an agent in a second, where each `_BYTES_PER_MESSAGE` of one count as another, so
#: that more than 500 announced connections fit; and changes of its ports, each of which leads to a
#: reconcile. A second's worth may arrive together.
MESSAGE_RATE, CHANGE_RATE = 1000.0, 5.0
_BYTES_PER_MESSAGE = 128
#: Bytes that may wait for an agent to read them: twice the longest message.
_UNSENT_LIMIT = 2 * control_messages.MAX_LINE


class AgentSilentError(ConnectionError):
    """The control connection is open, and the agent does not answer."""


class ProtocolVersionError(control_messages.ProtocolError):
    """The agent has another version of the protocol."""


class ControlConnection:
    """The connection to one agent. ``on_arrival`` is awaited for each message that announces an
    accepted connection; ``on_change`` is called when `state` changes. ``new_stream`` returns the
    stream of datagrams for a new connection, which is to send the given first line."""

    def __init__(
        self,
        home: HomeNamespace,
        pod: Object,
        *,
        remote: Transport,
        metrics: ReverseRelayMetrics,
        is_leader: Callable[[], bool],
        on_arrival: Callable[[ControlConnection, dict[str, Any]], Awaitable[None]],
        on_change: Callable[[HomeNamespace], None],
        new_stream: Callable[[ControlConnection, bytes], DatagramStream],
    ) -> None:
        self.home = home
        self.backend = Backend(
            namespace_of(pod), name_of(pod), RemoteUid(uid_of(pod)), CONTROL_PORT
        )
        self.routes: Mapping[int, ReverseRoute] = {}
        self.state = UNKNOWN_STATE
        self.task: asyncio.Task[None] | None = None
        self._remote = remote
        self._metrics = metrics
        self._is_leader = is_leader
        self._on_arrival = on_arrival
        self._on_change = on_change
        self._new_stream = new_stream
        self._datagram_token: str | None = None  # "" if the agent has none, None if not connected
        self._has_datagram_routes = asyncio.Event()
        self._transport: PortForwardTransport | None = None
        self._silent = 0  # consecutive connections without an answer
        self._messages, self._changes = TokenBucket(MESSAGE_RATE), TokenBucket(CHANGE_RATE)

    def __str__(self) -> str:
        return f"{self.backend.namespace}/{self.backend.name}"

    @property
    def log_fields(self) -> Mapping[str, Mapping[str, str]]:
        backend = self.backend
        return name_fields("Pod", backend.name, namespace=backend.namespace, cluster="remote")

    def send(self, **message: Any) -> None:
        """Sends one message to the agent if the connection is open."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(control_messages.encode(**message))
        if self._transport.get_write_buffer_size() > _UNSENT_LIMIT:
            self._transport.abort()

    def set_routes(self, routes: Mapping[int, ReverseRoute]) -> None:
        """Sets `routes`, and requests that the agent listens on their ports."""
        before, self.routes = self.routes, routes
        if _ports(before) != _ports(routes):
            self._send_ports()

    def _send_ports(self) -> None:
        tcp, udp = _ports(self.routes)
        if udp:
            self._has_datagram_routes.set()
        else:
            self._has_datagram_routes.clear()
        self.send(listen=sorted(tcp), listen_datagrams=sorted(udp))
        self._update_state(unsupported=udp if self._datagram_token == "" else frozenset())

    async def keep_open(self) -> NoReturn:
        """Keeps the connection open until cancelled. Raises nothing else."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(first=RETRY_SECONDS, cap=MAX_RETRY_SECONDS)
        logged = ""
        while True:
            why, level = "this bridge does not serve the node now", logging.INFO
            retry, began = None, loop.time()
            if self._is_leader():
                why = "a defect in the bridge"
                with log_defects(f"relay: relay agent {self}", extra=self.log_fields):
                    try:
                        await self._connect()
                        why = "it closed the connection"
                    except (KubeError, OSError, ValueError) as error:
                        why = str(error)
                        if isinstance(error, control_messages.ProtocolError):
                            level = logging.WARNING
                        if isinstance(error, ProtocolVersionError):
                            retry = VERSION_RETRY_SECONDS
                        self._silent += isinstance(error, AgentSilentError)
                        self._update_state(unresponsive=self._silent >= MAX_SILENT)
            if why != logged:
                logged = why
                log.log(
                    level,
                    "relay: no control connection to relay agent %s: %s",
                    self,
                    why,
                    extra=self.log_fields,
                )
            if loop.time() - began > MAX_RETRY_SECONDS:
                backoff.reset()
            await asyncio.sleep(retry or backoff.next())

    async def _connect(self) -> None:
        """Opens one connection and handles its messages to the end. Raises KubeError, OSError or
        ValueError on failure."""
        upgraded = await open_port_forward(self._remote, self.backend)
        reader = asyncio.StreamReader(limit=control_messages.MAX_LINE)
        errors: list[str] = []

        def failed(why: str) -> None:
            errors.append(why)
            transport.abort()  # whatever the kubelet does, no message follows

        transport = PortForwardTransport(asyncio.StreamReaderProtocol(reader), failed)
        upgraded.take(transport)
        try:
            self._transport = transport
            self.send(control=control_messages.VERSION)
            hello = await _read_hello(reader)
            if not hello:
                raise ConnectionError(errors[0] if errors else "it closed the connection")
            _check_types(hello)
            self._check_version(hello)
            self._datagram_token = (hello.get("datagrams") or "")[:MAX_TOKEN]
            self._metrics.agents += 1
            try:
                self._send_ports()
                async with background_task(self._keep_stream_open(), name=f"relay-udp-{self}"):
                    while message := await self._read_message(reader):
                        await self._handle(message)
            finally:
                self._metrics.agents -= 1
            if errors:
                raise ConnectionError(errors[0])
        finally:
            self._transport = self._datagram_token = None
            transport.abort()
            self._update_state(listening=frozenset(), unsupported=frozenset())

    async def _handle(self, message: dict[str, Any]) -> None:
        """Handles a message of the agent. Raises ProtocolError."""
        if "listening" in message:
            tcp = control_messages.decode_ports(message["listening"])
            udp = control_messages.decode_ports(message.get("listening_datagrams", []))
            if tcp | udp != self.state.listening:
                await _pass(self._changes)
            self._update_state(listening=tcp | udp)
        if "dropped" in message:
            self._metrics.dropped.update(control_messages.decode_dropped(message["dropped"]))
        if "arrived" in message:
            await self._on_arrival(self, message)

    async def _keep_stream_open(self) -> None:
        """Keeps the stream of datagrams open while there are routes for it, until cancelled.
        Returns at once if the agent does not forward datagrams. Raises nothing else."""
        if not self._datagram_token:
            return
        logged: list[str] = []
        backoff = Backoff(first=RETRY_SECONDS, cap=MAX_RETRY_SECONDS)
        preface = control_messages.encode(datagrams=self._datagram_token)
        while True:
            await self._has_datagram_routes.wait()
            began = asyncio.get_running_loop().time()
            errors: list[str] = []
            try:
                await self._run_stream(preface, errors)
            except (KubeError, OSError) as error:
                errors.append(str(error))
            if errors != logged:
                logged = errors
                log.info(
                    "relay: no stream of datagrams with relay agent %s: %s",
                    self,
                    "; ".join(errors) or "it closed the connection",
                    extra=self.log_fields,
                )
            if asyncio.get_running_loop().time() - began > MAX_RETRY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.next())

    async def _run_stream(self, preface: bytes, errors: list[str]) -> None:
        """Opens one stream of datagrams and waits until it ends; adds the kubelet's ``errors``.
        Raises KubeError or OSError."""
        upgraded = await open_port_forward(self._remote, self.backend)
        stream = self._new_stream(self, preface)

        def failed(why: str) -> None:
            errors.append(why)
            stream.abort()  # whatever the kubelet does, no datagram follows

        upgraded.take(PortForwardTransport(stream, failed))
        try:
            await stream.closed.wait()
        finally:
            stream.abort()

    def _check_version(self, hello: Mapping[str, Any]) -> None:
        """Compares the agent's versions with the bridge's. Raises ProtocolVersionError."""
        self._silent = 0
        protocol, release, ours = hello.get("version"), hello.get("release"), version()
        warning = ""
        if protocol != control_messages.VERSION:
            warning = (
                f"it speaks version {_printable(protocol)} of the relay protocol and this bridge "
                f"version {control_messages.VERSION}, so it is not used; set --relay-image to the "
                f"image of {ours}"
            )
        elif release != ours:
            warning = (
                f"it is of release {_printable(release)}, and this bridge of {ours}; they are "
                f"compatible, but set --relay-image to the image of {ours}"
            )
        self._update_state(unresponsive=False, version_warning=warning)
        if protocol != control_messages.VERSION:
            raise ProtocolVersionError(warning)

    async def _read_message(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """The next message; {} at the end. Raises ProtocolError, ConnectionError, ValueError."""
        for _ in range(control_messages.MAX_PINGS + 1):
            try:
                async with asyncio.timeout(control_messages.PING_INTERVAL):
                    line = await reader.readline()
            except TimeoutError:
                self.send(ping=1)
                continue
            await _pass(self._messages, 1 + len(line) / _BYTES_PER_MESSAGE)
            return _decode(line)
        raise AgentSilentError("it no longer answers")

    def _update_state(self, **changes: Any) -> None:
        state = replace(self.state, **changes)
        if state != self.state:
            self.state = state
            self._on_change(self.home)


async def _pass(bucket: TokenBucket, tokens: float = 1.0) -> None:
    """Waits until the tokens are available."""
    await asyncio.sleep(bucket.charge(asyncio.get_running_loop().time(), tokens))


async def _read_hello(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The agent's first message. Raises as `ControlConnection._read_message`."""
    try:
        async with asyncio.timeout(control_messages.HELLO_TIMEOUT):
            line = await reader.readline()
    except TimeoutError as error:
        raise AgentSilentError("it does not answer") from error
    return _decode(line)


def _check_types(hello: Mapping[str, Any]) -> None:
    """Checks the types of an agent's first message. Raises ProtocolError."""
    types = {"version": int, "release": str, "datagrams": str}
    if not all(isinstance(hello.get(key), kind | None) for key, kind in types.items()):
        raise control_messages.ProtocolError("the first message is malformed")


def _ports(routes: Mapping[int, ReverseRoute]) -> tuple[frozenset[int], frozenset[int]]:
    """The ports of TCP, and those of UDP."""
    udp = frozenset(port for port, route in routes.items() if route.is_udp)
    return frozenset(routes) - udp, udp


def _printable(value: str | int | None) -> str:
    """An agent's version for messages: the agent is not trusted, so it may send any text."""
    return re.sub(r"[^\w.+!-]", "?", str(value))[:64] if value else "unknown"


def _decode(line: bytes) -> dict[str, Any]:
    return control_messages.decode(line) if line.endswith(b"\n") else {}
