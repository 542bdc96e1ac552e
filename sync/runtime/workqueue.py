"""A queue of keys to reconcile, with the contract of client-go's workqueue, fair to namespaces.

- *Stingy*: a key that is added many times before it is taken is processed once.
- *Serial*: a key in process is not handed out again; if added meanwhile, it is handed out after
  `done`.
- *Fair*: groups of keys, by default namespaces, take turns; within a group keys keep their order.
- *Isolated*: no group occupies all workers (`sync.base.fair_queue` has the share).
- *Paused*: between `pause` and `resume` added keys are dropped, so that a queue without workers
  does not grow. The caller of `resume` adds the keys to process.
- *Delayed keys are kept*: a key added for later (`add_after`, `retry`) is handed out at its time;
  of two times the earlier counts, and adding the key at once overrides both.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from sync.base import clock
from sync.base.backoff import Backoff
from sync.base.fair_queue import FairQueue
from sync.base.histograms import Histogram

K = TypeVar("K", bound=Hashable)

#: Seconds: the first wait of a failing key, and the longest.
RETRY_FIRST, RETRY_CAP = 0.2, 60.0
#: The shortest delay in seconds. uvloop counts milliseconds, and the handle that it returns for a
#: delay of 0 has no `when`.
_SOONEST = 0.001


def by_namespace(key: Hashable) -> Hashable:
    """The namespace of a key; keys without one form one group."""
    return getattr(key, "namespace", None)


class WorkQueue(Generic[K]):
    """A queue for one event loop. ``workers`` is how many keys are processed at once; None for any
    number."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        group: Callable[[K], Hashable] = by_namespace,
        rng: random.Random | None = None,
    ) -> None:
        self._group = group
        self._slots = sys.maxsize if workers is None else workers
        self._rng = rng
        self._ready: FairQueue[K] = FairQueue()
        # Keys that wait to be processed (again), and since when.
        self._since: dict[K, float] = {}
        self.working: dict[K, Hashable] = {}
        """Keys in process, with the group of each."""
        self._paused = False
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        # Workers that were woken and have not run yet.
        self._waking = 0
        self.adds = 0
        """How often a key was added that was not waiting already (``workqueue_adds_total``)."""
        self.retries = 0
        """How often a key failed (``workqueue_retries_total``)."""
        self.queue_duration = Histogram()
        """How long keys waited for a worker (``workqueue_queue_duration_seconds``)."""

    def __repr__(self) -> str:
        counts = f"{len(self)} ready, {len(self.working)} in process, {len(self._later)} delayed"
        return f"<WorkQueue {counts}>"

    def __len__(self) -> int:
        return self._ready.waiting

    @property
    def delayed(self) -> int:
        """How many keys wait for a later time, failed ones included."""
        return len(self._later)

    @property
    def seconds_until_next_delayed(self) -> float | None:
        """Seconds until the first of the delayed keys is due; None without one."""
        if not self._later:
            return None
        due = min(timer.when() for timer in self._later.values())
        return due - asyncio.get_running_loop().time()

    @property
    def failing(self) -> int:
        """How many keys failed when they were last processed."""
        return len(self._backoffs)

    @property
    def longest_wait(self) -> float:
        """For how many seconds the oldest waiting key has waited for a worker; 0 if none waits."""
        # The dict keeps keys in the order in which they were added.
        first = next(iter(self._since.values()), None)
        return 0.0 if first is None else clock.now() - first

    def pause(self) -> None:
        """Drops keys that are added from now on, until `resume`."""
        self._paused = True

    @property
    def is_paused(self) -> bool:
        return self._paused

    def resume(self) -> None:
        self._paused = False

    def add(self, key: K) -> None:
        """Queues the key for the next free worker."""
        if self._paused:
            return
        if self._later:
            self._cancel(key)
        if key in self._since:
            return
        self._since[key] = clock.now()
        self.adds += 1
        if key not in self.working:
            self._push(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Queues the key in ``seconds``, unless it is due earlier."""
        loop = asyncio.get_running_loop()
        timer = self._later.get(key)
        if self._paused or key in self._since or (timer and timer.when() <= loop.time() + seconds):
            return
        self._cancel(key)
        self._later[key] = loop.call_later(max(seconds, _SOONEST), self.add, key)

    def retry(self, key: K, *, soon: bool = True) -> float:
        """Queues a failed key again, later each time; returns the seconds until then. Without
        ``soon`` the wait is the longest at once: the key cannot succeed before something
        changes."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = Backoff(first=RETRY_FIRST, cap=RETRY_CAP, rng=self._rng)
            self._backoffs[key] = backoff
        wait = backoff.next() if soon else RETRY_CAP
        self.retries += 1
        self.add_after(key, wait)
        return wait

    def forget(self, key: K) -> None:
        self._backoffs.pop(key, None)

    def retry_now(self) -> None:
        """Queues all failed keys now, because the cause of their failures may be gone."""
        for key in list(self._backoffs):
            self._backoffs[key].reset()
            if key in self._later:
                self.add(key)

    async def get(self) -> K:
        """Waits for a key and hands it out until `done` or `done_and_get`."""
        while (taken := self._ready.take(self._slots)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if not waiter.cancelled():
                    self._waking -= 1
                    self._wake()  # Passes the wake-up on to another worker.
                elif waiter in self._waiters:
                    self._waiters.remove(waiter)
                raise
            self._waking -= 1
        if self._waiters and self._ready.waiting > self._waking:
            self._wake()
        return self._hand_out(*taken)

    def done(self, key: K) -> None:
        self._end(key)
        self._wake()

    def done_and_get(self, key: K) -> K | None:
        """As `done`, then `get`; returns None instead of waiting for a key."""
        previous = self._end(key)
        taken = self._ready.take(self._slots)
        if taken is None:
            return None
        # As many slots are in use as before; the group that gave one back may have another key.
        if (
            self._waiters
            and taken[0] != previous
            and self._ready.can_take_from(previous, self._slots)
        ):
            self._wake_one()
        return self._hand_out(*taken)

    def close(self) -> None:
        """Cancels all delayed keys."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _push(self, key: K) -> None:
        group = self._group(key)
        self._ready.add(group, key)
        if self._waiters and self._ready.can_take_from(group, self._slots):
            self._wake_one()

    def _hand_out(self, group: Hashable, key: K) -> K:
        self.working[key] = group
        self.queue_duration.observe(clock.now() - self._since.pop(key))
        return key

    def _end(self, key: K) -> Hashable:
        group = self.working.pop(key)
        self._ready.release(group)
        if key in self._since:
            self._ready.add(group, key)
        return group

    def _wake(self) -> None:
        """Wakes a worker if there is a key for it."""
        if self._waiters and self._ready.can_take(self._slots):
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
