"""A port-forward to a pod over a WebSocket (``v4.channel.k8s.io``), as a plain connection.

`open_port_forward` sends the upgrade request to the API server; `PortForwardTransport` is a
protocol to the upgraded connection below and a transport to the protocol above, so that a tunnel
can join it with a socket. wsproto speaks RFC 6455 and, inside, this module the channels of kubelets
(k8s.io/kubelet/pkg/cri/streaming/portforward, websocket.go): each message begins with its channel
number, 0 for the port's data and 1 for errors, and the kubelet's first message on a channel is the
port number, two bytes.

- Data is passed on as it arrives, without waiting for the end of a message, and a limited number of
  frames at a time (`sync.kube.portions`). aiohttp's WebSocket reader does not fit: it delivers
  whole messages into a queue, for which each connection would need a task, and its writer waits in
  a coroutine instead of calling `pause_writing`.
- A normal WebSocket close is EOF (`bridge.net.splice`). ``on_error`` is called once, with a
  sentence, when the kubelet reports an error, when the peer violates the protocol, or when the
  connection ends otherwise: then it is lost without EOF.
- The protocol has no half-close. `write_eof` sends nothing: the pod's data still arrives until the
  pod hangs up.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import Callable, Iterator
from itertools import takewhile

import orjson
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong
from wsproto.frame_protocol import CloseReason

from sync.kube.api_errors import KubeError, Unreachable, from_status
from sync.kube.api_resources import PODS
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.layered_transport import Buffer, LayeredTransport
from sync.kube.portions import UNSENT_LIMIT, Portions
from sync.kube.transport import Transport
from translators.relay.forward_plan import Backend

#: The WebSocket subprotocol of port-forwards.
SUBPROTOCOL = "v4.channel.k8s.io"
#: Seconds to open a port-forward. The API server allows half a minute to reach the node: a client
#: at home should get another pod long before.
OPEN_TIMEOUT = 4.0
#: Bytes in one message: what tunnels read at a time, as one frame at most.
_FRAME_SIZE = 128 * 1024
#: Bytes that are kept of an error's text.
_ERROR_SIZE = 500
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
#: How a WebSocket ends in order; the second without a reason.
_IN_ORDER = (CloseReason.NORMAL_CLOSURE, CloseReason.NO_STATUS_RCVD)
_VIOLATION = "the remote's API server sent what is no port-forward"
_HUNG_UP = "the remote's API server hung up"
#: The server appends this to the client's key for Sec-WebSocket-Accept (RFC 6455, 1.3).
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def open_port_forward(client: Transport, backend: Backend) -> UpgradeResponse:
    """Opens a connection for a `PortForwardTransport` to one port of a pod. Raises KubeError if the
    API server cannot connect it to the pod.

    Whether the pod listens on the port is not known yet: the kubelet reports that on the error
    channel.
    """
    path = PODS.path(backend.name, namespace=backend.namespace, subresource="portforward")
    what = f"GET {path} (port {backend.port})"
    key = base64.b64encode(os.urandom(16))
    headers = [
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key.decode()),
        ("Sec-WebSocket-Protocol", SUBPROTOCOL),
    ]
    try:
        async with asyncio.timeout(OPEN_TIMEOUT):
            upgraded = await open_upgrade(
                client, "GET", path, [("ports", str(backend.port))], headers
            )
    except TimeoutError as error:
        raise Unreachable(
            f"no port-forward to the pod within {OPEN_TIMEOUT:.0f} s", side=client.side, what=what
        ) from error
    if upgraded.status != 101:
        raise rejection(client, upgraded, what)
    accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
    if upgraded.head.values("Sec-WebSocket-Accept") != [accept] or upgraded.head.values(
        "Sec-WebSocket-Protocol"
    ) != [SUBPROTOCOL]:
        upgraded.close()
        raise Unreachable(
            f"the API server answers a port-forward with something else than {SUBPROTOCOL}",
            side=client.side,
            what=what,
        )
    return upgraded


def rejection(client: Transport, upgraded: UpgradeResponse, what: str) -> KubeError:
    """The error that a response without an upgrade reports."""
    try:
        body = orjson.loads(upgraded.body)
    except orjson.JSONDecodeError:
        body = None
    status = body if isinstance(body, dict) else {"message": f"answered {upgraded.status}"}
    return from_status(status, code=upgraded.status, side=client.side, what=what)


class PortForwardTransport(LayeredTransport):
    """See the module. ``above`` receives the data."""

    __slots__ = (
        "_channel",
        "_error",
        "_on_error",
        "_port_bytes_left",
        "_portions",
        "_websocket",
    )

    def __init__(self, above: asyncio.Protocol, on_error: Callable[[str], None]) -> None:
        super().__init__(above)
        self._on_error: Callable[[str], None] | None = on_error
        self._websocket = Connection(ConnectionType.CLIENT)
        self._portions = Portions(
            self._frames, on_flood=lambda: self._fail(_VIOLATION), on_lost=self._lost
        )
        self._channel = -1  # of the message; -1 before its first byte
        self._port_bytes_left = [_PORT_BYTES, _PORT_BYTES]  # to skip at the start of each channel
        self._error = b""

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._portions.begin(self._lower)

    def data_received(self, data: bytes) -> None:
        self._portions.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.lose(exc)

    def _lost(self, exc: Exception | None) -> None:
        if self._closing:  # what TCP reports after the WebSocket's own end is of no interest
            exc = None
        else:
            self._report_error(self._error_text() or _HUNG_UP)
        self._closing, self._on_error = True, None
        self._end_upper(exc)

    # -- received frames -------------------------------------------------------------------

    def _frames(self, data: bytes) -> Iterator[bool]:
        if not self._closing:
            self._websocket.receive_data(data)
            for event in takewhile(lambda _: not self._closing, self._websocket.events()):
                yield self._receive(event)

    def _receive(self, event: Event) -> bool:
        """Handles a frame, or a part of one; returns whether it has data."""
        if isinstance(event, BytesMessage):
            self._receive_message(bytes(event.data))
            if event.message_finished:
                if self._error and self._channel == _ERROR:
                    self._fail(self._error_text())
                self._channel = -1
            return len(event.data) > 1
        if isinstance(event, Ping):
            if self._lower.get_write_buffer_size() < UNSENT_LIMIT:
                self._send(event.response())
        elif isinstance(event, CloseConnection):
            self._receive_close(event)
        elif not isinstance(event, Pong):
            self._fail(_VIOLATION)
        return False

    def _receive_message(self, piece: bytes) -> None:
        if self._channel < 0:
            if not piece:
                return
            self._channel, piece = piece[0], piece[1:]
        if self._channel not in (_DATA, _ERROR):
            self._fail(_VIOLATION)
            return
        if skip := self._port_bytes_left[self._channel]:
            self._port_bytes_left[self._channel] = max(skip - len(piece), 0)
            piece = piece[skip:]
        if not piece:
            return
        if self._channel == _DATA:
            self._upper.data_received(piece)
        elif len(self._error) < _ERROR_SIZE:
            self._error += piece[: _ERROR_SIZE - len(self._error)]

    def _receive_close(self, event: CloseConnection) -> None:
        """The peer's close, or a violation that wsproto has found."""
        if self._error or event.code not in _IN_ORDER:
            is_violation = event.code == CloseReason.PROTOCOL_ERROR
            self._fail(self._error_text() or (_VIOLATION if is_violation else _HUNG_UP))
            return
        self._upper.eof_received()
        self.close()

    def _error_text(self) -> str:
        return self._error.decode("utf-8", "replace").strip()

    def _fail(self, why: str) -> None:
        """Ends the connection abnormally."""
        self._report_error(why)
        self.abort()

    def _report_error(self, why: str) -> None:
        on_error, self._on_error = self._on_error, None
        if on_error is not None:
            on_error(why)

    # -- to below --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _FRAME_SIZE):
            self._send(BytesMessage(b"\x00" + view[at : at + _FRAME_SIZE].tobytes()))

    def _send(self, event: Event) -> None:
        if not self._closing:
            self._write_below(self._websocket.send(event))

    def release_write_buffer(self) -> None:
        """Sends an empty pong, for a client that has nothing to send yet.

        When the server's session ticket arrives, OpenSSL allocates a write buffer of 16 KiB and
        frees it after the next write: without one, a client that only listens holds it to the end.
        """
        self._send(Pong())

    def can_write_eof(self) -> bool:
        """True, so that the pod's data is still read after the client's end."""
        return True

    def write_eof(self) -> None:
        """Sends nothing: the protocol has no half-close."""

    def pause_reading(self) -> None:
        self._portions.pause(on=True)

    def resume_reading(self) -> None:
        self._portions.pause(on=False)

    def close(self) -> None:
        """Closes the WebSocket after the data written so far."""
        if not self._closing:
            self._send(CloseConnection(CloseReason.NORMAL_CLOSURE))
            self._closing = True
            self._lower.close()
