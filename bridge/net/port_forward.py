"""A port-forward over a WebSocket (``v4.channel.k8s.io``) as a plain connection.

To the connection below it is a protocol, to the one above a transport, so that a tunnel can join it
with a socket. It speaks RFC 6455 as a client, and in it what kubelets speak
(k8s.io/kubelet/pkg/cri/streaming/portforward, websocket.go): each message begins with the number
of its channel, 0 for the data of the port and 1 for what went wrong, and the first message of a
channel from the kubelet is the port's number, two bytes.

- Data is handed over as it comes, without waiting for the end of a message; what is held is the
  head of a frame.
- ``failed`` is called once with a sentence when the kubelet tells of an error, when what comes is
  not the protocol, or when the connection ends without a WebSocket's close: then what came so far
  is not all.
- The protocol has no end of one direction. `write_eof` tells the pod nothing: what it sends still
  comes, until it hangs up.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from bridge.net.connection_layer import Buffer, Layer

#: The subprotocol, and what tells it from others in a request.
PROTOCOL = "v4.channel.k8s.io"
#: Bytes in one message: what tunnels read at a time, as one frame at most.
_FRAME = 128 * 1024
#: What is kept of an error's text.
_SAID = 500
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_CONTROL_MAX = 125


class Channels(Layer):
    """See the module. ``above`` hears of the data."""

    __slots__ = (
        "_channel",
        "_closed",
        "_control",
        "_failed",
        "_head",
        "_left",
        "_opcode",
        "_prefix",
        "_said",
    )

    def __init__(self, above: asyncio.Protocol, failed: Callable[[str], None]) -> None:
        super().__init__(above)
        self._failed: Callable[[str], None] | None = failed
        self._head = b""  # of a frame, as far as it has come
        self._left = 0  # bytes of the frame that are still to come
        self._opcode = _CONTINUED
        self._channel = -1  # of the message; -1 before its first byte
        self._prefix = [_PORT_BYTES, _PORT_BYTES]  # bytes to drop at the begin of each channel
        self._control = b""
        self._said = b""
        self._closed = False  # the kubelet has closed the WebSocket

    # -- from below ------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        at = 0
        while at < len(data) and not self._closed:
            if not self._left:
                size = self._begin(data, at)
                if not size:
                    self._head = data[at:]
                    return
                at += size
                if not self._left:
                    self._ended()
                continue
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            self._payload(piece)
            if not self._left:
                self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        if not (self._closed or self._closing):
            self._fail(self._text() or "the remote's API server hung up")
        self._closing = True
        self._above.connection_lost(exc)

    # -- frames that come ------------------------------------------------------------------

    def _begin(self, data: bytes, at: int) -> int:
        """Takes the head of a frame, if it is there; its size, 0 where more has to come."""
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
        known = (_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG)
        if (
            first & 0x70
            or second & 0x80
            or opcode not in known
            or (is_control and length > _CONTROL_MAX)
        ):
            self._broken()
            return size
        self._opcode, self._left = opcode, length
        if is_control:
            self._control = b""
        elif opcode != _CONTINUED:
            self._channel = -1
        return size

    def _payload(self, piece: bytes) -> None:
        if self._opcode >= _CLOSE:
            self._control += piece
            return
        if self._channel < 0:
            self._channel, piece = piece[0], piece[1:]
        if self._channel not in (_DATA, _ERROR):
            self._broken()
            return
        if skip := self._prefix[self._channel]:
            self._prefix[self._channel] = max(skip - len(piece), 0)
            piece = piece[skip:]
        if not piece:
            return
        if self._channel == _DATA:
            self._above.data_received(piece)
        elif len(self._said) < _SAID:
            self._said += piece[: _SAID - len(self._said)]

    def _ended(self) -> None:
        """A frame is whole."""
        if self._opcode == _PING:
            self._send(_PONG, self._control)
        elif self._opcode == _CLOSE:
            self._closed = True
            if self._said:
                self._fail(self._text())
            self.close()
        elif self._said and self._channel == _ERROR:
            self._fail(self._text())

    def _text(self) -> str:
        return self._said.decode("utf-8", "replace").strip()

    def _broken(self) -> None:
        self._closed = True
        self._fail("what the remote's API server sends is no port-forward")
        self.abort()

    def _fail(self, why: str) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(why)

    # -- to below --------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Sends data to the port."""
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _FRAME):
            self._send(_BINARY, b"\x00" + view[at : at + _FRAME].tobytes())

    def _send(self, opcode: int, payload: bytes) -> None:
        if self._closing or self._below is None:
            return
        self._below.write(frame(opcode, payload, os.urandom(4)))

    def settle(self) -> None:
        """Sends what means nothing (an empty pong), where the client has nothing to send yet.

        When the server's session ticket comes, OpenSSL takes a buffer of 16 KiB to write with, and
        gives it back when it has written: a client that only listens would hold it to its end.
        """
        self._send(_PONG, b"")

    def can_write_eof(self) -> bool:
        """True, although the pod does not hear of it: what it sends is still wanted."""
        return True

    def write_eof(self) -> None:
        """Nothing: see the module."""

    def close(self) -> None:
        """Closes the WebSocket, after all that was written."""
        if not self._closing:
            self._send(_CLOSE, b"\x03\xe8")  # 1000: as it should be
            self._closing = True
            self._lower.close()


def frame(opcode: int, payload: bytes, key: bytes) -> bytes:
    """A client's frame, whole in itself and masked with the key of four bytes (RFC 6455, 5.3)."""
    length = len(payload)
    if length < 126:
        size = bytes((0x80 | length,))
    elif length < 1 << 16:
        size = b"\xfe" + length.to_bytes(2, "big")
    else:
        size = b"\xff" + length.to_bytes(8, "big")
    return b"".join((bytes((0x80 | opcode,)), size, key, masked(payload, key)))


def masked(payload: bytes, key: bytes) -> bytes:
    """The payload, each byte xor that of the key: as one number, which is a hundred times faster
    than byte by byte."""
    length = len(payload)
    mask = (key * (length // 4 + 1))[:length]
    both = int.from_bytes(payload, "little") ^ int.from_bytes(mask, "little")
    return both.to_bytes(length, "little")
