"""A cache that fetches each key once at a time and keeps the value for a limited time.

Guarantees: concurrent callers of a key share one fetch; a value is cached for its lifetime; an
error is raised to the callers that wait, and is not cached; a caller that is cancelled does not
cancel the fetch of the others. The cache holds `SIZE` values at most and evicts the least used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import cachetools

from sync.base import clock

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

#: Some hundred bytes each; more than a node has callers, with every verb and subresource.
SIZE = 4096


class SingleFlightCache(Generic[Key, Value]):
    """Caches values by key; ``lifetime`` returns a value's seconds. Call `close` at the end."""

    def __init__(
        self, lifetime: Callable[[Value], float], *, clock: Callable[[], float] = clock.now
    ) -> None:
        self._cache: cachetools.TLRUCache[Key, Value] = cachetools.TLRUCache(
            maxsize=SIZE, ttu=lambda _, value, now: now + lifetime(value), timer=clock
        )
        self._in_flight: dict[Key, asyncio.Task[Value]] = {}
        self.misses = 0
        """Fetches started."""
        self.hits = 0
        """Calls answered from the cache or from a fetch in flight."""

    async def get(self, key: Key, fetch: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Returns the key's value, from ``fetch`` if it is not cached. Raises what ``fetch``
        raises."""
        cached = self._cache.get(key)
        if cached is not None:
            self.hits += 1
            return cached
        task = self._in_flight.get(key)
        if task is not None:
            self.hits += 1
        else:
            self.misses += 1
            task = asyncio.create_task(fetch())
            self._in_flight[key] = task
            task.add_done_callback(lambda done: self._store(key, done))
        return await asyncio.shield(task)

    def _store(self, key: Key, task: asyncio.Task[Value]) -> None:
        self._in_flight.pop(key, None)
        # NB: reading the exception also marks it as retrieved, for when no caller waits any more.
        if not task.cancelled() and task.exception() is None:
            self._cache[key] = task.result()

    async def close(self) -> None:
        """Cancels the fetches in flight."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
