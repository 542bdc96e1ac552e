"""One pod at a time: how long each step of its life takes, with the bridge and without."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from e2e.bench.pods import ways
from e2e.bench.pods.api import Api
from e2e.bench.pods.load import Crowd, Shape
from e2e.bench.pods.ways import Pair, Say

#: Seconds for one step of one pod.
PATIENCE = 30.0
#: Seconds between two pods: each meets a bridge at rest.
PAUSE = 0.05

Moments = dict[str, float]


class Witness:
    """When the pods of a namespace came to which state, in one cluster, by one watch."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.moments: defaultdict[str, Moments] = defaultdict(dict)
        """Pod → state → the loop's time: exists, running, deleting, gone."""
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watching(self, prefix: str) -> AsyncIterator[None]:
        """Watches pods of namespaces that begin with ``prefix``."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._watch(prefix))
            try:
                yield
            finally:
                task.cancel()

    async def when(self, pod: str, state: str) -> float:
        """The time at which the pod came to this state; waits for it."""
        async with asyncio.timeout(PATIENCE):
            while state not in self.moments[pod]:
                self._changed.clear()
                await self._changed.wait()
        return self.moments[pod][state]

    async def _watch(self, prefix: str) -> None:
        async for event in self._api.watch("/api/v1/pods", {}):
            now = time.perf_counter()
            if event["object"]["metadata"]["namespace"].startswith(prefix):
                self._saw(event, now)

    def _saw(self, event: dict[str, Any], now: float) -> None:
        pod = event["object"]
        moments = self.moments[pod["metadata"]["name"]]
        moments.setdefault("exists", now)
        if pod["status"].get("phase") == "Running":
            moments.setdefault("running", now)
        if pod["metadata"].get("deletionTimestamp"):
            moments.setdefault("deleting", now)
        if event["type"] == "DELETED":
            moments.setdefault("gone", now)
        self._changed.set()


async def measure(pair: Pair, *, pods: int, say: Say) -> dict[str, Any]:
    """p50 and p99 of each step, in milliseconds, for each way."""
    found = {}
    for way in ways.WAYS:
        say(f"{way}: {pods} pods, one at a time")
        found[way] = _summary(await _steps(way, pair, pods))
        await asyncio.sleep(ways.REST)
    return {"benchmark": "latency", "pods": pods, "milliseconds": found}


async def _steps(way: str, pair: Pair, pods: int) -> list[Moments]:
    shape = Shape(pods=pods)
    async with AsyncExitStack() as stack:
        _, crowd = await stack.enter_async_context(ways.running(way, pair, shape))
        made_in = Witness(pair.in_remote if way == ways.DIRECT else pair.at_home)
        runs_in = made_in if way == ways.DIRECT else Witness(pair.in_remote)
        for witness in dict.fromkeys((made_in, runs_in)):
            await stack.enter_async_context(witness.watching(crowd.namespaces[0]))
        await asyncio.sleep(ways.REST)
        steps = []
        # The first pod of a namespace also makes the namespace and fills its caches.
        for number in range(pods + 1):
            steps.append(await _one(number, crowd, made_in, runs_in))
            await asyncio.sleep(PAUSE)
        return steps[1:]


async def _one(number: int, crowd: Crowd, made_in: Witness, runs_in: Witness) -> Moments:
    pod = f"pod-{number}"
    begin = time.perf_counter()
    await crowd.create(number)
    answered = time.perf_counter()
    exists = await runs_in.when(pod, "exists")
    ran, running = await runs_in.when(pod, "running"), await made_in.when(pod, "running")
    await asyncio.sleep(PAUSE)
    asked = time.perf_counter()
    await crowd.delete_one(number)
    gone = await made_in.when(pod, "gone")
    remote_needs = await runs_in.when(pod, "gone") - await runs_in.when(pod, "deleting")
    return {
        "answer to exists in the remote": exists - answered,
        "remote Running to home Running": running - ran,
        "create to Running": running - begin,
        "delete to gone": gone - asked,
        "delete to gone, beyond the remote's own": gone - asked - remote_needs,
    }


def _summary(steps: list[Moments]) -> dict[str, dict[str, float]]:
    def percentiles(values: list[float]) -> dict[str, float]:
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return {"p50": cuts[49] * 1000, "p99": cuts[98] * 1000}

    return {name: percentiles([step[name] for step in steps]) for name in steps[0]}
