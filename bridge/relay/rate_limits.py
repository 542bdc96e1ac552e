"""Rate limits: `TokenBucket`, and `FairLimiter`, in which namespaces take turns, and the Services
of each.

`FairLimiter` limits how many connections are opened at a time and per second. Groups take turns
(`sync.base.fair_queue`), so that one with thousands of connections, or whose pods do not answer,
does not delay others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from sync.base.fair_queue import NestedFairQueue

#: Rounding error of a token, too small for a timer.
_EPSILON = 1e-6


class TokenBucket:
    """``rate`` tokens per second, with a burst of one second. Times are those of the event loop."""

    __slots__ = ("_burst", "_rate", "_tokens", "_updated")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._burst = max(rate, 1.0)
        self._tokens = self._burst
        self._updated = 0.0

    def take(self, now: float, max_wait: float = 0.0) -> float | None:
        """Takes a token and returns the seconds until it is available; takes none and returns None
        if that is more than ``max_wait``."""
        wait = self.wait(now)
        if wait > max_wait:
            return None
        self._tokens -= 1.0
        return wait

    def charge(self, now: float, tokens: float = 1.0) -> float:
        """Takes so many tokens and returns the seconds until all are available, however long."""
        wait = self.wait(now, tokens)
        self._tokens -= tokens
        return wait

    def wait(self, now: float, tokens: float = 1.0) -> float:
        """Seconds until so many tokens are available."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        missing = tokens - self._tokens
        return missing / self._rate if missing > _EPSILON else 0.0


class FairLimiter:
    """At most ``max_slots`` at a time and ``rate`` per second (None: any); groups take turns, and
    the members of each group, which has up to ``member_slots`` (None: all)."""

    def __init__(
        self, max_slots: int, rate: float | None = None, *, member_slots: int | None = None
    ) -> None:
        self._bucket = TokenBucket(rate) if rate is not None else None
        self._queue: NestedFairQueue[asyncio.Future[None]] = NestedFairQueue(
            max_slots, member_slots or max_slots
        )
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(
        self, group: Hashable, max_wait: float, *, member: Hashable = None
    ) -> AsyncIterator[None]:
        """Waits for the turn of the group's member and holds a slot. Raises TimeoutError after
        ``max_wait`` seconds without one."""
        await self.acquire(group, max_wait, member=member)
        try:
            yield
        finally:
            self.release(group, member=member)

    async def acquire(
        self, group: Hashable, max_wait: float | None = None, *, member: Hashable = None
    ) -> None:
        """Waits for the group's turn and takes a slot, to be released. Raises as `slot`."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add((group, member), granted)
        self._grant()
        try:
            async with asyncio.timeout(max_wait):
                await granted
        except BaseException:
            if not granted.cancelled():  # granted at the last moment
                self.release(group, member=member)
            raise

    def release(self, group: Hashable, *, member: Hashable = None) -> None:
        """Releases a slot of the group's member."""
        self._queue.release((group, member))
        self._grant()

    @property
    def is_rate_exhausted(self) -> bool:
        """Whether the rate, not the number of slots, is what delays callers now."""
        return self._rate_wait() > 0.0

    def _rate_wait(self) -> float:
        if self._bucket is None:
            return 0.0
        return self._bucket.wait(asyncio.get_running_loop().time())

    def _grant(self) -> None:
        """Grants slots in turn, as far as slots and rate allow."""
        if self._timer is not None:
            return  # it runs again when there is a token
        loop = asyncio.get_running_loop()
        while self._queue.can_take():
            if wait := self._rate_wait():
                self._timer = loop.call_later(wait, self._retry)
                return
            taken = self._queue.take()
            if taken is None:
                return
            pair, granted = taken
            if granted.done():  # the caller no longer waits
                self._queue.release(pair)
                continue
            if self._bucket is not None:
                self._bucket.take(loop.time())
            granted.set_result(None)

    def _retry(self) -> None:
        self._timer = None
        self._grant()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
