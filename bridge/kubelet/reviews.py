"""Answers that are asked for once and remembered for a while.

Guarantees: callers that ask for the same at the same time share one question; an answer is
remembered for as long as its `lifetime` says; a failure is told to those who wait and is not
remembered. One caller's leaving does not take the answer from the others. At most `size` answers
are held, the least used go first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import cachetools

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")

#: Some hundred bytes each; more callers than any node has, with every verb and subresource.
SIZE = 4096


class Remembered(Generic[Key, Answer]):
    """Remembers what ``ask`` answers. Call `close` at the end."""

    def __init__(
        self,
        ask: Callable[[Key], Awaitable[Answer]],
        *,
        lifetime: Callable[[Answer], float],
        clock: Callable[[], float] = time.monotonic,
        size: int = SIZE,
    ) -> None:
        self._ask = ask
        self._known: cachetools.TLRUCache[Key, Answer] = cachetools.TLRUCache(
            maxsize=size, ttu=lambda _, answer, now: now + lifetime(answer), timer=clock
        )
        self._asking: dict[Key, asyncio.Task[Answer]] = {}

    async def get(self, key: Key, question: Callable[[], Awaitable[Answer]] | None = None) -> Answer:
        """The answer. Raises what ``ask`` raises. ``question`` asks instead of ``ask``, where the
        key alone is not enough to ask (a hash of a secret)."""
        try:
            return self._known[key]
        except KeyError:
            pass
        task = self._asking.get(key)
        if task is None:
            asking = question() if question is not None else self._ask(key)
            task = asyncio.ensure_future(self._answered(key, asking))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        return await asyncio.shield(task)
