"""Long-lived GETs to one API server that share HTTP/2 connections.

A bridge holds thousands of watches of single objects. Each takes 47 KiB in the bridge on an
HTTP/1.1 connection of its own, and 6 KiB on an HTTP/2 connection that `MAX_STREAMS` share (`python
-m e2e.bench watches`).

- A connection is opened when the others are full, and closed with its last response.
- Requests after a change of address, CA or credential use new connections.
- `SharedConnections.get` returns None where the server, or a proxy in front of it, does not speak
  HTTP/2: the caller uses HTTP/1.1. It is asked again after the kubeconfig has been read again.
- It also returns None for a 401, and if the server sends GOAWAY before a response. API servers send
  a GOAWAY with each 401 (`Unauthorized` in k8s.io/apiserver's endpoints/filters), and h2 drops the
  frames after it. Over HTTP/1.1 the caller gets the whole 401, and renews the credential.
- Responses are independent: a body that is not read stops the server from sending more of it
  (`STREAM_WINDOW`), and not the other responses.
- A connection that ends, breaks or violates the protocol ends all its responses with an OSError.
- A server that reads nothing does not make the bridge buffer more than `UNSENT_LIMIT`.
- Received bytes are parsed in slices, between which the event loop runs: one read can hold
  thousands of frames. Nothing is read meanwhile.
- GOAWAY ends the connection: h2 supports no streams after it, and a watch continues elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import h2.events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings
from multidict import CIMultiDict
from yarl import URL

from sync.base import clock
from sync.kube.connections import CONNECT_TIMEOUT, Dialer
from sync.kube.portions import Portions

#: Streams of one connection, at most: what Go's HTTP/2 client assumes of a server that states no
#: limit, and the limit of API servers (--http2-max-streams-per-connection in k8s.io/apiserver). The
#: server lets further streams wait without a response.
MAX_STREAMS = 100
#: Bytes of one body that are buffered: there may be thousands of watches, each of one object. A
#: mebibyte arrives in 64 round trips, in less than 30 s also from a distant server
#: (`LARGE_EVENT_SECONDS` of `sync.cache.watcher`).
STREAM_WINDOW = 2**14
#: Bytes of all bodies of a connection that are buffered: no body that waits delays another one.
CONNECTION_WINDOW = MAX_STREAMS * STREAM_WINDOW
#: Bytes of the head of a response.
_HEADER_LIMIT = 2**16
#: Bytes that wait to be sent: hundreds of requests. A server that sends pings and does not read the
#: replies could otherwise fill the memory.
UNSENT_LIMIT = 2**20
#: Frames without a part of a response, in one `_TURN` or second: a server sends settings once, few
#: pings, and one end for each response. A flood of them would take the event loop's time.
CONTROL_FRAMES = 250
#: Bytes that are parsed in one turn of the event loop: one TLS record. They are parsed in slices.
_TURN, _SLICE = 2**14, 2**12
#: The window of a new connection (RFC 9113, section 6.9.2).
_INITIAL_WINDOW = 2**16 - 1
#: Bytes of the table of sent headers: the default (RFC 9113, section 6.5.2).
_HEADER_TABLE = 4096
_SETTINGS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: _HEADER_LIMIT,
}

#: The size of a frame's head, and three of the types in it (RFC 9113, sections 4.1 and 6).
_HEAD, _DATA, _HEADERS, _GOAWAY = 9, 0, 1, 7

#: Other numbers would become labels of metrics.
_STATUS = re.compile("[1-5][0-9][0-9]")
_RESET = "the server reset the stream"
_CLOSED = "the server closed the connection"
#: Headers of HTTP/1.1 requests that HTTP/2 forbids, or that a stream of small chunks does not need.
_OMITTED = frozenset({"connection", "host", "accept-encoding"})


class SharedConnections:
    """The connections of ``dialer``."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        # The connections that take further requests, by the TLS context they were opened with.
        self._open: dict[Http2Connection, ssl.SSLContext] = {}
        self._without_http2: ssl.SSLContext | None = None
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<SharedConnections {len(self._open)}>"

    async def get(self, url: URL, headers: Iterable[tuple[str, str]]) -> Http2Response | None:
        """Sends a GET and waits for the head of the response; None if the caller must use HTTP/1.1.
        Raises OSError."""
        context = self._dialer.credentials.tls_http2
        if context is None or self._without_http2 is context:
            return None
        async with self._lock:
            self._dialer.check_address(url.raw_host, url.port)
            connection = self._with_room(context) or await self._connect(context)
            if connection is None:
                return None
            response = connection.get(_encode(url, headers))
        try:
            await response.head()
        except GoAwayError:
            return None
        except BaseException:
            response.close()
            raise
        if response.status == 401:
            response.close()
            return None
        return response

    def close(self) -> None:
        """Ends the connections and their responses."""
        for connection in list(self._open):
            connection.abort()

    def _with_room(self, context: ssl.SSLContext) -> Http2Connection | None:
        for connection, opened_with in self._open.items():
            if opened_with is context and connection.has_room:
                return connection
        return None

    async def _connect(self, context: ssl.SSLContext) -> Http2Connection | None:
        if self._without_http2 is context:
            return None  # found out while this call waited for the lock
        async with asyncio.timeout(CONNECT_TIMEOUT):
            raw = await self._dialer.connect(context)
            tls = raw.transport.get_extra_info("ssl_object")
            if tls is None or tls.selected_alpn_protocol() != "h2":
                raw.transport.abort()
                self._without_http2 = context
                return None
            connection = Http2Connection(self._ended)
            raw.hand_over(connection)
            self._open[connection] = context
            try:
                await connection.ready()
            except BaseException:
                connection.abort()
                raise
        if not connection.has_room:  # the server permits no streams
            connection.abort()
            self._without_http2 = context
            return None
        return connection

    def _ended(self, connection: Http2Connection) -> None:
        self._open.pop(connection, None)


