"""A queue of keys that are to be reconciled, after the contract of client-go's workqueue.

- *Stingy*: a key that is added many times before it is taken is worked once.
- *Serial*: a key that is being worked is not given out again; added meanwhile, it comes again
  when it is done.
- *Fair*: keys come in the order in which they were added.
- *Never forgotten*: a key added for later (`add_after`, `retry`) comes at its time; of two times
  the earlier counts, and adding it at once overtakes both.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from typing import Generic, TypeVar

from sync.backoff import Backoff
from sync.measures import Histogram

K = TypeVar("K")

#: The first wait of a failing key, and the longest, in seconds. A minute is what a person waits
#: after having repaired the cause.
RETRY_FIRST, RETRY_CAP = 0.2, 60.0


class WorkQueue(Generic[K]):
    """Keys in, keys out; to be used in one event loop."""

    def __init__(self, *, rng: random.Random | None = None) -> None:
        self._rng = rng
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._working: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._since: dict[K, float] = {}
        self.adds = 0
        """How often a key was added that did not wait already."""
        self.retries = 0
        """How often a key was to be tried again."""
        self.waited = Histogram()
        """How long keys waited for a worker, from when they were added."""

    def __repr__(self) -> str:
        return (
            f"<WorkQueue {len(self._ready)} ready, {len(self._working)} worked, "
            f"{len(self._later)} later>"
        )

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """The key is to be worked as soon as a worker is free."""
        self._cancel(key)
        if key in self._dirty:
            return
        self._dirty.add(key)
        self.adds += 1
        self._since[key] = time.monotonic()
        if key not in self._working:
            self._push(key)

    def add_after(self, key: K, seconds: float) -> None:
        """The key is to be worked in ``seconds``, unless it comes sooner for another reason."""
        loop = asyncio.get_running_loop()
        planned = self._later.get(key)
        if key in self._dirty or (planned and planned.when() <= loop.time() + seconds):
            return
        self._cancel(key)
        self._later[key] = loop.call_later(seconds, self.add, key)

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

    def hurry(self) -> None:
        """All keys that failed are tried now: what they failed for has changed."""
        for key in list(self._backoffs):
            self._backoffs[key].reset()
            if key in self._later:
                self.add(key)

    async def get(self) -> K:
        """The next key. It is the caller's until `done`."""
        while not self._ready:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # NB: a wake-up that this worker cannot use is another's.
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        key = self._ready.popleft()
        self._dirty.discard(key)
        self._working.add(key)
        self.waited.observe(time.monotonic() - self._since.pop(key))
        return key

    def done(self, key: K) -> None:
        """The caller has ended its work on the key."""
        self._working.discard(key)
        if key in self._dirty:
            self._push(key)

    def close(self) -> None:
        """Cancels what is planned for later, so that no timer outlives the loop's work."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _push(self, key: K) -> None:
        self._ready.append(key)
        self._wake()

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _cancel(self, key: K) -> None:
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
