"""Many pods at once, with the bridge and without.

Each round runs the same load in three ways (`e2e.bench.pods.ways`), one after the other and each
alone. A run that loses a pod, or leaves one, is an error. The bridge's requests are counted by the
servers.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from e2e.bench.pods import ways
from e2e.bench.pods.accounts import account
from e2e.bench.pods.load import Crowd, Shape
from e2e.bench.pods.requests import Requests
from e2e.bench.pods.ways import Pair, Runner, Say


@dataclass(frozen=True, slots=True)
class Run:
    """One load, one way."""

    way: str
    running_seconds: float
    """From the first request until all pods are Running where they were made."""
    gone_seconds: float
    """From the request to delete them until all are gone there."""
    cpu_burst_ms: float | None = None
    """Processor time of the process between, a pod, until all are Running."""
    cpu_delete_ms: float | None = None
    peak_mb: float | None = None
    writes: float | None = None
    """Of the process, a pod, to both servers together, Leases and Events aside."""


async def measure(
    pair: Pair, shape: Shape, *, rounds: int, say: Say, ways_: Sequence[str] = ways.WAYS
) -> dict[str, Any]:
    """The report: every run, the medians, and each way's rate as a part of the others'."""
    runs: list[Run] = []
    for number in range(rounds):
        for way in ways_:
            say(f"round {number + 1} of {rounds}: {way}, {shape.pods} pods")
            run = await once(way, pair, shape)
            say(f"  {shape.pods / run.running_seconds:.0f} pods/s")
            runs.append(run)
            await asyncio.sleep(ways.REST)
    return report(shape, runs)


async def once(way: str, pair: Pair, shape: Shape) -> Run:
    """One load, one way. Raises Lost."""
    logs = [cluster.audit_log for cluster in (pair.home, pair.remote)]
    async with ways.running(way, pair, shape) as (runner, crowd):
        await asyncio.sleep(ways.REST)
        counts = [Requests(log) for log in logs if log is not None]
        run = await _load(crowd, way, runner)
        if way != ways.BRIDGE or not counts:
            return run
        written = sum(sum(count.writes().values()) for count in counts)
        return Run(**{**asdict(run), "writes": written / shape.pods})


async def _load(crowd: Crowd, way: str, runner: Runner | None) -> Run:
    async with crowd.watched():
        if runner is None:
            return Run(way, await crowd.run(), await crowd.delete())
        count = crowd.shape.pods
        before = account(runner.pid)
        running = await crowd.run()
        between = account(runner.pid)
        await asyncio.sleep(ways.REST)
        middle = account(runner.pid)
        gone = await crowd.delete()
        after = account(runner.pid)
        return Run(
            way,
            running,
            gone,
            cpu_burst_ms=(between.cpu - before.cpu) / count * 1000,
            cpu_delete_ms=(after.cpu - middle.cpu) / count * 1000,
            peak_mb=after.peak,
        )


def report(shape: Shape, runs: list[Run]) -> dict[str, Any]:
    """Medians of each way, with their ratios."""
    figures: dict[str, dict[str, Any]] = {}
    for way in dict.fromkeys(run.way for run in runs):
        mine = [run for run in runs if run.way == way]
        names = [field.name for field in fields(Run) if field.name != "way"]
        figures[way] = {it: _median([getattr(run, it) for run in mine]) for it in names}
        figures[way]["pods_per_second"] = shape.pods / figures[way]["running_seconds"]
    for base in (ways.DIRECT, ways.LEAST):
        for mine_ in figures.values():
            if base in figures:
                rate = mine_["pods_per_second"] / figures[base]["pods_per_second"]
                mine_[f"of_{base}"] = rate
    return {
        "benchmark": "burst",
        "shape": asdict(shape),
        "ways": figures,
        "runs": [asdict(run) for run in runs],
    }


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
