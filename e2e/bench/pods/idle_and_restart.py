"""The cost of an idle bridge, and of a restart."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import NODE, Requests
from e2e.bench.pods.load_targets import ClusterPair, Runner, Say
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bench.pods.process_usage import account
from e2e.bench.report import Report

#: Seconds until the last effects of a burst or a restart are over.
SETTLE = 15.0
#: Pods that change while the bridge is stopped: it is in sync when all of them are updated.
CHANGED = 20
#: Maximum seconds of a restart.
PATIENCE = 120.0
_LABEL = "bench-changed"


async def idle(pair: ClusterPair, shape: Shape, *, rounds: int, seconds: float, say: Say) -> Report:
    """CPU time, memory and requests of a bridge whose pods all run and do not change."""
    made = Report("idle", {"pods": shape.pods, "seconds": seconds})
    percent, writes, requests = [], [], {}
    async with _at_rest(pair, shape, say) as (runner, _):
        for number in range(rounds):
            say(f"all Running; {seconds:.0f} s idle, {number + 1} of {rounds}")
            counts, before = pair.requests(load_targets.BRIDGE), account(runner.pid)
            await asyncio.sleep(seconds)
            after = account(runner.pid)
            percent.append((after.cpu - before.cpu) / seconds * 100)
            writes.append(float(_writes(counts, NODE).total()))
            requests = {side: dict(count.count()) for side, count in counts.items()}
    made.add("bridge.cpu_percent", "%", percent)
    made.add("bridge.resident_mb", "MB", [after.resident])
    made.add("bridge.writes", "", writes)
    made.details["requests"] = requests
    return made


async def restart(pair: ClusterPair, shape: Shape, *, rounds: int, say: Say) -> Report:
    """Time, CPU time and writes of a join that finds all pods running.

    Each round has two restarts. Nothing changes during the first: writes are counted. Some pods
    change during the second: the bridge is in sync when they are updated, wherever in its queue.
    """
    found: list[dict[str, float]] = []
    written: dict[str, Any] = {}
    async with _at_rest(pair, shape, say) as (runner, crowd):
        for number in range(rounds):
            say(f"all Running; joining again, {number + 1} of {rounds}")
            runner.stop()
            counts = pair.requests(load_targets.BRIDGE)
            joined = await asyncio.to_thread(runner.start)
            await asyncio.sleep(SETTLE)
            after = account(runner.pid)
            writes = _writes(counts)
            written = {side: dict(count.writes(())) for side, count in counts.items()}
            found.append(
                {
                    "joined_seconds": joined,
                    "in_sync_seconds": await _in_sync(pair, crowd, runner, f"{number}"),
                    "cpu_seconds": after.cpu,
                    "resident_mb": after.resident,
                    "peak_mb": after.peak,
                    "pod_writes": float(sum(n for it, n in writes.items() if " pods" in it)),
                    "writes": float(writes.total()),
                }
            )
    made = Report("restart", {"pods": shape.pods})
    units = {"seconds": "s", "mb": "MB"}
    for name in found[0]:
        unit = units.get(name.rpartition("_")[2], "")
        made.add(f"bridge.{name}", unit, [one[name] for one in found])
    made.details["writes"] = written
    return made


async def _in_sync(pair: ClusterPair, crowd: Crowd, runner: Runner, value: str) -> float:
    """Restarts; seconds from the process's start until pods that changed meanwhile are updated."""
    runner.stop()
    label = {"metadata": {"labels": {_LABEL: value}}}
    count = min(CHANGED, crowd.shape.pods)
    query = {"labelSelector": f"cluster-bridge.io/node={runner.node},{_LABEL}={value}"}
    since = await pair.in_remote.version("/api/v1/pods", query)
    for number in range(count):
        # Spread over the numbers of the pods.
        await crowd.patch(number * crowd.shape.pods // count, label)

    async def follow() -> float:
        seen = set()
        async for event in pair.in_remote.watch("/api/v1/pods", query, since=since):
            seen.add(event["object"]["metadata"]["name"])
            if len(seen) == count:
                break
        return time.perf_counter()

    begin = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(runner.start))
            end = group.create_task(follow())
    except TimeoutError:
        raise PodsLost(f"{count} changed pods were not updated in {PATIENCE:.0f} s") from None
    return end.result() - begin


@asynccontextmanager
async def _at_rest(
    pair: ClusterPair, shape: Shape, say: Say
) -> AsyncIterator[tuple[Runner, Crowd]]:
    """A bridge whose pods all run and were unchanged for a while; deletes them afterwards."""
    async with (
        load_targets.running(load_targets.BRIDGE, pair, shape) as (runner, crowd),
        crowd.watched(),
    ):
        assert runner is not None
        say(f"{shape.pods} pods")
        await crowd.run()
        await asyncio.sleep(SETTLE)
        yield runner, crowd
        await crowd.delete()


def _writes(counts: dict[str, Requests], aside: frozenset[str] = NODE) -> Counter[str]:
    """All writes on both sides, except those for the node; Events count."""
    return sum((count.writes(aside) for count in counts.values()), Counter())
