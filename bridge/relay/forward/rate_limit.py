"""How many ways to pods are opened a second and at once, and whose turn it is.

- `Bucket` is a token bucket: so many a second on the long run, and a second's worth at once.
- `Turns` gives each Service its turn (`sync.base.fair_queue`), so that one to which connections
  come by the thousand does not keep those of others waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sync.base.fair_queue import FairQueue
from sync.cache.store import Key

#: Of a token: what rounding takes from one. No timer can be set for so little.
_NOTHING = 1e-6


class TokenBucket:
    """So many tokens a second. Times are the loop's."""

    __slots__ = ("_at", "_most", "_rate", "_tokens")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(rate, 1.0)
        self._tokens = self._most
        self._at = 0.0

    def take(self, now: float, patience: float = 0.0) -> float | None:
        """Takes a token, and says in how many seconds it is there; takes none, and says None,
        where that is more than ``patience``."""
        wait = self.wait(now)
        if wait > patience:
            return None
        self._tokens -= 1.0
        return wait

    def wait(self, now: float) -> float:
        """Seconds until the next token is there."""
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now
        missing = 1.0 - self._tokens
        return missing / self._rate if missing > _NOTHING else 0.0


class FairLimiter:
    """So many at once, so many a second, and Services in turn."""

    def __init__(self, places: int, rate: float) -> None:
        self._places = places
        self._bucket = TokenBucket(rate)
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._later: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def slot(self, key: Key, patience: float) -> AsyncIterator[None]:
        """Waits for the Service's turn, and holds a place. Raises TimeoutError when it does not
        come for ``patience`` seconds."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._queue.add(key, mine)
        self._give()
        try:
            async with asyncio.timeout(patience):
                await mine
        except BaseException:
            if not mine.cancelled():  # It came just now.
                self._leave(key)
            raise
        try:
            yield
        finally:
            self._leave(key)

    @property
    def is_rate_exhausted(self) -> bool:
        """Whether it is the rate that lets nobody in now."""
        return self._bucket.wait(asyncio.get_running_loop().time()) > 0.0

    def _leave(self, key: Key) -> None:
        self._queue.release(key)
        self._give()

    def _give(self) -> None:
        """Gives places to those whose turn it is, as far as there are any and the rate goes."""
        if self._later is not None:
            return  # It comes back when there is a token.
        loop = asyncio.get_running_loop()
        while self._queue.can_take(self._places):
            if wait := self._bucket.wait(loop.time()):
                self._later = loop.call_later(wait, self._again)
                return
            taken = self._queue.take(self._places)
            if taken is None:
                return
            key, future = taken
            if future.done():  # Who waited has gone.
                self._queue.release(key)
            else:
                self._bucket.take(loop.time())
                future.set_result(None)

    def _again(self) -> None:
        self._later = None
        self._give()

    def close(self) -> None:
        """Gives no more turns."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
