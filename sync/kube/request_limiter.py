"""How many requests to one API server are in flight at once: as many as it gains from.

- The limit starts at `START`, and is between `LEAST` and ``most``. While requests wait for it and
  answers do not come later than the server needs, it grows.
- An answer of 429, or of 503 with ``Retry-After``, halves it at once, for all that were sent
  before that answer together; for `HOLD` seconds then it does not grow.
- Answers that come `TARGET` seconds later than the server needs (where it needs more than that:
  twice as late) lower it: more in flight would wait there, and be done no sooner. The rule, and
  the number, are those of LEDBAT (RFC 6817).
- What the server needs is learned, a number for each method, where no more than `QUIET` are in
  flight: nothing of ours queues then. So a far server, or one with slow webhooks, is no reason to
  ask it less; one that became slower all at once is asked little for as long as it takes to learn
  that.
- Who waits for a place is served by the turns of `sync.base.fair_queue`; groups are the values of
  `FLOW`. What is `URGENT` does not wait, and takes no place.
- Whoever is cancelled while it waits leaves nothing behind.

The times are our own loop's too: where that is what is busy, more in flight gains nothing either.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Final

from sync.base.fair_queue import FairQueue

#: Enough for the requests of a pod alone, all at once.
START = 16
#: Fewer would leave a server idle between two requests.
LEAST = 2
#: Requests at once that make no queue worth the name.
QUIET = 4
#: Seconds that a request may wait at the server because of ours before it: 100 ms (RFC 6817, 2.5).
TARGET = 0.1
#: Seconds after a refusal without growth: the shortest Retry-After. Afterwards the limit grows by
#: one (or an eighth) every `STEP` seconds at most, so that a server is seldom asked too much again.
HOLD, STEP = 1.0, 0.1
#: How much of what the server needs is forgotten with each new measurement.
_FORGET = 0.1

URGENT: Final = object()
#: Whose requests these are: the namespace that is reconciled, None where there is no such thing, or
#: `URGENT`. Tasks inherit it.
FLOW: ContextVar[Hashable] = ContextVar("FLOW", default=None)


@contextmanager
def urgent() -> Iterator[None]:
    """Requests of the block, and of tasks that it starts, wait for no others: for those on which it
    depends whether the node is alive, and those that somebody waits for; few, or with a bound of
    their own."""
    token = FLOW.set(URGENT)
    try:
        yield
    finally:
        FLOW.reset(token)


class RequestLimiter:
    """The requests to one API server, ``most`` at once at best.

    ``flow = await enter()``, the request, then `leave`, whatever became of it.
    """

    def __init__(self, *, most: int, clock: Callable[[], float] = monotonic) -> None:
        self._most = most
        self._clock = clock
        self._limit = float(min(START, most))
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        # Seconds that the server needs for a request, by method.
        self._needs: dict[str, float] = {}
        # When more than `QUIET` were in flight last.
        self._crowded = -math.inf
        # When the limit changed last; since it was looked at: how late answers came, by what is
        # allowed, and whether anybody waited.
        self._changed = clock()
        self._late: list[float] = []
        self._wanted = False
        # Until it is lowered for the first time the limit grows by half at once.
        self._steep = True
        self._held_until = -math.inf

    @property
    def limit(self) -> int:
        """How many may be in flight now."""
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """How many are, without those that are urgent."""
        return self._queue.held

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._queue.waiting

    async def enter(self) -> Hashable:
        """Waits for a place, and says whose it is, for `leave`."""
        flow = FLOW.get()
        if flow is URGENT or self._queue.try_acquire(flow, int(self._limit)):
            return flow
        self._wanted = True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.add(flow, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._release(flow)
            raise
        return flow

    def leave(
        self, flow: Hashable, method: str, seconds: float | None, *, refused: bool = False
    ) -> None:
        """The request has ended: after so many seconds with an answer, or (None) without one.
        ``refused``: the server answered that it is asked too much."""
        if flow is URGENT:
            return
        if seconds is not None:
            self._learn(method, seconds, refused=refused)
        self._release(flow)

    def _release(self, flow: Hashable) -> None:
        self._queue.release(flow)
        self._admit()

    def _admit(self) -> None:
        """Gives what is free to those who wait."""
        while (taken := self._queue.take(int(self._limit))) is not None:
            flow, waiter = taken
            if waiter.done():
                self._queue.release(flow)  # It was cancelled.
            else:
                waiter.set_result(None)

    def _learn(self, method: str, seconds: float, *, refused: bool) -> None:
        now = self._clock()
        started = now - seconds
        if refused:
            if started >= self._changed:
                self._held_until = now + HOLD
                self._lower(0.5)
            return
        needs = self._needs.setdefault(method, seconds)
        if self._queue.held > QUIET:
            self._crowded = now
        elif started > self._crowded:
            self._needs[method] = needs + _FORGET * (seconds - needs)
        if started < self._changed:
            return  # It says how another limit does.
        self._late.append((seconds - needs) / max(TARGET, needs))
        if len(self._late) >= self._limit:
            self._look(now)

    def _look(self, now: float) -> None:
        """Decides by as many answers as can be in flight."""
        late, wanted = statistics.median(self._late), self._wanted
        self._late.clear()
        self._wanted = self._queue.waiting > 0
        if late > 1:
            self._lower(max(0.5, 1 / late))
        elif wanted and late < 0.5 and now >= self._held_until:
            if self._steep:
                self._set(self._limit * 1.5)
            elif now >= self._changed + STEP:
                self._set(self._limit + max(1, self._limit / 8))

    def _lower(self, part: float) -> None:
        self._steep = False
        self._set(self._limit * part)

    def _set(self, limit: float) -> None:
        limit = min(max(limit, LEAST), self._most)
        if limit != self._limit:
            self._limit, self._changed = limit, self._clock()
            self._late.clear()
