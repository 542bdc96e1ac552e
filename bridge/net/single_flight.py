"""Answers that are asked for once and remembered for a while.

Guarantees: those who ask for the same at the same time share one question; an answer is remembered
for as long as its lifetime says; a failure is told to those who wait, and is not remembered. One
caller's leaving does not take the answer from the others. At most `SIZE` answers are held; the
least used go first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

import cachetools

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

#: Some hundred bytes each; more than a node has callers, with every verb and subresource.
SIZE = 4096


class SingleFlightCache(Generic[Key, Answer]):
    """Remembers answers by their questions' keys. Call `close` at the end."""

    def __init__(
        self,
        lifetime: Callable[[Answer], float],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known: cachetools.TLRUCache[Key, Answer] = cachetools.TLRUCache(
            maxsize=SIZE, ttu=lambda _, answer, now: now + lifetime(answer), timer=clock
        )
        self._asking: dict[Key, asyncio.Task[Answer]] = {}
        self.asked = 0
        """How many questions were asked."""
        self.remembered = 0
        """How many answers were remembered, or shared while they were asked for."""

    async def get(self, key: Key, ask: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """The answer to the question of this key; ``ask`` asks it. Raises what ``ask`` raises."""
        known = self._known.get(key)
        if known is not None:
            self.remembered += 1
            return known
        task = self._asking.get(key)
        if task is not None:
            self.remembered += 1
        else:
            self.asked += 1
            task = asyncio.create_task(ask())
            self._asking[key] = task
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key: Key, task: asyncio.Task[Answer]) -> None:
        self._asking.pop(key, None)
        # NB: asking for the error also marks it as seen, for when nobody waits any more.
        if not task.cancelled() and task.exception() is None:
            self._known[key] = task.result()

    async def close(self) -> None:
        """Ends the questions that are under way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
