"""Splices two connections: bytes go through in both directions, unchanged and as fast as both can.

Guarantees:

- Order and content are kept, to the last byte before an end.
- Back-pressure: when one end does not take its bytes, reading from the other is paused. At most
  `WRITE_BUFFER`, one read, and the kernel's buffers are held per direction.
- Half-close: when one end sends EOF, the other receives it after the last byte, and its own
  direction stays open, but closes after ``half_open_timeout`` seconds without a byte. If the last
  bytes came from the other end, the client has been answered and may just have closed: then
  ``answered_timeout``, if given, returns the seconds.
- When one connection is lost, its bytes are still delivered; then the other is closed.
- Both are closed after ``idle_timeout`` seconds without a byte either way. If it is None, the owner
  calls `close_if_idle` instead (thousands of tunnels need no timer each).
- A peer that disappears is detected within 20 to 30 seconds: by TCP keepalive while nothing was
  sent to it, otherwise because it acknowledges nothing. A caller that does not read gets the bytes
  received so far before it sees the end.
- Closing is bounded: an end that does not take its last bytes within `CLOSE_GRACE` is aborted.

A tunnel has no task; callbacks of the event loop drive it. `run` only waits; owners of thousands of
tunnels pass ``on_close`` instead.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Literal, cast

from sync.kube.sockets import PeerState, peer_state

#: A kubelet's streaming-connection-idle-timeout: 4 hours.
IDLE_TIMEOUT = 4 * 3600.0
#: Bytes buffered for the slower end; asyncio's default for one connection.
WRITE_BUFFER = 64 * 1024
#: Seconds without a byte in one direction after EOF in the other. API servers close at once.
HALF_OPEN_TIMEOUT = 10.0
#: Seconds for an end to take its last bytes: half a megabyte over a slow line of 40 kbit/s.
CLOSE_GRACE = 120.0
#: Seconds between checks for acknowledgements, while bytes are unacknowledged.
CHECK_INTERVAL = 10.0

log = logging.getLogger(__name__)

Direction = Literal["in", "out"]


class Tunnel:
    """Splices the connections that get `client` and `remote` as protocols. ``count_bytes`` counts
    bytes, *in* from the client and *out* to it; ``on_close`` is called once both have ended."""

    __slots__ = (
        "_abort_timer",
        "_answered_timeout",
        "_check_timer",
        "_closed",
        "_count_bytes",
        "_half_open_timeout",
        "_idle_timeout",
        "_idle_timer",
        "_last_activity",
        "_last_sender",
        "_loop",
        "_on_close",
        "client",
        "remote",
    )

    def __init__(
        self,
        count_bytes: Callable[[Direction, int], None] = lambda _, __: None,
        *,
        idle_timeout: float | None = IDLE_TIMEOUT,
        half_open_timeout: float = HALF_OPEN_TIMEOUT,
        answered_timeout: Callable[[], float] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout = idle_timeout
        self._half_open_timeout = half_open_timeout
        self._answered_timeout = answered_timeout
        self._last_sender: TunnelEnd | None = None
        self._count_bytes = count_bytes
        self.client = TunnelEnd(self)
        self.remote = TunnelEnd(self)
        self.client.peer, self.remote.peer = self.remote, self.client
        self._on_close = on_close
        self._closed = False
        self._last_activity = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        if idle_timeout is not None:
            self._idle_timer = self._loop.call_later(idle_timeout, self._check_idle)
        self._abort_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Returns when both connections have ended; aborts both when cancelled. Excludes
        ``on_close``."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def closed() -> None:
            if not ended.done():
                ended.set_result(None)

        self._on_close = closed
        if self._closed:
            closed()
        try:
            await ended
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._stop_timers()

    def close(self) -> None:
        """Closes both ends after the received bytes are delivered; aborts them after the grace."""
        for end in (self.client, self.remote):
            end.close()
        if self._abort_timer is None:
            self._abort_timer = self._loop.call_later(CLOSE_GRACE, self.abort)
        self._report_closed()

    def close_if_idle(self, seconds: float) -> None:
        """Closes the tunnel if no byte has passed for so many seconds."""
        if self._loop.time() - self._last_activity >= seconds:
            self.close()

    def abort(self) -> None:
        self._stop_timers()
        for end in (self.client, self.remote):
            end.abort()
        self._report_closed()

    # -- called by the ends ------------------------------------------------------------------

    def received(self, end: TunnelEnd, count: int) -> None:
        self._last_sender = end
        self._count_bytes("in" if end is self.client else "out", count)
        self._last_activity = self._loop.time()
        if self._check_timer is None:
            self._check_timer = self._loop.call_later(CHECK_INTERVAL, self._check_ends)

    def half_closed(self, end: TunnelEnd) -> None:
        """Passes on the EOF of this end, or closes the tunnel."""
        if end.peer.received_eof or not end.peer.write_eof():
            self.close()
            return
        self._last_activity = self._loop.time()
        timeout = self._half_open_timeout
        if self._answered_timeout is not None and self._last_sender is not end:
            timeout = self._answered_timeout()
        self._idle_timeout = min(self._idle_timeout or timeout, timeout)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.call_later(self._idle_timeout, self._check_idle)

    def _check_idle(self) -> None:
        left = self._last_activity + (self._idle_timeout or 0.0) - self._loop.time()
        if left <= 0:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._check_idle)

    def _check_ends(self) -> None:
        self._check_timer = None
        for name, end in (("caller", self.client), ("remote", self.remote)):
            if (peer := end.peer_state()) is PeerState.LOST:
                log.warning("stream closed: its %s acknowledges nothing any more", name)
                end.abort()
            elif peer is PeerState.UNACKNOWLEDGED and self._check_timer is None:
                self._check_timer = self._loop.call_later(CHECK_INTERVAL, self._check_ends)

    def _stop_timers(self) -> None:
        for timer in (self._idle_timer, self._abort_timer, self._check_timer):
            if timer is not None:
                timer.cancel()

    def _report_closed(self) -> None:
        if self.client.is_gone and self.remote.is_gone and not self._closed:
            self._closed = True
            self._stop_timers()
            if self._on_close is not None:
                self._on_close()


class TunnelEnd(asyncio.Protocol):
    """One of the two connections: what it reads, the other writes."""

    __slots__ = ("_closing", "_full", "_lost", "_transport", "_tunnel", "peer", "received_eof")

    peer: TunnelEnd

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self.received_eof = False
        self._transport: asyncio.Transport | None = None
        self._full = False
        self._closing = False
        self._lost = False

    # -- from the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER)

    def data_received(self, data: bytes) -> None:
        self._tunnel.received(self, len(data))
        self.peer.write(data)

    def eof_received(self) -> bool:
        self.received_eof = True
        self._tunnel.half_closed(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # any cause
        self._lost = True
        self._tunnel.close()

    def pause_writing(self) -> None:
        self._full = True
        self.peer.set_reading(False)

    def resume_writing(self) -> None:
        self._full = False
        if self._closing:
            self._close_transport()
        else:
            self.peer.set_reading(True)

    # -- from the tunnel and the other end ---------------------------------------------------

    @property
    def is_gone(self) -> bool:
        return self._lost or self._transport is None

    def peer_state(self) -> PeerState:
        """The state of the peer at this end, from TCP."""
        if self.is_gone or self._transport is None:
            return PeerState.ACKNOWLEDGED
        sock: socket.socket = self._transport.get_extra_info("socket")
        try:
            return peer_state(sock)
        except OSError:  # not TCP, or not connected any more
            return PeerState.ACKNOWLEDGED

    def write(self, data: bytes) -> None:
        """Sends bytes; drops them if this end is closing."""
        if self._transport is not None and not (self._closing or self._lost):
            self._transport.write(data)

    def write_eof(self) -> bool:
        """Sends EOF; returns whether the connection supports half-close."""
        if self._transport is None or self._closing or self._lost:
            return False
        if not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        return True

    def set_reading(self, on: bool) -> None:
        if self._transport is None or self._lost or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Closes after the buffered bytes are sent. Meanwhile bytes read are dropped, so that a
        peer that only sends still receives them."""
        if self._closing or self.is_gone:
            return
        self._closing = True
        if not self._full:
            self._close_transport()
        else:
            self.set_reading(True)

    def _close_transport(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None and not self._lost:
            self._transport.abort()
