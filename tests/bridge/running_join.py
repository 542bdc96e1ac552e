"""A running join between two fake clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from bridge.app import join_lifecycle
from bridge.base.consent import NO_CONSENT, Consent
from bridge.base.join_settings import JoinSettings
from tests.bridge.two_clusters import Clusters
from tests.virtual_time_loop import poll

#: Seconds of the loop's time, more than a join or its end take. The limit only ends a test that
#: hangs.
SOON = 120.0


@dataclass
class RunningJoin:
    """One run of `bridge.app.join_lifecycle.join`."""

    task: asyncio.Task[None]
    stop: asyncio.Event
    reports: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        """The port of the kubelet API."""
        line = next(line for line in self.reports if "kubelet API listens on" in line)
        return int(line.rpartition(":")[2])

    async def wait_for_report(self, words: str) -> None:
        """Waits for this text in the progress; raises the error that ended the join before."""
        await poll(
            lambda: self.task.done() or any(words in line for line in self.reports), timeout=SOON
        )
        if not any(words in line for line in self.reports):
            await self.task

    async def end(self) -> None:
        """Stops the join and raises its error."""
        self.stop.set()
        async with asyncio.timeout(SOON):
            await self.task


def start_join(settings: JoinSettings, *, consent: Consent = NO_CONSENT) -> RunningJoin:
    """Starts a join."""
    reports: list[str] = []
    stop = asyncio.Event()
    task = asyncio.create_task(
        join_lifecycle.join(settings, notify=reports.append, stop=stop, consent=consent)
    )
    return RunningJoin(task, stop, reports)


@asynccontextmanager
async def running_join(
    two: Clusters, settings: JoinSettings | None = None, *, consent: Consent = NO_CONSENT
) -> AsyncIterator[RunningJoin]:
    """A join whose node is registered; the block's end stops it."""
    run = start_join(settings or two.settings, consent=consent)
    try:
        await run.wait_for_report("is registered")
        yield run
        await run.end()
    finally:
        run.task.cancel()
        await asyncio.gather(run.task, return_exceptions=True)


def kubelet_api_client(run: RunningJoin, token: str = "someone's") -> aiohttp.ClientSession:
    """A client of the kubelet API with this bearer token."""
    return aiohttp.ClientSession(
        base_url=f"https://127.0.0.1:{run.port}",
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(ssl=False),
    )
