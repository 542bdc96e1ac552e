"""Queues what caches hold when a bridge begins to work.

While a bridge stands by its queues are held (`sync.runtime.workqueue`): they would grow by a key
for every object that comes and goes, and nobody drains them. A key names no change, so what has to
be worked follows from the caches alone.
"""

from __future__ import annotations

import asyncio

from sync.base import exceptions
from sync.cache.informer import Informer
from sync.cache.store import key_of
from sync.cache.store_writer import Handler
from sync.cache.watcher import BATCH


class Seeds:
    """Handlers of informers that put keys on queues."""

    def __init__(self) -> None:
        self._handlers: list[tuple[Informer, tuple[Handler, ...]]] = []

    def add(self, informer: Informer, *handlers: Handler) -> None:
        """Has `sow` call these handlers for the informer's objects."""
        self._handlers.append((informer, handlers))

    async def sow(self) -> None:
        """Calls each handler as for a new object, for every object that is in a cache now. Lets
        other tasks run in between."""
        for informer, handlers in self._handlers:
            for count, obj in enumerate(list(informer.store), start=1):
                for handler in handlers:
                    with exceptions.log_defects(f"{informer.resource} {key_of(obj)}"):
                        handler(None, obj)
                if count % BATCH == 0:
                    await asyncio.sleep(0)
