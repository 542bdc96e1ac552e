"""The cost of an update of one ConfigMap that all pods use, independent of the number of pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import EVENTS, NODE, READS
from e2e.bench.pods.benchmark_client import BenchmarkClient
from e2e.bench.pods.load_targets import ClusterPair, Say
from e2e.bench.pods.pod_load import PodsLost, Shape
from e2e.bench.pods.process_usage import account
from e2e.bench.report import Report

#: Seconds until the copy has the new value.
PATIENCE = 30.0
#: Seconds after an update in which its requests are counted.
ECHO = 3.0


class Copy:
    """Records when the copy of the first ConfigMap of a remote namespace had each value."""

    def __init__(self, api: BenchmarkClient, namespace: str) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._seen: dict[str, float] = {}
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watches the copy while the block runs."""
        query = {"fieldSelector": "metadata.name=shared-0"}
        since = await self._api.version(self._path, query)

        async def watch() -> None:
            async for event in self._api.watch(self._path, query, since=since):
                self._saw(event)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(watch())
            try:
                yield
            finally:
                task.cancel()

    async def when(self, value: str) -> float:
        """Waits until it has this value; the time of that. Raises PodsLost."""
        try:
            async with asyncio.timeout(PATIENCE):
                while value not in self._seen:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise PodsLost(
                f"the copy of the ConfigMap did not have the new value in {PATIENCE:.0f} s"
            ) from None
        return self._seen[value]

    def _saw(self, event: dict[str, Any]) -> None:
        value = (event["object"].get("data") or {}).get("key", "")
        self._seen.setdefault(value, time.perf_counter())
        self._changed.set()


async def measure(pair: ClusterPair, *, pods: int, rounds: int, say: Say) -> Report:
    """Time, CPU time and requests of one update per round."""
    shape = Shape(pods, references=1, secrets=1)
    taken: list[float] = []
    spent = 0.0
    reads: list[float] = []
    writes: list[float] = []
    requests: dict[str, Any] = {}
    async with (
        load_targets.running(load_targets.BRIDGE, pair, shape) as (runner, crowd),
        crowd.watched(),
    ):
        assert runner is not None
        say(f"{pods} pods that use one ConfigMap")
        await crowd.run()
        copy = Copy(pair.in_remote, load_targets.remote_namespace(crowd.namespaces[0]))
        async with copy.watched():
            await asyncio.sleep(5 * load_targets.REST)
            for number in range(rounds):
                counts, before = pair.requests(load_targets.BRIDGE), account(runner.pid)
                value = f"update-{number}"
                await crowd.patch_reference({"data": {"key": value}})
                answered = time.perf_counter()
                taken.append((await copy.when(value) - answered) * 1000)
                await asyncio.sleep(ECHO)
                spent += (account(runner.pid).cpu - before.cpu) * 1000
                found = [
                    one
                    for count in counts.values()
                    for one in count.all()
                    # A watch that times out restarts independently of updates.
                    if one.resource not in EVENTS | NODE and one.verb != "watch"
                ]
                reads.append(float(sum(one.verb in READS for one in found)))
                writes.append(float(sum(one.is_write for one in found)))
                requests = {side: dict(count.count()) for side, count in counts.items()}
        await crowd.delete()
    made = Report("configmap", {"pods": pods})
    made.add("bridge.copied_ms", "ms", taken)
    # One figure for all rounds: the kernel counts in steps of 10 ms.
    made.add("bridge.cpu_ms", "ms", [spent / rounds])
    made.add("bridge.reads", "", reads)
    made.add("bridge.writes", "", writes)
    made.details["requests"] = requests
    return made
