"""One SPDY/3.1 connection to a kubelet's port-forward of one pod, and the connections inside it.

Each forwarded connection is a pair of streams, as of kubectl: an error stream, on which the kubelet
reports why it failed, and a data stream (k8s.io/kubelet/pkg/cri/streaming/portforward,
httpstream.go). Opening a pair costs no round trip: data can follow at once.

- `ForwardedStream` is a transport to the protocol above it. The pod's end in order is EOF
  (`bridge.net.splice`). ``on_error`` is called once, with a sentence, when the kubelet reports an
  error, resets the stream, or when the session ends first: then the connection is lost without EOF.
- Servers of this protocol (github.com/moby/spdystream) have no flow control: a stream that its
  reader does not drain blocks the whole session, in either direction. Therefore a session has one
  *active* stream at most; it is open for another once the active one has been answered and its
  client has sent its end (`ForwardedStream.release`), or once it has ended. Streams that linger
  after that share the session. Pausing any stream pauses the session; a lingering one that would
  pause the active one is reset, and one that has been paused before does not release the session.
- What the peer sends is handled a limited number of frames at a time (`sync.kube.portions`).
- The kubelet's runtime closes a connection to the pod a second after the first of its two
  directions has ended (containerd, internal/cri/server, sandbox_portforward). So `write_eof` sends
  nothing, as over a WebSocket: the pod's data still arrives until the pod or `close` ends it.
- A session that the peer ends, that violates the protocol, or whose peer acknowledges nothing any
  more, fails all of its streams. One whose peer is late to acknowledge takes no new stream
  (`SpdySession.is_stalled`): if its TCP connection is dead, a new one may work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, cast

from bridge.net import spdy_frames, splice
from bridge.net.spdy_frames import (
    GOAWAY,
    PING,
    RST_STREAM,
    SYN_STREAM,
    Frame,
    FrameParser,
    HeaderEncoder,
    ProtocolError,
)
from sync.kube.layered_transport import Buffer, LayeredTransport
from sync.kube.portions import UNSENT_LIMIT, Portions
from sync.kube.sockets import PeerState, peer_state

#: Bytes in one data frame: what tunnels read at a time.
_FRAME_SIZE = 128 * 1024
#: Bytes that are kept of an error's text.
_ERROR_SIZE = 500
#: Pairs that a session carries before it is replaced: stream identifiers have 31 bits, and the
#: server keeps some bytes of each stream.
MAX_PAIRS = 10_000
#: Streams that may linger on one session.
MAX_LINGERING = 64
#: Seconds for the kubelet to end a stream that this side has ended: containerd takes one.
CLOSE_GRACE = 15.0
_VIOLATION = "the remote's API server sent what is no port-forward"
_HUNG_UP = "the remote's API server hung up"
_LOST = "the remote's API server acknowledges nothing any more"
_SLOW = "the client has stopped reading, and another one shares its session"


class SpdySession(asyncio.Protocol):
    """See the module. ``on_change`` is called when the session may have become usable, and when it
    has ended."""

    __slots__ = (
        "_check_timer",
        "_encoder",
        "_end_reason",
        "_errors",
        "_is_full",
        "_is_reserved",
        "_next",
        "_on_change",
        "_parser",
        "_paused",
        "_portions",
        "_streams",
        "_transport",
        "active",
        "has_ended",
    )

    def __init__(self, on_change: Callable[[SpdySession], None]) -> None:
        self._on_change = on_change
        self._encoder = HeaderEncoder()
        self._parser = FrameParser()
        self._portions = Portions(
            self._frames, on_flood=self._violated, on_lost=lambda exc: self._end(_HUNG_UP, exc)
        )
        self._transport: asyncio.Transport | None = None
        self._next = 1
        self._streams: dict[int, ForwardedStream] = {}  # by the data stream's number
        self._errors: dict[int, ForwardedStream] = {}  # by the error stream's number
        self._paused: set[ForwardedStream] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._is_reserved = False
        self._is_full = False  # The connection takes no more data for now.
        self.active: ForwardedStream | None = None
        self.has_ended = False
        self._end_reason = ""

    def reserve(self) -> None:
        """Keeps the session for one caller until `open_stream` or `unreserve`."""
        self._is_reserved = True

    def unreserve(self) -> None:
        """Makes a reserved session usable again."""
        self._is_reserved = False
        self._on_change(self)

    @property
    def is_usable(self) -> bool:
        """Whether a new stream may be opened."""
        return (
            not (self.has_ended or self._is_reserved)
            and self.active is None
            and not self._paused
            and not self._is_full
            and len(self._streams) < MAX_LINGERING
            and self._next < 4 * MAX_PAIRS
        )

    @property
    def is_stalled(self) -> bool:
        """Whether the peer does not acknowledge what was sent again, or takes no more data."""
        return self._peer_state in (PeerState.STALLED, PeerState.LOST)

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open, or about to be."""
        return not (self._streams or self._is_reserved)

    def open_stream(
        self, port: int, above: asyncio.Protocol, on_error: Callable[[str], None]
    ) -> ForwardedStream:
        """Opens a connection to a port of the pod, as the active one. The session is reserved; if
        it has ended since, the connection fails."""
        self._is_reserved = False
        error, data = self._next, self._next + 2
        self._next += 4
        stream = ForwardedStream(self, data, above, on_error)
        if self.has_ended:
            stream.connection_made(self._lower)
            asyncio.get_running_loop().call_soon(stream.fail, self._end_reason)
            return stream
        self._streams[data] = self._errors[error] = self.active = stream
        self._reset_slow_streams()
        headers = {"port": str(port), "requestid": str(error)}
        self.send(
            self._encoder.syn_stream(error, {"streamtype": "error", **headers})
            + spdy_frames.data_head(error, 0, is_last=True)
            + self._encoder.syn_stream(data, {"streamtype": "data", **headers})
        )
        stream.connection_made(self._lower)
        return stream

    def close(self) -> None:
        """Ends the session; its streams fail."""
        if self._transport is not None:
            self._transport.abort()
        self._end("the bridge has closed the session")

    # -- called by the streams -------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Sends frames."""
        # A connection that is lost is closing before the frames that came first are handled.
        if not self.has_ended and not self._lower.is_closing():
            self._lower.write(data)
            if self._check_timer is None:
                self._check_later()

    def set_reading(self, stream: ForwardedStream, *, on: bool) -> None:
        """Pauses the session while any stream is paused."""
        if on:
            self._paused.discard(stream)
        else:
            self._paused.add(stream)
            self._reset_slow_streams()
        if not self.has_ended:
            self._portions.pause(on=bool(self._paused))

    def _reset_slow_streams(self) -> None:
        """Resets streams that pause the session, if another one is active."""
        for stream in [*self._paused]:
            if self.active not in (stream, None):
                stream.give_up(_SLOW)

    def release(self, stream: ForwardedStream) -> None:
        """Makes the session usable for another stream."""
        if self.active is stream:
            self.active = None
            self._on_change(self)

    def forget(self, stream: ForwardedStream) -> bool:
        """Removes a stream that has ended; returns whether it was there. Later frames of its
        error stream are ignored."""
        stream.stop_timer()
        if self._streams.pop(stream.number, None) is None:
            return False
        self._errors.pop(stream.number - 2, None)  # the kubelet might never end it
        self.set_reading(stream, on=True)
        if self.active is stream:
            self.active = None
        self._on_change(self)
        return True

    # -- from the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._portions.begin(self._transport)

    def data_received(self, data: bytes) -> None:
        self._portions.receive(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._portions.lose(exc)

    def pause_writing(self) -> None:
        self._is_full = True
        for stream in [*self._streams.values()]:
            stream.pause_writing()

    def resume_writing(self) -> None:
        self._is_full = False
        for stream in [*self._streams.values()]:
            stream.resume_writing()
        self._on_change(self)

    # -- received frames -------------------------------------------------------------------

    def _frames(self, data: bytes) -> Iterator[bool]:
        try:
            for frame in takewhile(lambda _: not self.has_ended, self._parser.feed(data)):
                self._receive(frame)
                yield frame.type == 0 and (bool(frame.payload) or frame.is_last)
        except ProtocolError:
            self._violated()

    def _violated(self) -> None:
        self._lower.abort()
        self._end(_VIOLATION)

    def _receive(self, frame: Frame) -> None:
        if frame.type == 0:
            if (stream := self._streams.get(frame.stream)) is not None:
                stream.receive(frame.payload, is_last=frame.is_last)
            elif (failing := self._errors.get(frame.stream)) is not None:
                if frame.is_last:
                    del self._errors[frame.stream]
                failing.receive_error(frame.payload, is_last=frame.is_last)
        elif frame.type == RST_STREAM:
            if (stream := self._streams.get(frame.stream)) is not None:
                stream.fail("the pod's node has reset the connection")
            else:
                self._errors.pop(frame.stream, None)
        elif frame.type == PING:
            # Even ones are the server's own; odd ones answer ours.
            if not frame.stream % 2 and self._lower.get_write_buffer_size() < UNSENT_LIMIT:
                self.send(spdy_frames.ping(frame.stream))
        elif frame.type == GOAWAY:
            self._next = 4 * MAX_PAIRS
        elif frame.type == SYN_STREAM:
            raise ProtocolError("the server opens a stream")

    def _check_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._check_timer = loop.call_later(splice.CHECK_INTERVAL, self._check_peer)

    def _check_peer(self) -> None:
        """Ends a session whose peer is lost; keepalive finds only those without data in flight."""
        self._check_timer = None
        state = self._peer_state
        if state is PeerState.LOST:
            self._lower.abort()
            self._end(_LOST)
        elif state is not PeerState.ACKNOWLEDGED:
            self._check_later()

    @property
    def _peer_state(self) -> PeerState:
        return peer_state(self._lower.get_extra_info("socket"))

    def _end(self, why: str, exc: Exception | None = None) -> None:
        if self.has_ended:
            return
        self.has_ended, self._end_reason = True, why
        if self._check_timer is not None:
            self._check_timer.cancel()
        streams, self._streams = [*self._streams.values()], {}
        self._errors.clear()
        self.active = None
        for stream in streams:
            stream.fail(why, exc)
        self._on_change(self)

    @property
    def _lower(self) -> asyncio.Transport:
        if self._transport is None:
            raise RuntimeError("the session has no connection yet")
        return self._transport


class ForwardedStream(LayeredTransport):
    """One connection to the pod. ``above`` receives the data."""

    __slots__ = (
        "_error",
        "_has_sent_end",
        "_on_error",
        "_reset_timer",
        "_session",
        "_was_paused",
        "number",
    )

    resets_in_order = True

    def __init__(
        self,
        session: SpdySession,
        number: int,
        above: asyncio.Protocol,
        on_error: Callable[[str], None],
    ) -> None:
        super().__init__(above)
        self._session = session
        self.number = number
        self._on_error: Callable[[str], None] | None = on_error
        self._error = b""
        self._has_sent_end = False
        self._was_paused = False
        self._reset_timer: asyncio.TimerHandle | None = None

    # -- from the session ------------------------------------------------------------------

    def receive(self, data: bytes, *, is_last: bool) -> None:
        """Passes on data; the last piece ends the connection."""
        if data and not self._closing:
            self._upper.data_received(data)
        if is_last and self._error:
            self.fail("")
        elif is_last:
            if not self._closing:
                self._upper.eof_received()
            self._end(None)

    def receive_error(self, text: bytes, *, is_last: bool) -> None:
        """Keeps the kubelet's report; its end is the end of the connection."""
        self._error += text[: _ERROR_SIZE - len(self._error)]
        if is_last and self._error:
            self.fail("")

    def fail(self, why: str, exc: Exception | None = None) -> None:
        """Ends the connection with an error, unless this side has closed it."""
        if not self._closing:
            self._report_error(self._error_text() or why)
        self._end(exc)

    def stop_timer(self) -> None:
        """Cancels the reset of a stream that has ended."""
        if self._reset_timer is not None:
            self._reset_timer.cancel()

    def _end(self, exc: Exception | None) -> None:
        self._send_end()
        self._session.forget(self)
        if self._below is not None:
            self._closing, self._below = True, None
            self._upper.connection_lost(exc)

    def _error_text(self) -> str:
        return self._error.decode("utf-8", "replace").strip()

    def _report_error(self, why: str) -> None:
        on_error, self._on_error = self._on_error, None
        if on_error is not None:
            on_error(why)

    # -- from above ------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._closing or self._below is None:
            return
        view = memoryview(data).cast("B")
        for at in range(0, len(view), _FRAME_SIZE):
            piece = view[at : at + _FRAME_SIZE]
            self._session.send(spdy_frames.data_head(self.number, len(piece)) + piece)

    def release(self) -> None:
        """Reports that the client has its answer and has sent its end: what else arrives is rare,
        so the session may carry another connection, unless this client is a slow one."""
        if not self._was_paused:
            self._session.release(self)

    def can_write_eof(self) -> bool:
        """True, so that the pod's data is still read after the client's end."""
        return True

    def write_eof(self) -> None:
        """Sends nothing: see the module."""

    def pause_reading(self) -> None:
        self._was_paused = True
        self._session.set_reading(self, on=False)

    def resume_reading(self) -> None:
        self._session.set_reading(self, on=True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the limits of the session, which holds all unsent data."""
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._below is None else self._below.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """As of the session's connection, without its socket: the session itself watches that."""
        return default if name == "socket" else super().get_extra_info(name, default)

    def close(self) -> None:
        """Ends the connection after the data written so far. Later data of the pod is dropped."""
        if not self._closing:
            self._closing = True
            self._send_end()
            self._session.release(self)
            self._session.set_reading(self, on=True)
            loop = asyncio.get_running_loop()
            self._reset_timer = loop.call_later(CLOSE_GRACE, self._reset)
            loop.call_soon(self._lost)

    def reset(self) -> None:
        """Resets the connection after the data written so far. Runtimes end the pod's connection in
        order anyway."""
        self._closing = True
        self._reset()
        asyncio.get_running_loop().call_soon(self._lost)

    def abort(self) -> None:
        """The same: frames stay in order."""
        self.reset()

    def give_up(self, why: str) -> None:
        """Resets the connection for this reason."""
        self._report_error(why)
        self.reset()

    def _reset(self) -> None:
        if self._session.forget(self):
            self._session.send(spdy_frames.rst_stream(self.number))

    def _lost(self) -> None:
        if self._below is not None:
            self._below = None
            self._upper.connection_lost(None)

    def _send_end(self) -> None:
        if not self._has_sent_end:
            self._has_sent_end = True
            self._session.send(spdy_frames.data_head(self.number, 0, is_last=True))
