"""A port-forward to a pod over a WebSocket (``v4.channel.k8s.io``), as a plain connection.

`open_port_forward` sends the upgrade request to the API server; `PortForwardTransport` is a
protocol to the upgraded connection below and a transport to the protocol above, so that a tunnel
can join it with a socket. It speaks RFC 6455 as a client and, inside, the channels of kubelets
(k8s.io/kubelet/pkg/cri/streaming/portforward, websocket.go): each message begins with its channel
number, 0 for the port's data and 1 for errors, and the kubelet's first message on a channel is the
port number, two bytes.

- Data is passed on as it arrives, without waiting for the end of a message; only the head of a
  frame is buffered. aiohttp's WebSocket reader does not fit: it delivers whole messages into a
  queue, for which each connection would need a task, and its writer waits in a coroutine instead of
  calling `pause_writing`.
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
from collections.abc import Callable

import orjson

from sync.kube.api_errors import KubeError, Unreachable, from_status
from sync.kube.api_resources import PODS
from sync.kube.credentials import ClientConfig
from sync.kube.http_upgrade import UpgradeResponse, open_upgrade
from sync.kube.nested_transport import Buffer, LayeredTransport
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
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_OPCODES = (_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG)
_MAX_CONTROL_FRAME = 125
_NORMAL_CLOSURE = b"\x03\xe8"
_VIOLATION = "the remote's API server sent what is no port-forward"
_HUNG_UP = "the remote's API server hung up"
#: The server appends this to the client's key for Sec-WebSocket-Accept (RFC 6455, 1.3).
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


async def open_port_forward(access: ClientConfig, backend: Backend) -> UpgradeResponse:
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
                access, "GET", path, [("ports", str(backend.port))], headers
            )
    except TimeoutError as error:
        raise Unreachable(
            f"no port-forward to the pod within {OPEN_TIMEOUT:.0f} s", side=access.side, what=what
        ) from error
    if upgraded.status != 101:
        raise rejection(access, upgraded, what)
    accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest()).decode()
    if upgraded.head.values("Sec-WebSocket-Accept") != [accept] or upgraded.head.values(
        "Sec-WebSocket-Protocol"
    ) != [SUBPROTOCOL]:
        upgraded.close()
        raise Unreachable(
            f"the API server answers a port-forward with something else than {SUBPROTOCOL}",
            side=access.side,
            what=what,
        )
    return upgraded


def rejection(access: ClientConfig, upgraded: UpgradeResponse, what: str) -> KubeError:
    """The error that a response without an upgrade reports."""
    try:
        body = orjson.loads(upgraded.body)
    except orjson.JSONDecodeError:
        body = None
    status = body if isinstance(body, dict) else {"message": f"answered {upgraded.status}"}
    return from_status(status, code=upgraded.status, side=access.side, what=what)


class PortForwardTransport(LayeredTransport):
    """See the module. ``above`` receives the data."""

    __slots__ = (
        "_channel",
        "_control",
        "_error",
        "_head",
        "_left",
        "_on_error",
        "_opcode",
        "_port_bytes_left",
        "_received_close",
    )

    def __init__(self, above: asyncio.Protocol, on_error: Callable[[str], None]) -> None:
        super().__init__(above)
        self._on_error: Callable[[str], None] | None = on_error
        self._head = b""  # of a frame, as far as it has arrived
        self._left = 0  # bytes of the frame that are still to arrive
        self._opcode = _CONTINUATION
        self._channel = -1  # of the message; -1 before its first byte
        self._port_bytes_left = [_PORT_BYTES, _PORT_BYTES]  # to skip at the start of each channel
        self._control = b""
        self._error = b""
        self._received_close = False

    # -- from below ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        at = 0
        while at < len(data) and not self._received_close:
            if not self._left:
                size = self._begin_frame(data, at)
                if not size:
                    self._head = data[at:]
                    return
                at += size
                if not self._left:
                    self._end_frame()
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            self._receive_payload(piece)
            if not self._left:
                self._end_frame()

    def connection_lost(self, exc: Exception | None) -> None:
        if not (self._received_close or self._closing):
            self._report_error(self._error_text() or _HUNG_UP)
        self._closing = True
        self._upper.connection_lost(exc)

    # -- received frames -------------------------------------------------------------------

    def _begin_frame(self, data: bytes, at: int) -> int:
        """Reads the head of a frame; returns its size, or 0 if it has not arrived completely."""
        if len(data) < at + 2:
            return 0
        first, second = data[at], data[at + 1]
        size, length = 2, second & 0x7F
        if length == 126:
            size = 4
        elif length == 127:
            size = 10
        if len(data) < at + size:
            return 0
        if size > 2:
            length = int.from_bytes(data[at + 2 : at + size], "big")
        opcode = first & 0x0F
        is_control = opcode >= _CLOSE
        if (
            first & 0x70
            or second & 0x80
            or opcode not in _OPCODES
            or (is_control and length > _MAX_CONTROL_FRAME)
        ):
            self._fail(_VIOLATION)
            return size
        self._opcode, self._left = opcode, length
        if is_control:
            self._control = b""
        elif opcode != _CONTINUATION:
            self._channel = -1
        return size

    def _receive_payload(self, piece: bytes) -> None:
        if self._opcode >= _CLOSE:
            self._control += piece
            return
        if self._channel < 0:
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

    def _end_frame(self) -> None:
        if self._opcode == _PING:
            self._send(_PONG, self._control)
        elif self._opcode == _CLOSE:
            if self._error or self._control[:2] not in (b"", _NORMAL_CLOSURE):
                self._fail(self._error_text() or _HUNG_UP)
                return
            self._received_close = True
            if not self._closing:
                self._upper.eof_received()
            self.close()
        elif self._error and self._channel == _ERROR:
            self._fail(self._error_text())

    def _error_text(self) -> str:
        return self._error.decode("utf-8", "replace").strip()

    def _fail(self, why: str) -> None:
        """Ends the connection abnormally."""
        self._received_close = True
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
            self._send(_BINARY, b"\x00" + view[at : at + _FRAME_SIZE].tobytes())

    def _send(self, opcode: int, payload: bytes) -> None:
        if self._closing or self._below is None:
            return
        self._below.write(frame(opcode, payload, os.urandom(4)))

    def release_write_buffer(self) -> None:
        """Sends an empty pong, for a client that has nothing to send yet.

        When the server's session ticket arrives, OpenSSL allocates a write buffer of 16 KiB and
        frees it after the next write: without one, a client that only listens holds it to the end.
        """
        self._send(_PONG, b"")

    def can_write_eof(self) -> bool:
        """True, so that the pod's data is still read after the client's end."""
        return True

    def write_eof(self) -> None:
        """Sends nothing: the protocol has no half-close."""

    def close(self) -> None:
        """Closes the WebSocket after the data written so far."""
        if not self._closing:
            self._send(_CLOSE, _NORMAL_CLOSURE)
            self._closing = True
            self._lower.close()


def frame(opcode: int, payload: bytes, key: bytes) -> bytes:
    """Encodes a client's final frame, masked with the key of four bytes (RFC 6455, 5.3)."""
    length = len(payload)
    if length < 126:
        size = bytes((0x80 | length,))
    elif length < 1 << 16:
        size = b"\xfe" + length.to_bytes(2, "big")
    else:
        size = b"\xff" + length.to_bytes(8, "big")
    return b"".join((bytes((0x80 | opcode,)), size, key, mask(payload, key)))


def mask(payload: bytes, key: bytes) -> bytes:
    """Masks the payload with the key: one xor of two large numbers, a hundred times faster than
    byte by byte."""
    length = len(payload)
    repeated = (key * (length // 4 + 1))[:length]
    both = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
    return both.to_bytes(length, "little")
