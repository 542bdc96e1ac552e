"""The control of a relay pod: the connection by which a bridge and one relay pod speak.

It is a port-forward through the remote's API server to the pod's loopback, opened again when it
ends. What goes over it is `bridge.relay.reverse.control_messages`.

- A bridge that may not write opens none: the one that serves the node has it.
- A pod that says nothing is taken to hang when it has been asked over two of them: one alone may
  have been lost on its way. What becomes of it `sync.relay.reverse` decides.
- A pod that speaks another version of the protocol is not used. One of another release is, and both
  are said.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from bridge.base.version import version
from bridge.net.port_forward import PortForwardTransport, open_port_forward
from bridge.relay.metrics import ReverseRelayMetrics
from bridge.relay.reverse import control_messages as words
from sync.base.backoff import Backoff
from sync.kube.credentials import ClientConfig
from sync.kube.errors import KubeError
from sync.runtime.log_fields import name_fields
from translators.objects import HomeNamespace, Object, RemoteUid, name_of, namespace_of, uid_of
from translators.relay.agent_pod import CONTROL_PORT, UNKNOWN_STATE
from translators.relay.forward import Backend
from translators.relay.reverse import ReverseRoute

log = logging.getLogger(__name__)

#: Seconds until a control that ended is opened again: the first time, and at most.
AGAIN, AGAIN_CAP = 0.1, 3.0
#: The same where the pod's version is another. Its container may start anew, of another image.
AGAIN_VERSION = 60.0
#: Controls over which a pod says nothing until it is taken to hang.
SILENT = 2


class AgentSilentError(ConnectionError):
    """The control is open, and the pod says nothing."""


class ProtocolVersionError(words.ProtocolError):
    """The pod speaks another version of the protocol."""


class ControlConnection:
    """One relay pod. ``arrived`` is called with each line that tells of a connection, and waited
    for; ``changed`` when something else is `heard`."""

    def __init__(
        self,
        home: HomeNamespace,
        pod: Object,
        *,
        remote: ClientConfig,
        measures: ReverseRelayMetrics,
        leads: Callable[[], bool],
        arrived: Callable[[ControlConnection, dict[str, Any]], Awaitable[None]],
        changed: Callable[[HomeNamespace], None],
    ) -> None:
        self.home = home
        self.backend = Backend(
            namespace_of(pod), name_of(pod), RemoteUid(uid_of(pod)), CONTROL_PORT
        )
        self.ways: Mapping[int, ReverseRoute] = {}
        self.heard = UNKNOWN_STATE
        self.task: asyncio.Task[None] | None = None
        self._remote = remote
        self._measures = measures
        self._leads = leads
        self._arrived = arrived
        self._changed = changed
        self._control: PortForwardTransport | None = None
        self._silent = 0  # controls over which nothing was said, one after the other

    def __str__(self) -> str:
        return f"{self.backend.namespace}/{self.backend.name}"

    @property
    def about(self) -> Mapping[str, Mapping[str, str]]:
        """For a line of the log."""
        backend = self.backend
        return name_fields("Pod", backend.name, namespace=backend.namespace, cluster="remote")

    def say(self, **said: Any) -> None:
        """One line to the pod, if it is spoken to."""
        if self._control is not None and not self._control.is_closing():
            self._control.write(words.encode(**said))

    def listen(self) -> None:
        """Has it listen where there are ways."""
        self.say(listen=sorted(self.ways))

    async def keep(self) -> NoReturn:
        """Keeps a control to the pod, until cancelled. Raises nothing else."""
        backoff = Backoff(first=AGAIN, cap=AGAIN_CAP)
        said = ""
        while True:
            why, level = "this bridge does not serve the node now", logging.INFO
            again = None
            if self._leads():
                try:
                    await self._speak(backoff)
                    why = "it hung up"
                except (KubeError, OSError, ValueError) as error:
                    why = str(error)
                    level = (
                        logging.WARNING if isinstance(error, words.ProtocolError) else logging.INFO
                    )
                    again = AGAIN_VERSION if isinstance(error, ProtocolVersionError) else None
                    self._silent += isinstance(error, AgentSilentError)
                    self._hears(unresponsive=self._silent >= SILENT)
            if why != said:
                said = why
                log.log(level, "relay: pod %s is not spoken to: %s", self, why, extra=self.about)
            await asyncio.sleep(again or backoff.next())

    async def _speak(self, backoff: Backoff) -> None:
        """One control, to its end. Raises KubeError, OSError, ValueError where there is none."""
        upgraded = await open_port_forward(self._remote, self.backend)
        reader = asyncio.StreamReader(limit=words.LINE)
        wrong: list[str] = []

        def failed(why: str) -> None:
            wrong.append(why)
            control.abort()  # whatever the kubelet does: nothing will be said any more

        control = PortForwardTransport(asyncio.StreamReaderProtocol(reader), failed)
        upgraded.take(control)
        try:
            self._control = control
            self.say(control=words.VERSION)
            first = await self._first(reader)
            if not first:
                raise ConnectionError(wrong[0] if wrong else "it hung up")
            self._greeted(first)
            backoff.reset()
            self._measures.agents += 1
            try:
                self.listen()
                while said := await self._line(reader):
                    await self._told(said)
            finally:
                self._measures.agents -= 1
            if wrong:
                raise ConnectionError(wrong[0])
        finally:
            self._control = None
            control.abort()
            self._hears(listening=frozenset())

    async def _first(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """As `_line`, of one that has just been spoken to."""
        try:
            async with asyncio.timeout(words.HELLO):
                raw = await reader.readline()
        except TimeoutError as error:
            raise AgentSilentError("it does not answer") from error
        return _read(raw)

    def _greeted(self, first: Mapping[str, Any]) -> None:
        """What the pod's first line says of itself. Raises OtherVersion."""
        self._silent = 0
        protocol, ours = first.get("version"), version()
        unlike = ""
        if protocol != words.VERSION:
            unlike = (
                f"it speaks version {_word(protocol)} of the relay's protocol, and this bridge "
                f"{words.VERSION}, so it is not used; give --relay-image the image of {ours}"
            )
        elif first.get("release") != ours:
            unlike = (
                f"it is of release {_word(first.get('release'))}, and this bridge of {ours}; they "
                f"understand each other, but give --relay-image the image of {ours}"
            )
        self._hears(unresponsive=False, version_warning=unlike)
        if protocol != words.VERSION:
            raise ProtocolVersionError(unlike)

    async def _line(self, reader: asyncio.StreamReader) -> dict[str, Any]:
        """The next line; {} at the end. Raises BadLine, ConnectionError and ValueError."""
        for _ in range(words.PINGS + 1):
            try:
                async with asyncio.timeout(words.PING):
                    raw = await reader.readline()
            except TimeoutError:
                self.say(ping=1)
                continue
            return _read(raw)
        raise AgentSilentError("it does not answer any more")

    async def _told(self, said: dict[str, Any]) -> None:
        """One line of the pod. Raises BadLine."""
        if "listening" in said:
            self._hears(listening=words.decode_ports(said["listening"]))
        if "arrived" in said:
            await self._arrived(self, said)

    def _hears(self, **changes: Any) -> None:
        heard = replace(self.heard, **changes)
        if heard != self.heard:
            self.heard = heard
            self._changed(self.home)


def _word(said: object) -> str:
    """What a pod says of itself, for people: it may say anything."""
    return re.sub(r"[^\w.+!-]", "?", str(said))[:64] if said else "unknown"


def _read(raw: bytes) -> dict[str, Any]:
    return words.decode(raw) if raw.endswith(b"\n") else {}
