"""Who may write, and until when: a gate before the requests that change something.

A client that goes through a fence (`Transport.fenced`) refuses writes with `NotLeaderError` while
it is shut. Reads, watches and streams do not look at it.

- It opens with `extend(until)`, and shuts by itself at that time: whoever holds a lease extends it
  as long as the lease is surely its own. `close` shuts it for good.
- It is looked at before a write waits for its connection, and again when its body is about to be
  handed to the socket. The time is read there, so that a process that was stopped, or a machine
  that slept, sends nothing on waking, whatever its timers have done by then.
- Writes that are under way when it shuts are ended at once. What has left by then may still arrive:
  the preconditions of a write (UID, version) are for that, and the time between a fence's end and
  the end of the lease.
- `on_change` handlers hear when it opens and when it shuts by itself, not of `close`.
- A fence ``behind`` another one is open while both are: a second condition, for the writes to one
  side alone.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter

from sync.base.callbacks import Callbacks
from sync.kube.errors import NotLeaderError, Side

if sys.platform == "linux":

    def clock() -> float:
        """Seconds that have passed, those for which the machine slept among them."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    clock = time.monotonic


class Fence:
    """Shut until it is extended; to be used in one event loop."""

    def __init__(self, *, outer: Fence | None = None, clock: Callable[[], float] = clock) -> None:
        self._clock = clock
        self._behind = outer
        # The fences behind this one.
        self._followers: list[Fence] = []
        if outer is not None:
            outer._followers.append(self)
        self._until = -math.inf
        self._closed = False
        # What was told last.
        self._was_open = False
        self._handlers: Callbacks[bool] = Callbacks("fence")
        self._under_way: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Fence {'open' if self.is_open else 'closed' if self._closed else 'shut'}>"

    @property
    def is_open(self) -> bool:
        """Whether writes pass now."""
        own = not self._closed and self._clock() < self._until
        return own and (self._behind is None or self._behind.is_open)

    def on_change(self, handler: Callable[[bool], None]) -> None:
        """Calls ``handler(open)`` when it opens, and when its time is up."""
        self._handlers.add(handler)

    def extend(self, until: float) -> None:
        """Writes pass until then, by the clock of this module. One that is closed stays so."""
        if self._closed:
            return
        self._until = until
        self._wait()
        if self.is_open:
            self._tell(is_open=True)
        for follower in self._followers:
            follower._tell(is_open=follower.is_open)

    def close(self) -> None:
        """No write passes any more."""
        self._closed = True
        self._handlers.clear()
        for follower in self._followers:
            follower.close()
        self._shut()

    def check(self, side: Side, what: str) -> None:
        """Raises NotLeading while it is shut."""
        if not self.is_open:
            raise not_leading(side, what)

    @contextmanager
    def guard(self, limit: asyncio.Timeout) -> Iterator[None]:
        """One write is under way: ``limit``, which is around it, ends it when the fence shuts."""
        self._under_way.add(limit)
        try:
            yield
        finally:
            self._under_way.discard(limit)

    def _wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(self._until - self._clock(), 0), self._expire)

    def _expire(self) -> None:
        if self._clock() < self._until:
            self._wait()  # The loop's clock and this one may differ by a bit.
        else:
            self._shut()

    def _shut(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._interrupt()

    def _interrupt(self) -> None:
        """Ends the writes that are under way, here and behind this fence."""
        for limit in self._under_way:
            if not limit.expired():
                limit.reschedule(-math.inf)
        self._under_way.clear()
        self._tell(is_open=False)
        for follower in self._followers:
            follower._interrupt()

    def _tell(self, *, is_open: bool) -> None:
        if is_open != self._was_open:
            self._was_open = is_open
            self._handlers(is_open)


class FencedBody(BytesPayload):
    """A request's body that is not sent once the fence is shut; aiohttp sends the head with it."""

    def __init__(self, data: bytes, fence: Fence) -> None:
        super().__init__(data)
        self._fence = fence

    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        """As ever, if the fence is open."""
        if not self._fence.is_open:
            raise ConnectionAbortedError("the fence is shut")
        await super().write_with_length(writer, content_length)


def not_leading(side: Side, what: str) -> NotLeaderError:
    """The error of a write that does not pass."""
    return NotLeaderError(
        "not sent, or ended: this bridge does not hold the node's lease, or its claim, now",
        side=side,
        what=what,
    )
