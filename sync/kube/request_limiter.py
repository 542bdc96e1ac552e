"""An adaptive limit of the requests in flight to one API server.

- The limit starts at `START` and stays between `LEAST` and ``most``. It grows while requests wait
  for it and responses are not delayed.
- A throttled response (429, or 503 with ``Retry-After``) halves the limit once for all requests
  that were sent before it; then the limit does not grow for `HOLD` seconds.
- Responses that take `TARGET` seconds longer than the server needs (or twice as long, if the server
  needs more than that) lower it: more requests would queue at the server. The rule and the number
  are LEDBAT's (RFC 6817).
- The time that the server needs is learned per method while at most `QUIET` requests are in flight.
  So a distant server, or one with slow webhooks, does not lower the limit; a server that suddenly
  becomes slower does until the new time is learned.
- Waiting requests take turns by `FLOW` (`sync.base.fair_queue`). `URGENT` requests neither wait nor
  count.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from sync.base import clock
from sync.base.fair_queue import FairQueue

#: Enough for all requests of one pod at once.
START = 16
#: A lower limit would leave the server idle between two requests.
LEAST = 2
#: Requests in flight that do not queue at the server.
QUIET = 4
#: Seconds that a request may queue at the server behind the bridge's others: 100 ms (RFC 6817,
#: 2.5).
TARGET = 0.1
#: Seconds without growth after throttling: the shortest Retry-After. Afterwards the limit grows by
#: one (or an eighth) every `STEP` seconds at most, so that throttling stays rare.
HOLD, STEP = 1.0, 0.1
#: The weight of a new measurement of the time that the server needs.
_FORGET = 0.1

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
        self._limit = float(min(START, most))
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue()
        # Seconds that the server needs, by method.
        self._needs: dict[str, float] = {}
        # When more than `QUIET` requests were last in flight.
        self._crowded = -math.inf
        # When the limit last changed. Since the last decision: delays relative to the allowed ones,
        # and whether a request waited.
        self._changed = -math.inf
        self._delays: list[float] = []
        self._has_waited = False
        # The limit grows by half at a time until it is first lowered.
        self._fast_start = True
        self._held_until = -math.inf

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
        if flow is URGENT or self._queue.try_acquire(flow, int(self._limit)):
            return flow
        self._has_waited = True
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
        self, flow: Hashable, method: str, seconds: float | None, *, throttled: bool = False
    ) -> None:
        """Releases the slot. ``seconds`` is the response time, None without a response;
        ``throttled``: the server rejected the request for now."""
        if flow is URGENT:
            return
        if seconds is not None:
            self._learn(method, seconds, throttled=throttled)
        self._release(flow)

    def _release(self, flow: Hashable) -> None:
        self._queue.release(flow)
        self._admit()

    def _admit(self) -> None:
        """Hands free slots to waiting requests."""
        while (taken := self._queue.take(int(self._limit))) is not None:
            flow, waiter = taken
            if waiter.done():
                self._queue.release(flow)  # cancelled
            else:
                waiter.set_result(None)

    def _learn(self, method: str, seconds: float, *, throttled: bool) -> None:
        now = clock.now()
        started = now - seconds
        if throttled:
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
            return  # measured under another limit
        self._delays.append((seconds - needs) / max(TARGET, needs))
        if len(self._delays) >= self._limit:
            self._decide(now)

    def _decide(self, now: float) -> None:
        """Adjusts the limit by the responses since the last decision."""
        delay, has_waited = statistics.median(self._delays), self._has_waited
        self._delays.clear()
        self._has_waited = self._queue.waiting > 0
        if delay > 1:
            self._lower(max(0.5, 1 / delay))
        elif has_waited and delay < 0.5 and now >= self._held_until:
            if self._fast_start:
                self._set(self._limit * 1.5)
            elif now >= self._changed + STEP:
                self._set(self._limit + max(1, self._limit / 8))

    def _lower(self, part: float) -> None:
        self._fast_start = False
        self._set(self._limit * part)

    def _set(self, limit: float) -> None:
        limit = min(max(limit, LEAST), self._most)
        if limit != self._limit:
            self._limit, self._changed = limit, clock.now()
            self._delays.clear()