def _encode(url: URL, headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    pairs = [
        (":method", "GET"),
        (":scheme", url.scheme),
        (":authority", url.raw_authority.rpartition("@")[2]),
        (":path", url.raw_path_qs),
        *((name.lower(), value) for name, value in headers if name.lower() not in _OMITTED),
    ]
    return [(name.encode(), value.encode()) for name, value in pairs]


class GoAwayError(ConnectionResetError):
    """Raised when the server ended the connection with GOAWAY."""


class Http2Response:
    """One response. `readany` raises an OSError if the connection breaks."""

    __slots__ = (
        "_buffer",
        "_connection",
        "_ended",
        "_error",
        "_unacknowledged",
        "_waiter",
        "headers",
        "idle_timeout",
        "status",
        "stream_id",
    )

    def __init__(self, connection: Http2Connection, stream_id: int) -> None:
        self.stream_id = stream_id
        self.status = 0
        """The status code; 0 until the head has arrived."""
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.idle_timeout: float | None = None
        """Seconds of silence that count as a dead peer; None for any time."""
        self._connection = connection
        self._buffer = bytearray()
        # Bytes of the buffer, padding included, which the server counts against the window.
        self._unacknowledged = 0
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Http2Response {self.status} stream={self.stream_id}>"

    @property
    def content(self) -> Http2Response:
        """The body, as aiohttp names it."""
        return self

    async def head(self) -> None:
        """Waits until `status` and `headers` have arrived."""
        while not self.status:
            await self._changed()

    async def readany(self) -> bytes:
        """The bytes that have arrived, at least one; b"" at the end of the body."""
        while not self._buffer:
            if self._ended:
                return b""
            async with asyncio.timeout(self.idle_timeout):
                await self._changed()
        data = bytes(self._buffer)
        self._buffer.clear()
        self._connection.acknowledge(self.stream_id, self._unacknowledged)
        self._unacknowledged = 0
        return data

    def close(self) -> None:
        """Cancels the request unless the response has ended."""
        self._connection.acknowledge(self.stream_id, self._unacknowledged)
        self._unacknowledged = 0
        self._connection.cancel(self.stream_id)

    async def _changed(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- for the connection ----------------------------------------------------------------

    def head_received(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        for name, value in headers:
            self.headers.add(name.decode("latin-1"), value.decode("latin-1"))
        status = self.headers.get(":status", "")
        self.status = int(status) if _STATUS.fullmatch(status) else 0
        if not self.status:
            self.failed(OSError(errno.EPROTO, "the response has no status"))
        self._notify()

    def data_received(self, data: bytes, counted: int) -> None:
        self._unacknowledged += counted
        if data:
            self._buffer += data
            self._notify()

    def ended(self) -> None:
        self._ended = True
        self._notify()

    def failed(self, error: Exception) -> None:
        if self._error is None and not self._ended:
            self._error = error
            self._notify()

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Http2Connection(asyncio.Protocol):
    """The client's side of a connection. ``on_end`` is called once, when no further request can be
    sent."""

    def __init__(self, on_end: Callable[[Http2Connection], None]) -> None:
        self._on_end: Callable[[Http2Connection], None] | None = on_end
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        # Assigned before the connection begins, so that the first frame states them.
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS)
        self._transport: asyncio.Transport | None = None
        self._responses: dict[int, Http2Response] = {}
        self._frames = _FrameHeads()
        self._portions = Portions(
            self._slices, on_flood=self.abort, on_lost=self._lost, portion=_TURN // _SLICE
        )
        self._settings: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Http2Connection {len(self._responses)} streams>"

    @property
    def has_room(self) -> bool:
        """Whether another request can be sent now."""
        most = min(MAX_STREAMS, self._h2.remote_settings.max_concurrent_streams)
        return self._on_end is not None and len(self._responses) < most

    async def ready(self) -> None:
        """Waits for the server's settings. Raises OSError if the connection ends before."""
        await asyncio.shield(self._settings)

    def get(self, headers: list[tuple[bytes, bytes]]) -> Http2Response:
        """Sends a GET, pseudo-headers included; `has_room` must be true."""
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, headers, end_stream=True)
        response = self._responses[stream_id] = Http2Response(self, stream_id)
        self._flush()
        return response

    def acknowledge(self, stream_id: int, count: int) -> None:
        """Lets the server send ``count`` more bytes."""
        if count and self._transport is not None and not self._transport.is_closing():
            self._h2.acknowledge_received_data(count, stream_id)
            self._flush()

    def cancel(self, stream_id: int) -> None:
        """Ends a response; does nothing if it has ended."""
        if self._responses.pop(stream_id, None) is None:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._h2.reset_stream(stream_id, ErrorCodes.CANCEL)
            self._flush()
        self._close_if_unused()

    def abort(self) -> None:
        """Ends the connection and all responses."""
        self._break(ConnectionAbortedError(errno.ECONNABORTED, "the bridge closed the connection"))

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._portions.begin(self._transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW - _INITIAL_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._portions.receive(data)

    def _slices(self, data: bytes) -> Iterator[bool]:
        for start in range(0, len(data), _SLICE):
            if self._on_end is None:
                return  # there is no response to which the rest could belong
            self._parse(data[start : start + _SLICE])
            yield True  # `_FrameHeads` detects floods

    def _parse(self, part: bytes) -> None:
        if self._frames.is_flooded_by(part):
            message = "the server floods the connection with control frames"
            self._break(OSError(errno.EPROTO, message))
            return
        try:
            for event in self._h2.receive_data(part):
                self._handle(event)
        except H2Error as error:
            # The name alone: the text may quote what the server sent.
            message = f"the server violates HTTP/2 ({type(error).__name__})"
            violation = OSError(errno.EPROTO, message)
            self._break(
                GoAwayError(errno.ECONNRESET, _CLOSED) if self._frames.has_goaway else violation
            )
            return
        self._flush()
        self._close_if_unused()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.lose(exc)

    def _lost(self, exc: Exception | None) -> None:
        self._ended(exc or ConnectionResetError(errno.ECONNRESET, _CLOSED))

    # -- events ----------------------------------------------------------------------------

    def _handle(self, event: h2_events.Event) -> None:
        match event:
            case h2_events.RemoteSettingsChanged():
                # h2 would fill a table of any size that the server permits, and search it for
                # each header.
                encoder = self._h2.encoder
                encoder.header_table_size = min(encoder.header_table_size, _HEADER_TABLE)
                if not self._settings.done():
                    self._settings.set_result(None)
            case h2_events.ConnectionTerminated():
                self._break(GoAwayError(errno.ECONNRESET, _CLOSED))
            case h2_events.StreamReset():
                self._fail(event.stream_id, ConnectionResetError(errno.ECONNRESET, _RESET))
            case h2_events.DataReceived():
                self._data_received(event)
            case h2_events.ResponseReceived():
                if (response := self._responses.get(event.stream_id)) is not None:
                    response.head_received(event.headers)
            case h2_events.StreamEnded():
                if (response := self._responses.pop(event.stream_id, None)) is not None:
                    response.ended()

    def _data_received(self, event: h2_events.DataReceived) -> None:
        response = self._responses.get(event.stream_id)
        if response is not None:
            response.data_received(event.data, event.flow_controlled_length)
        else:  # cancelled
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _fail(self, stream_id: int | None, error: Exception) -> None:
        response = self._responses.pop(stream_id or 0, None)
        if response is not None:
            response.failed(error)

    def _break(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._ended(error)

    def _ended(self, error: Exception) -> None:
        self._refuse_requests()
        if not self._settings.done():
            self._settings.set_exception(error)
            self._settings.exception()  # asyncio logs exceptions that are not retrieved.
        for stream_id in list(self._responses):
            self._fail(stream_id, error)

    def _refuse_requests(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _close_if_unused(self) -> None:
        if self._responses or not self._settings.done() or self._h2.highest_outbound_stream_id == 0:
            return
        self._refuse_requests()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > UNSENT_LIMIT:
                message = "the server sends frames without reading the replies"
                self._break(OSError(errno.EPROTO, message))


class _FrameHeads:
    """Counts the frames that arrive by their heads: h2 reports nothing of some."""

    def __init__(self) -> None:
        self.has_goaway = False
        """Whether a GOAWAY has arrived; h2 rejects the frames after it."""
        self._head = b""
        self._left = 0  # bytes of the frame's payload
        self._count = self._size = 0
        self._since = 0.0

    def is_flooded_by(self, data: bytes) -> bool:
        """Whether more than `CONTROL_FRAMES` have no part of a response."""
        now = clock.now()
        if self._size > _TURN or now - self._since > 1.0:
            self._count, self._size, self._since = 0, 0, now
        self._size += len(data)
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = _HEAD - len(self._head)
                self._head += data[at : at + step]
                if len(self._head) == _HEAD:
                    self._left = int.from_bytes(self._head[:3], "big")
                    kind = self._head[3]
                    self.has_goaway |= kind == _GOAWAY
                    self._count += kind != _HEADERS and not (kind == _DATA and self._left)
                    self._head = b""
            at += step
        return self._count > CONTROL_FRAMES
