"""A fence in front of all requests that change something: only the leader's requests pass.

- `extend(until)` opens the fence until that time: the holder of a Lease extends it for as long as
  the Lease is certainly its own. `close` closes it for good.
- The fence is checked before a write waits for a connection, and again when its body is handed to
  the socket. The machine's clock is read then, so that a stopped process or a suspended machine
  sends nothing after it resumes, whatever its timers have done by then. The loop's time does not
  suffice: it excludes the suspension (`sync.base.clock`).
- When the fence closes, writes in flight are aborted. Bytes that were sent may still arrive:
  preconditions (UID, resource version) and the time between the end of the fence and the end of the
  Lease cover that.
- A fence with an ``outer`` fence is open while both are.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter

from sync.base.clock import lease_time
from sync.base.safe_callbacks import Callbacks
from sync.kube.api_errors import NotLeaderError, Side

#: The clock of fences, and of the Leases that extend them.
clock = lease_time


class Fence:
    """Closed until it is extended; for one event loop."""

    def __init__(self, *, outer: Fence | None = None, clock: Callable[[], float] = clock) -> None:
        self._clock = clock
        self._outer = outer
        # Fences whose outer fence this is.
        self._inner: list[Fence] = []
        if outer is not None:
            outer._inner.append(self)
        self._until = -math.inf
        self._closed = False
        # The state that was last passed to handlers.
        self._was_open = False
        self._handlers: Callbacks[bool] = Callbacks("fence")
        self._in_flight: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        closed = "closed for good" if self._closed else "closed"
        return f"<Fence {'open' if self.is_open else closed}>"

    @property
    def is_open(self) -> bool:
        own = not self._closed and self._clock() < self._until
        return own and (self._outer is None or self._outer.is_open)

    def on_change(self, handler: Callable[[bool], None]) -> None:
        """Calls ``handler(open)`` when the fence opens, and when it expires."""
        self._handlers.add(handler)

    def extend(self, until: float) -> None:
        """Opens the fence until then, by this module's `clock`; does nothing after `close`."""
        if self._closed:
            return
        self._until = until
        self._start_timer()
        if self.is_open:
            self._notify(is_open=True)
        for inner in self._inner:
            inner._notify(is_open=inner.is_open)

    def close(self) -> None:
        """Closes the fence for good."""
        self._closed = True
        self._handlers.clear()
        for inner in self._inner:
            inner.close()
        self._stop()

    def check(self, side: Side, what: str) -> None:
        """Raises NotLeaderError while the fence is closed."""
        if not self.is_open:
            raise not_leading(side, what)

    @contextmanager
    def guard(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Registers a write in flight; its timeout ``limit`` expires when the fence closes."""
        self._in_flight.add(limit)
        try:
            yield
        finally:
            self._in_flight.discard(limit)

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(self._until - self._clock(), 0), self._expire)

    def _expire(self) -> None:
        if self._clock() < self._until:
            self._start_timer()  # the loop's clock may differ slightly
        else:
            self._stop()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._interrupt()

    def _interrupt(self) -> None:
        """Aborts the writes in flight behind this fence and its inner fences."""
        for limit in self._in_flight:
            if not limit.expired():
                limit.reschedule(-math.inf)
        self._in_flight.clear()
        self._notify(is_open=False)
        for inner in self._inner:
            inner._interrupt()

    def _notify(self, *, is_open: bool) -> None:
        if is_open != self._was_open:
            self._was_open = is_open
            self._handlers(is_open)


class FencedBody(BytesPayload):
    """A request body that is not sent once the fence is closed; aiohttp sends the head with it."""

    def __init__(self, data: bytes, fence: Fence) -> None:
        super().__init__(data)
        self._fence = fence

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """Writes the body if the fence is open. Raises ConnectionAbortedError otherwise."""
        if not self._fence.is_open:
            raise ConnectionAbortedError("the fence is closed")
        await super().write_with_length(writer, content_length)


def not_leading(side: Side, what: str) -> NotLeaderError:
    """The error for a write that does not pass the fence."""
    return NotLeaderError(
        "not sent, or aborted: this bridge does not hold the node's lease, or its claim, now",
        side=side,
        what=what,
    )
