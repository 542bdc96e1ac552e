"""Runs informers in tests, and records what they report to handlers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from sync.base.backoff import Backoff
from sync.cache import informer as informer_module
from sync.cache import informer_health
from sync.cache.informer import Informer
from sync.kube.api_resources import Resource
from tests.fakeapi import FakeApi
from translators.object_accessors import Object, name_of


class ShortenedBackoff:
    """Replaces `Backoff` in informers: records the waits, and shortens them."""

    def __init__(self, patch: pytest.MonkeyPatch, *, shortened: int = 100) -> None:
        self.taken: list[float] = []
        waits = self

        class Short(Backoff):
            def next(self) -> float:
                wait = super().next()
                waits.taken.append(wait)
                return wait / shortened

        patch.setattr(informer_module, "Backoff", Short)
        patch.setattr(informer_health, "Backoff", Short)


class ChangeRecorder:
    """The changes that an informer reported, as ``+name``, ``~name`` and ``-name``."""

    def __init__(self, informer: Informer) -> None:
        self.changes: list[tuple[Object | None, Object | None]] = []
        self.states: list[bool] = []
        informer.on_change(self._note)
        informer.on_state(lambda it: self.states.append(it.error is None))

    def _note(self, old: Object | None, new: Object | None) -> None:
        self.changes.append((old, new))

    def take(self) -> list[str]:
        """The changes since the last call."""
        recorded = [
            ("~" if old and new else "+" if new else "-") + name_of(new or old or {})
            for old, new in self.changes
        ]
        self.changes.clear()
        return recorded


@asynccontextmanager
async def running_informer(informer: Informer) -> AsyncIterator[asyncio.Task[None]]:
    """Runs the informer, synced, until the block ends."""
    task = asyncio.create_task(informer.run())
    try:
        async with asyncio.timeout(30):
            await informer.synced.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def caught_up(api: FakeApi, *informers: Informer) -> None:
    """Waits until the informers watch, and have processed every change of the server. Bookmarks
    advance informers that no change concerns."""
    await all_caught_up(api, lambda: informers)


async def all_caught_up(
    api: FakeApi, running: Callable[[], Iterable[Informer]], *, skip_backoff: bool = False
) -> None:
    """As `caught_up`, for informers that may begin and end meanwhile. With ``skip_backoff``
    informers that failed retry at once: several failures in a row make them wait longer than this
    function does."""
    revision = api.store.history.revision

    def late() -> set[Resource]:
        informers = list(running())
        behind = {it.resource for it in informers if int(it.resource_version or 0) < revision}
        watches = Counter(it.resource for it in informers)
        return behind | {r for r, count in watches.items() if len(api.open_watches(r)) < count}

    async with asyncio.timeout(15):  # A loaded machine needs many seconds for a burst of pods.
        while resources := late():
            for informer in running() if skip_backoff else ():
                informer.retry_now()
            for resource in resources:
                api.bookmark(resource)
            await asyncio.sleep(0.004)
