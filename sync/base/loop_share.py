"""Divides the event loop's time between the remotes that one process reads.

Work on data of an API server is done in steps: after `STEP` seconds other tasks run. While other
remotes use the loop too, the work on one remote has a share of the time: a quarter, over `BURST`
seconds. The rest after a step is three times as long as the step.

The CPU time of the thread ends a step: a step is not long because the machine is busy. The share is
one of the loop's time, since others wait too while the process waits for a processor.

A remote that is alone in the process, or whose neighbours are idle, never rests: no task would use
the time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

#: Seconds of CPU time of a step: a tenth of what a pod takes to start with nothing else to do.
STEP = 0.002
#: The rest after a step, in its lengths.
REST = 3.0
#: Seconds of work, rests included, that a remote may be ahead of its share: a page of a list and
#: the events of some hundred pods need no rest.
BURST = 0.25
#: Seconds for which a remote counts as using the loop after a step: longer than a pod takes to
#: start, so that its next step finds the loop free.
ACTIVE = 1.0
#: The longest rest after one step, in seconds: a step is long if the process was suspended.
MAX_REST = 1.0


class LoopUses:
    """The times at which remotes used the loop."""

    def __init__(self) -> None:
        self._last: LoopShare | None = None
        self._last_at = -math.inf
        # When any remote but the last one used the loop.
        self._other_at = -math.inf

    def add(self, share: LoopShare, now: float) -> None:
        """Records a use of the loop."""
        if share is not self._last:
            self._last, self._other_at = share, self._last_at
        self._last_at = now

    def others_at(self, share: LoopShare) -> float:
        """The loop's time of the last use by another remote."""
        return self._other_at if share is self._last else self._last_at


#: The uses of this process, which has one event loop.
_PROCESS = LoopUses()


class LoopShare:
    """The share of one API server. Without ``is_limited``, as for home, work is divided into steps
    and never rests."""

    def __init__(
        self,
        *,
        is_limited: bool,
        uses: LoopUses = _PROCESS,
        cpu_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._is_limited = is_limited
        self._uses = uses
        self._cpu_time = cpu_time
        # The loop's time until which work so far takes its share.
        self._used_until = 0.0

    def step(self) -> Step:
        """Begins a step."""
        return Step(self, self._cpu_time)

    def charge(self, seconds: float) -> None:
        """Counts a step of so many seconds, which ends now."""
        if self._is_limited:
            now = asyncio.get_running_loop().time()
            self._uses.add(self, now)
            since = max(self._used_until, now - seconds - BURST)
            self._used_until = since + seconds + min(MAX_REST, REST * seconds)

    async def wait(self) -> None:
        """Rests until the share allows another step; returns at once in most cases."""
        if (seconds := self._rest()) > 0:
            await asyncio.sleep(seconds)

    async def rest(self) -> None:
        """As `wait`, but other tasks run in any case."""
        await asyncio.sleep(max(0.0, self._rest()))

    def _rest(self) -> float:
        if not self._is_limited:
            return 0.0
        now = asyncio.get_running_loop().time()
        if now - self._uses.others_at(self) > ACTIVE:
            self._used_until = 0.0
        return self._used_until - now


class Step:
    """Work without an ``await``. Check `is_over` often, and then await `end`; at last `finish`."""

    __slots__ = ("_began", "_cpu_time", "_loop", "_share", "_since")

    def __init__(self, share: LoopShare, cpu_time: Callable[[], float]) -> None:
        self._share = share
        self._cpu_time = cpu_time
        self._loop = asyncio.get_running_loop()
        self.begin()

    @property
    def is_over(self) -> bool:
        return self._cpu_time() - self._began >= STEP

    def begin(self) -> None:
        """Begins another step, after the caller has awaited something else."""
        self._began = self._cpu_time()
        self._since = self._loop.time()

    def charge(self) -> None:
        """Counts the step so far."""
        self._share.charge(self._loop.time() - self._since)

    async def finish(self) -> None:
        """Counts the step, and rests if the share requires it."""
        self.charge()
        await self._share.wait()

    async def end(self) -> None:
        """Counts the step, lets other tasks run, rests, and begins another one."""
        self.charge()
        await self._share.rest()
        self.begin()
