"""Client of an exec over SPDY/3.1, the protocol that API servers and kubelets use among each other.

API servers pass SPDY on unparsed, and container runtimes read it with much less CPU time than a
WebSocket: their library unmasks that byte by byte and grows a buffer for each message. So this is
for large input. A server, or a proxy before it, may support WebSockets only: then
`open_spdy_exec` returns None.

- Each of the four streams is one of SPDY's, with the header ``streamtype``
  (`sync.kube.spdy_frames`).
- Data is passed on as it arrives, before the end of its frame. The connection is not read while
  `_READ_AHEAD` bytes wait.
- The peers have no flow control of SPDY's own: TCP's pauses the sender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import cast

from sync.kube import spdy_frames
from sync.kube.credentials import ClientConfig
from sync.kube.http_upgrade import open_upgrade
from sync.kube.spdy_frames import PING, FrameParser, HeaderEncoder, ProtocolError

#: The subprotocol of remote commands: a status with the exit code ends the error stream.
_PROTOCOL = "v4.channel.k8s.io"
#: Channels, as those of WebSockets, in the order of the streams 1, 3, 5 and 7.
_STATUS, _STDIN, _STDOUT, _STDERR = 3, 0, 1, 2
_STREAMS = {
    1: (_STATUS, "error"),
    3: (_STDIN, "stdin"),
    5: (_STDOUT, "stdout"),
    7: (_STDERR, "stderr"),
}
_STDIN_ID = 3
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
        self._parser = FrameParser()
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
        head = spdy_frames.data_head(_STDIN_ID, len(data), is_last=is_last)
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
        encoder = HeaderEncoder()
        for number, (_, name) in _STREAMS.items():
            self._transport.write(encoder.syn_stream(number, {"streamtype": name}))

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
        output: list[bytes] = []
        try:
            for frame in self._parser.feed(data):
                if frame.type == PING:
                    self._transport.write(spdy_frames.ping(frame.stream))
                if frame.type or frame.stream not in _STREAMS:
                    continue
                channel, _ = _STREAMS[frame.stream]
                if channel == _STDOUT:
                    output.append(frame.payload)
                    continue
                # Output before it comes first.
                self._deliver(_STDOUT, b"".join(output))
                output.clear()
                self._deliver(channel, frame.payload)
        except ProtocolError as error:
            self._error = ConnectionError(f"the server does not speak SPDY: {error}")
            self._transport.abort()
        self._deliver(_STDOUT, b"".join(output))

    def _deliver(self, channel: int, data: bytes) -> None:
        if not data:
            return
        self._messages.append((channel, data))
        self._waiting += len(data)
        if self._waiting > _READ_AHEAD and not self._paused_reading:
            self._paused_reading = True
            self._transport.pause_reading()
        self._changed.set()
