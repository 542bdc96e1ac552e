"""A queue of keys that are to be reconciled, after the contract of client-go's workqueue.

- *Stingy*: a key that is added many times before it is taken is worked once.
- *Serial*: a key that is being worked is not given out again; added meanwhile, it comes again
  when it is done.
- *Fair*: groups of keys, by default namespaces, take turns, and within a group keys come in the
  order in which they were added. So the 5,000 keys of one namespace are 5,000 turns of that
  namespace, and one turn for whoever comes next.
- *Room for others*: no group is worked by all workers (`sync.base.fair_queue` says how many it may
  have), so that reconciles that hang in one namespace do not hold up the others.
- *Nothing while held*: between `hold` and `release` no key is taken up, so that a queue that nobody
  works does not grow. Who releases it adds what is to be worked.
- *Never forgotten*: a key added for later (`add_after`, `retry`) comes at its time; of two times
  the earlier counts, and adding it at once overtakes both.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

from sync.base.backoff import Backoff
from sync.base.fair_queue import FairQueue
from sync.base.histograms import Histogram

K = TypeVar("K", bound=Hashable)

#: The first wait of a failing key, and the longest, in seconds. A minute is what a person waits
#: after having repaired the cause.
RETRY_FIRST, RETRY_CAP = 0.2, 60.0
#: Seconds that what is due waits at least: uvloop counts milliseconds, and its handle of a call
#: that comes at once cannot be asked when.
_SOONEST = 0.001


def by_namespace(key: Hashable) -> Hashable:
    """The namespace of a key that has one; all other keys are one group."""
    return getattr(key, "namespace", None)


class WorkQueue(Generic[K]):
    """Keys in, keys out; to be used in one event loop. ``workers`` is how many take keys, None
    where any number may be worked at once."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        group: Callable[[K], Hashable] = by_namespace,
        rng: random.Random | None = None,
    ) -> None:
        self._group = group
        self._places = sys.maxsize if workers is None else workers
        self._rng = rng
        self._ready: FairQueue[K] = FairQueue()
        # Keys that are to be worked (again), since when.
        self._since: dict[K, float] = {}
        self.working: dict[K, Hashable] = {}
        """Keys that are being worked, and the group of each."""
        self._held = False
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Workers that have been woken and did not run yet.
        self._waking = 0
        self.adds = 0
        """How often a key was added that did not wait already."""
        self.retries = 0
        """How often a key was to be tried again."""
        self.queue_duration = Histogram()
        """How long keys waited for a worker, from when they were added."""

    def __repr__(self) -> str:
        return (
            f"<WorkQueue {len(self)} ready, {len(self.working)} worked, {len(self._later)} later>"
        )

    def __len__(self) -> int:
        return self._ready.waiting

    @property
    def delayed(self) -> int:
        """How many keys come at a later time, those that failed among them."""
        return len(self._later)

    @property
    def failing(self) -> int:
        """How many keys failed when they were last worked."""
        return len(self._backoffs)

    @property
    def longest_wait(self) -> float:
        """Seconds since the key that has waited longest for a worker was added; 0 without one."""
        # They stand in the order in which they were added.
        first = next(iter(self._since.values()), None)
        return 0.0 if first is None else monotonic() - first

    def pause(self) -> None:
        """Drops every key that is added from now on, until `release`."""
        self._held = True

    @property
    def is_paused(self) -> bool:
        """Whether keys are dropped."""
        return self._held

    def resume(self) -> None:
        """Takes keys up from now on."""
        self._held = False

    def add(self, key: K) -> None:
        """The key is to be worked as soon as a worker is free."""
        if self._held:
            return
        if self._later:
            self._cancel(key)
        if key in self._since:
            return
        self._since[key] = monotonic()
        self.adds += 1
        if key not in self.working:
            self._push(key)

    def add_after(self, key: K, seconds: float) -> None:
        """The key is to be worked in ``seconds``, unless it comes sooner for another reason."""
        loop = asyncio.get_running_loop()
        planned = self._later.get(key)
        if (
            self._held
            or key in self._since
            or (planned and planned.when() <= loop.time() + seconds)
        ):
            return
        self._cancel(key)
        self._later[key] = loop.call_later(max(seconds, _SOONEST), self.add, key)

    def retry(self, key: K, *, soon: bool = True) -> float:
        """The key failed: it comes again, each time later. Returns the seconds until then.

        Not ``soon``: after the longest wait at once, since it cannot succeed before something
        changes, which mostly brings the key back by itself.
        """
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = Backoff(first=RETRY_FIRST, cap=RETRY_CAP, rng=self._rng)
            self._backoffs[key] = backoff
        wait = backoff.next() if soon else RETRY_CAP
        self.retries += 1
        self.add_after(key, wait)
        return wait

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure is its first."""
        self._backoffs.pop(key, None)

    def retry_now(self) -> None:
        """All keys that failed are tried now: what they failed for has changed."""
        for key in list(self._backoffs):
            self._backoffs[key].reset()
            if key in self._later:
                self.add(key)

    async def get(self) -> K:
        """The next key. It is the caller's until `done` or `following`."""
        while (taken := self._ready.take(self._places)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._waking -= 1
                    self._wake()  # A wake-up that this worker cannot use is another's.
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                raise
            self._waking -= 1
        if self._waiters and self._ready.waiting > self._waking:
            self._wake()
        return self._given(*taken)

    def done(self, key: K) -> None:
        """The caller has ended its work on the key."""
        self._end(key)
        self._wake()

    def done_and_get(self, key: K) -> K | None:
        """`done`, and `get` where that need not wait; None where it must."""
        former = self._end(key)
        taken = self._ready.take(self._places)
        if taken is None:
            return None
        # As many places are held as before. Who else may have one now, if anybody?
        if self._waiters and taken[0] != former and self._ready.can_take_from(former, self._places):
            self._wake_one()
        return self._given(*taken)

    def close(self) -> None:
        """Cancels what is planned for later, so that no timer outlives the loop's work."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _push(self, key: K) -> None:
        group = self._group(key)
        self._ready.add(group, key)
        if self._waiters and self._ready.can_take_from(group, self._places):
            self._wake_one()

    def _given(self, group: Hashable, key: K) -> K:
        self.working[key] = group
        self.queue_duration.observe(monotonic() - self._since.pop(key))
        return key

    def _end(self, key: K) -> Hashable:
        group = self.working.pop(key)
        self._ready.release(group)
        if key in self._since:
            self._ready.add(group, key)
        return group

    def _wake(self) -> None:
        """Wakes a worker if there is a key that it may have."""
        if self._waiters and self._ready.can_take(self._places):
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._waking += 1
                return

    def _cancel(self, key: K) -> None:
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
