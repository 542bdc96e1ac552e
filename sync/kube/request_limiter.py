"""A limit of the requests in flight to one API server.

- The limit is ``most`` until the server throttles. A throttled response (429, or 503 with
  ``Retry-After``) halves it, once for all requests that were sent before; `LEAST` remain.
- `HOLD` seconds later it grows again, while requests wait for it.
- Waiting requests take turns by `FLOW` (`sync.base.fair_queue`). `URGENT` requests neither wait nor
  count.

API servers queue and throttle by themselves (API Priority and Fairness), so the time that a server
takes does not change the limit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sync.base import clock
from sync.base.fair_queue import FairQueue

#: A lower limit would leave the server idle between two requests.
LEAST = 2
#: Seconds without growth after throttling: the shortest Retry-After. Afterwards the limit grows by
#: one (or an eighth) every `STEP` seconds at most, so that throttling stays rare.
HOLD, STEP = 1.0, 0.1

URGENT: Final = object()
#: The flow of requests: the namespace that is reconciled, None if there is none, or `URGENT`. Tasks
#: inherit it.
FLOW: ContextVar[Hashable] = ContextVar("FLOW", default=None)


@contextmanager
def urgent() -> Iterator[None]:
    """Requests of the block, and of tasks that it starts, bypass the limit."""
    token = FLOW.set(URGENT)
    try:
        yield
    finally:
        FLOW.reset(token)


class RequestLimiter:
    """Limits the requests to one API server, to ``most`` at once.

    Call ``flow = await enter()``, send the request, then call `leave` whatever its result.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        self._lowered_at = self._grows_at = -math.inf

    @property
    def limit(self) -> int:
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """Requests in flight, without urgent ones."""
        return self._queue.held

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    async def enter(self) -> Hashable:
        """Waits for a slot; returns its flow, for `leave`."""
        flow = FLOW.get()
        if flow is URGENT or self._queue.try_acquire(flow, self.limit):
            return flow
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(flow, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(flow)
            raise
        return flow

    def leave(self, flow: Hashable, *, sent: float, throttled: bool) -> None:
        """Releases the slot of a request that was sent at this time of the loop. ``throttled``: the
        server rejected it for now."""
        if flow is URGENT:
            return
        now = clock.now()
        if throttled:
            if sent >= self._lowered_at:
                self._limit = max(self._limit / 2, LEAST)
                self._lowered_at, self._grows_at = now, now + HOLD
        elif self._queue.waiting and self._limit < self._most and now >= self._grows_at:
            self._limit = min(self._limit + max(1, self._limit / 8), self._most)
            self._grows_at = now + STEP
        self._release(flow)

    def _release(self, flow: Hashable) -> None:
        """Frees the slot, and hands free slots to waiting requests."""
        self._queue.release(flow)
        while (taken := self._queue.take(self.limit)) is not None:
            flow, waiter = taken
            if waiter.done():
                self._queue.release(flow)  # cancelled
            else:
                waiter.set_result(None)
