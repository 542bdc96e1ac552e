"""The monotonic clocks of the bridge. No other module reads one; ruff rejects `time.monotonic`.

`now` is for durations, ages and the end of a period. `lease_time` is for Leases and the write
fence: it includes the time while the machine was suspended, in which others renew or take a Lease.

Both read the machine's clock, at the time of the call and with its full resolution. The time of
the bridge's event loop differs: uvloop reads the same CLOCK_MONOTONIC at each call of `time()`, but
rounds down to milliseconds, and reads the kernel's coarse clock where this has a resolution of one
millisecond. That is too coarse for the histograms, whose first bound is one millisecond, and for
controllers, which add up the microseconds of short reconciles. So `now` can be up to 2 ms ahead of
`loop.time()`, and a timer of the loop can fire up to 2 ms before `now` reaches its time: a caller
that finds its time not reached waits again. Code that only compares times of timers can use
`loop.time()` for both.

The exception is a loop with `SimulatedTime`, as in tests: its time is the only one, also for
Leases. Only this module decides so, by the running loop of the calling thread. Where no loop runs
(in threads, and before the loop starts), the clocks are the machine's. A time that is read there is
not comparable with one of a simulated loop, so code that compares times reads all in the loop.
"""

from __future__ import annotations

import asyncio
import sys
import time


class SimulatedTime:
    """Marks event loops whose `time()` is not the machine's."""


def now() -> float:
    """Monotonic seconds; without the time while the machine was suspended."""
    loop = _simulated()
    return time.monotonic() if loop is None else loop.time()  # noqa: TID251  # as documented above


def lease_time() -> float:
    """Monotonic seconds that include, on Linux, the time while the machine was suspended."""
    loop = _simulated()
    return _boot_time() if loop is None else loop.time()


if sys.platform == "linux":

    def _boot_time() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:
    _boot_time = time.monotonic  # noqa: TID251  # as documented above


def _simulated() -> asyncio.AbstractEventLoop | None:
    """The running loop, if its time is not the machine's."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, SimulatedTime) else None
