"""Client of an exec over SPDY/3.1, the protocol that API servers and kubelets use among each other.

API servers pass SPDY on unparsed, and container runtimes read it with much less CPU time than a
WebSocket: their library unmasks that byte by byte and grows a buffer for each message. So this is
for large input. A server, or a proxy before it, may support WebSockets only: then
`open_spdy_exec` returns None.

- Each of the four streams is one of SPDY's, with the header ``streamtype``. Names and values are
  compressed without the dictionary of the specification, which zlib permits.
- Data is passed on as it arrives, before the end of its frame. Other frames are complete, and have
  at most `CONTROL_SIZE` bytes. The connection is not read while `_READ_AHEAD` bytes wait.
- The peers have no flow control of SPDY's own: TCP's pauses the sender.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import cast

from sync.kube.credentials import ClientConfig
from sync.kube.http_upgrade import open_upgrade

#: The subprotocol of remote commands: a status with the exit code ends the error stream.
_PROTOCOL = "v4.channel.k8s.io"
#: Channels, as those of WebSockets, in the order of the streams 1, 3, 5 and 7.
_STATUS, _STDIN, _STDOUT, _STDERR = 3, 0, 1, 2
_STREAMS = {
    1: (_STATUS, b"error"),
    3: (_STDIN, b"stdin"),
    5: (_STDOUT, b"stdout"),
    7: (_STDERR, b"stderr"),
}
_STDIN_ID = 3
_VERSION = 0x8003
_SYN_STREAM, _PING = 1, 6
_FIN = 1
_HEAD = struct.Struct(">IB3s")
_HEAD_SIZE = 8
#: Bytes of a frame that is no output: a status, standard error, or the headers of a reply.
CONTROL_SIZE = 256 * 1024
_READ_AHEAD = 1024 * 1024
#: Bytes that wait to be sent before `send` waits.
_WRITE_BUFFER = 1024 * 1024


async def open_spdy_exec(
    config: ClientConfig, path: str, query: Sequence[tuple[str, str]]
) -> SpdyExec | None:
    """Starts a command; None if the server does not switch to SPDY, for which the caller finds the
    reason by a WebSocket. Raises Unreachable and ClientConfigError."""
    headers = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", _PROTOCOL)]
    upgraded = await open_upgrade(config, "POST", path, query, headers)
    if upgraded.status != 101:
        return None
    if [it.lower() for it in upgraded.head.values("Upgrade")] != ["spdy/3.1"] or (
        upgraded.head.values("X-Stream-Protocol-Version") != [_PROTOCOL]
    ):
        upgraded.close()
        return None
    connection = SpdyExec()
    upgraded.take(connection)
    return connection


class SpdyExec(asyncio.Protocol):
    """One exec. `messages` reads its output, `send` writes its input."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._head = b""  # of a frame, as far as it has arrived
        self._channel: int | None = None  # of the frame; None for one that is not delivered
        self._left = 0  # bytes of the frame that are still to arrive
        self._control: bytearray | None = None  # the frame, unless it is output
        self._ping = False
        self._messages: deque[tuple[int, bytes]] = deque()
        self._waiting = 0
        """Bytes in ``_messages``."""
        self._paused_reading = False
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._lost = False
        self._error: Exception | None = None

    # -- the caller --------------------------------------------------------------------------

    async def send(self, data: bytes, *, is_last: bool = False) -> None:
        """Sends standard input, less than 16 MiB, and ends it if ``is_last``. Returns when the
        connection's buffer has room. Raises OSError."""
        if self._lost or self._transport.is_closing():
            raise self._failure()
        head = _HEAD.pack(_STDIN_ID, _FIN if is_last else 0, len(data).to_bytes(3, "big"))
        self._transport.writelines((head, data))
        await self._has_room.wait()

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Channels and their bytes, until the connection ends. Raises OSError."""
        while True:
            while self._messages:
                channel, data = self._messages.popleft()
                self._waiting -= len(data)
                if self._paused_reading and self._waiting <= _READ_AHEAD // 2:
                    self._paused_reading = False
                    self._transport.resume_reading()
                yield channel, data
            if self._lost:
                if self._error is not None:
                    raise self._failure()
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Ends the connection, and so the command's input."""
        self._transport.abort()

    def _failure(self) -> OSError:
        if isinstance(self._error, OSError):
            return self._error
        return ConnectionResetError(str(self._error or "the server hung up"))

    # -- the connection ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        compressor = zlib.compressobj()
        for number, (_, name) in _STREAMS.items():
            self._transport.write(_syn_stream(number, name, compressor))

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._error = self._error or exc
        self._changed.set()
        self._has_room.set()

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    def data_received(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        at, output = 0, []
        while at < len(data) and self._error is None:
            if not self._left:
                if len(data) - at < _HEAD_SIZE:
                    self._head = data[at:]
                    break
                self._begin_frame(data[at : at + _HEAD_SIZE])
                at += _HEAD_SIZE
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if self._control is None:
                output.append(piece)
                continue
            self._control += piece
            if not self._left:
                # Output before it comes first.
                self._deliver(_STDOUT, b"".join(output))
                output.clear()
                self._end_frame(bytes(self._control))
        self._deliver(_STDOUT, b"".join(output))

    def _begin_frame(self, head: bytes) -> None:
        first, _, length = _HEAD.unpack(head)
        self._left = int.from_bytes(length, "big")
        is_control = bool(first >> 31)
        self._ping = is_control and first & 0xFFFF == _PING
        self._channel = None if is_control else _STREAMS.get(first, (None, b""))[0]
        if self._channel == _STDOUT and self._left:
            self._control = None
            return
        self._control = bytearray()
        if self._left > CONTROL_SIZE:
            self._error = ConnectionError("the server sent a frame that is too large")
            self._transport.abort()
        elif not self._left:
            self._end_frame(b"")

    def _end_frame(self, data: bytes) -> None:
        if self._ping:
            self._transport.write(_control_frame(_PING, data))
        elif self._channel is not None:
            self._deliver(self._channel, data)
        self._control = None

    def _deliver(self, channel: int, data: bytes) -> None:
        if not data:
            return
        self._messages.append((channel, data))
        self._waiting += len(data)
        if self._waiting > _READ_AHEAD and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()
        self._changed.set()


def _syn_stream(number: int, name: bytes, compressor: zlib._Compress) -> bytes:
    pair = (b"streamtype", name)
    block = struct.pack(">I", 1) + b"".join(struct.pack(">I", len(it)) + it for it in pair)
    packed = compressor.compress(block) + compressor.flush(zlib.Z_SYNC_FLUSH)
    # No associated stream, priority and slot 0.
    return _control_frame(_SYN_STREAM, struct.pack(">IIBB", number, 0, 0, 0) + packed)


def _control_frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHB", _VERSION, kind, 0) + len(payload).to_bytes(3, "big") + payload
