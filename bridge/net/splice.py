"""Splices two connections: bytes go through in both directions, unchanged and as fast as both can.

How a connection may end, for all that this program forwards (the relay in both directions, exec,
attach and port-forward of the kubelet API):

- FIN, or what the connection's protocol has for it, is sent to one end only after the other has
  sent its own (`asyncio.Protocol.eof_received`), and after the last byte before it.
- Every other end is a reset (`sync.kube.layered_transport.reset_connection`): the other end was
  lost (`connection_lost` without EOF before, or with an error after it; a peer that acknowledges
  nothing any more), a timeout, `Tunnel.close` and `Tunnel.abort`, and an end that does not take its
  last bytes within `CLOSE_GRACE`. So no reader takes a part for the whole.
- Except by `Tunnel.abort`, the reset follows the bytes received before, once the peer has
  acknowledged them, or after `CLOSE_GRACE`.

A transport that is not a socket calls `eof_received` when the source of its data has ended in
order, and never otherwise.

Guarantees:

- Order and content are kept, to the last byte before an end.
- Back-pressure: when one end does not take its bytes, reading from the other is paused. At most
  two windows of the namespace's share (`bridge.net.unsent_budget`) are held per direction, and what
  the kernel and TLS buffer.
- The kernel's receive buffers are bounded as well (`bridge.net.receive_buffer`), and what the
  sockets send (`sync.kube.sockets.limit_unsent`).
- Half-close: when one end sends EOF, the other receives it after the last byte, and its own
  direction stays open, but is reset after ``half_open_timeout`` seconds without a byte. If the
  client sends EOF after bytes of the remote, it has been answered and may just have closed: then
  ``answered_timeout``, if given, returns the seconds.
- Both are reset after ``idle_timeout`` seconds without a byte either way. If it is None, the owner
  calls `close_if_idle` instead (thousands of tunnels need no timer each).
- A peer that disappears is detected within 20 to 30 seconds: by TCP keepalive while nothing was
  sent to it, otherwise because it acknowledges nothing. A transport without a socket of its own
  (``get_extra_info("socket")`` is None) has to detect that itself.

A tunnel has no task; callbacks of the event loop drive it. `run` only waits; owners of thousands of
tunnels pass ``on_close`` instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Literal, cast

from bridge.net.receive_buffer import ReceiveBuffer
from bridge.net.unsent_budget import UnsentShare
from sync.kube.layered_transport import Buffer, LayeredTransport, reset_connection
from sync.kube.sockets import PeerState, SocketReader, has_unacknowledged_bytes, peer_state

#: A kubelet's streaming-connection-idle-timeout: 4 hours.
IDLE_TIMEOUT = 4 * 3600.0
#: Seconds without a byte in one direction after EOF in the other. API servers close at once.
HALF_OPEN_TIMEOUT = 10.0
#: Seconds for an end to take its last bytes: half a megabyte over a slow line of 40 kbit/s.
CLOSE_GRACE = 120.0
#: Seconds between checks for acknowledgements, while bytes are unacknowledged, and for receive
#: buffers that are large.
CHECK_INTERVAL = 10.0
#: Seconds between checks whether an end that is to be reset has all bytes: the first, and at most.
_DRAIN_INTERVAL, _MAX_DRAIN_INTERVAL = 0.01, 1.0

log = logging.getLogger(__name__)

Direction = Literal["in", "out"]


class Tunnel:
    """Splices the connections that get `client` and `remote` as protocols. ``unsent`` bounds what
    they hold; ``count_bytes`` counts bytes, *in* from the client and *out* to it; ``on_close`` is
    called once both have ended."""

    __slots__ = (
        "_abort_timer",
        "_answered_timeout",
        "_check_timer",
        "_closed",
        "_count_bytes",
        "_drain_timer",
        "_half_open_timeout",
        "_idle_timeout",
        "_idle_timer",
        "_last_activity",
        "_last_sender",
        "_loop",
        "_on_close",
        "client",
        "lost",
        "remote",
        "unsent",
    )

    def __init__(
        self,
        unsent: UnsentShare,
        count_bytes: Callable[[Direction, int], None] = lambda _, __: None,
        *,
        idle_timeout: float | None = IDLE_TIMEOUT,
        half_open_timeout: float = HALF_OPEN_TIMEOUT,
        answered_timeout: Callable[[], float] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.unsent = unsent
        self._idle_timeout = idle_timeout
        self._half_open_timeout = half_open_timeout
        self._answered_timeout = answered_timeout
        self._last_sender: TunnelEnd | None = None
        self._count_bytes = count_bytes
        self.client = TunnelEnd(self)
        self.remote = TunnelEnd(self)
        self.client.peer, self.remote.peer = self.remote, self.client
        self.lost: TunnelEnd | None = None
        """The end that was lost first; None if none was."""
        self._on_close = on_close
        self._closed = False
        self._last_activity = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        if idle_timeout is not None:
            self._idle_timer = self._loop.call_later(idle_timeout, self._check_idle)
        self._abort_timer: asyncio.TimerHandle | None = None
        self._check_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None

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
        """Ends both connections after the received bytes are delivered: with a reset, but in order
        where the other end has sent EOF."""
        for end in (self.client, self.remote):
            if end.peer.received_eof:
                end.close()
            else:
                end.reset()
        self._bound_end()

    def close_if_idle(self, seconds: float) -> None:
        """Closes the tunnel if no byte has passed for so many seconds."""
        if self._loop.time() - self._last_activity >= seconds:
            self.close()

    def abort(self) -> None:
        """Resets the ends that are still there immediately."""
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
        """Passes on the EOF of this end, and closes both after that of the other."""
        end.peer.write_eof()
        if end.peer.received_eof:
            for each in (end, end.peer):
                each.close()
            self._bound_end()
            return
        self._last_activity = self._loop.time()
        timeout = self._half_open_timeout
        is_answered = end is self.client and self._last_sender is not end
        if self._answered_timeout is not None and is_answered:
            timeout = self._answered_timeout()
        self._idle_timeout = min(self._idle_timeout or timeout, timeout)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._loop.call_later(self._idle_timeout, self._check_idle)

    def ended(self, end: TunnelEnd, *, in_order: bool) -> None:
        """The connection of an end is no more. ``in_order``: its source had ended before."""
        if in_order:
            end.peer.close()
        else:
            self.lost = self.lost or end
            end.peer.reset()
        self._bound_end()

    def reset_drained(self, interval: float = _DRAIN_INTERVAL) -> None:
        """Resets the ends that are to be reset and have all bytes, and looks again for others."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if [end for end in (self.client, self.remote) if not end.reset_if_drained()]:
            following = min(2 * interval, _MAX_DRAIN_INTERVAL)
            self._drain_timer = self._loop.call_later(interval, self.reset_drained, following)

    def _bound_end(self) -> None:
        """Aborts the ends after the grace, unless both have ended."""
        if self._abort_timer is None:
            self._abort_timer = self._loop.call_later(CLOSE_GRACE, self.abort)
        self._report_closed()

    def _check_idle(self) -> None:
        left = self._last_activity + (self._idle_timeout or 0.0) - self._loop.time()
        if left <= 0:
            self.close()
        else:
            self._idle_timer = self._loop.call_later(left, self._check_idle)

    def _check_ends(self) -> None:
        self._check_timer = None
        for name, end in (("caller", self.client), ("remote", self.remote)):
            peer = end.peer_state()
            if peer is PeerState.LOST:
                log.warning("stream closed: its %s acknowledges nothing any more", name)
                self.ended(end, in_order=False)
                end.abort()
            elif not end.is_at_rest(peer) and self._check_timer is None:
                self._check_timer = self._loop.call_later(CHECK_INTERVAL, self._check_ends)

    def _stop_timers(self) -> None:
        for timer in (self._idle_timer, self._abort_timer, self._check_timer, self._drain_timer):
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

    __slots__ = (
        "_buffer",
        "_closing",
        "_full",
        "_held",
        "_lost",
        "_resetting",
        "_transport",
        "_tunnel",
        "peer",
        "received_eof",
    )

    peer: TunnelEnd

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self.received_eof = False
        self._transport: asyncio.Transport | None = None
        self._buffer: ReceiveBuffer | None = None
        self._full = False  # has bytes that its peer does not take
        self._held = 0  # how many of them the share counts
        self._closing = False
        self._resetting = False
        self._lost = False

    # -- from the event loop -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)  # `pause_writing` for the first unsent byte
        read_size = self._tunnel.unsent.window
        if isinstance(transport, LayeredTransport):
            sock = transport.receiving_socket
            transport.set_read_size(read_size)
        else:
            sock = self._transport.get_extra_info("socket")
            self._transport.set_protocol(SocketReader(self, read_size=read_size))
        if sock is not None:
            self._buffer = ReceiveBuffer(sock, self._tunnel.unsent)
        if self._closing:  # the other end was lost before
            self.abort()

    def data_received(self, data: Buffer) -> None:
        self._tunnel.received(self, len(data))
        if self._buffer is not None:
            self._buffer.received(len(data))
        self.peer.write(bytes(data))

    def eof_received(self) -> bool:
        if not self._closing:
            self.received_eof = True
            self._tunnel.half_closed(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._hold(0)
        if self._buffer is not None:
            self._buffer.release()
            self._buffer = None
        self._tunnel.ended(self, in_order=self._closing or (self.received_eof and exc is None))

    def pause_writing(self) -> None:
        self._full = True
        self._hold_unsent()

    def resume_writing(self) -> None:
        self._full = False
        self._hold(0)
        if not self._closing:
            self.peer.set_reading(True)
        elif not self._resetting:
            self._close_transport()

    # -- from the tunnel and the other end ---------------------------------------------------

    @property
    def is_gone(self) -> bool:
        return self._lost or self._transport is None

    def peer_state(self) -> PeerState:
        """The state of the peer at this end, from TCP."""
        if self._lost or self._transport is None:
            return PeerState.ACKNOWLEDGED
        return peer_state(self._transport.get_extra_info("socket"))

    def is_at_rest(self, peer: PeerState) -> bool:
        """Whether no further check is due: its peer has everything, and its buffer is small."""
        is_small = self._buffer is None or self._buffer.shrink_if_quiet()
        return is_small and peer is PeerState.ACKNOWLEDGED

    def write(self, data: bytes) -> None:
        """Sends bytes; drops them if this end is closing."""
        if self._transport is not None and not (self._closing or self._lost):
            self._transport.write(data)
            if self._full:
                self._hold_unsent()

    def _hold_unsent(self) -> None:
        """Counts what is unsent, and pauses the other end if that is a window or more."""
        if self._transport is not None and not self._lost:
            size = self._transport.get_write_buffer_size()
            self._hold(size)
            if size >= self._tunnel.unsent.window():
                self.peer.set_reading(False)

    def _hold(self, size: int) -> None:
        self._tunnel.unsent.hold(size - self._held)
        self._held = size

    def write_eof(self) -> None:
        """Sends EOF after the bytes so far."""
        if self._transport is not None and not (self._closing or self._lost):
            self._transport.write_eof()

    def set_reading(self, on: bool) -> None:
        if self._transport is None or self._lost or self._transport.is_closing():
            return
        if on:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Closes in order after the buffered bytes are sent. Until then bytes read are dropped, so
        that a peer that only sends still receives them."""
        if self._closing:
            return
        self._closing = True
        if not self._full:
            self._close_transport()
        else:
            self.set_reading(True)

    def _close_transport(self) -> None:
        if self._transport is not None and not self._lost:
            self._transport.close()

    def reset(self) -> None:
        """Resets the connection after the buffered bytes are delivered. Until then as `close`."""
        if self._closing:
            return
        self._closing = self._resetting = True
        self.set_reading(True)
        self._tunnel.reset_drained()

    def reset_if_drained(self) -> bool:
        """Resets the connection if that is due, and the peer has all bytes or will get them before;
        returns whether nothing is left to do."""
        transport = self._transport
        if not self._resetting or transport is None or self._lost:
            return True
        in_order = isinstance(transport, LayeredTransport) and transport.resets_in_order
        if not in_order and (
            transport.get_write_buffer_size()
            or has_unacknowledged_bytes(transport.get_extra_info("socket"))
        ):
            return False
        self._resetting = False
        reset_connection(transport)
        return True

    def abort(self) -> None:
        """Resets the connection immediately."""
        self._closing = True
        self._resetting = False
        if self._transport is not None and not self._lost:
            reset_connection(self._transport)
            self._transport.abort()
