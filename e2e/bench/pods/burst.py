"""Many pods at once, with the bridge and without.

Each round runs the same load on three targets (`e2e.bench.pods.load_targets`), in turn and each
alone. A run that loses a pod, creates one twice, or leaves one, is an error. The API servers count
the requests; CPU time of the servers is that of API servers and etcd.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import EVENTS, NODE, READS, Request, Requests
from e2e.bench.pods.load_targets import ClusterPair, Runner, Say
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bench.pods.process_usage import Servers, account, own_cpu_seconds
from e2e.bench.report import Report, rounded

#: Of a core: a process that takes less has nothing left to do.
AT_REST = 0.02


def _unit(unit: str) -> Any:
    return field(default=None, metadata={"unit": unit})


@dataclass(frozen=True, slots=True)
class Run:
    """One load, one way. Costs are a pod; None where a way has no such figure."""

    way: str
    running_seconds: float = field(metadata={"unit": "s"})
    """From the first request until all pods are Running where they were made."""
    gone_seconds: float = field(metadata={"unit": "s"})
    """From the request to delete them until all are gone there."""
    cpu_burst_ms: float | None = _unit("ms")
    """Processor time of the process for that, with what it put off until all were Running."""
    cpu_delete_ms: float | None = _unit("ms")
    start_mb: float | None = _unit("MB")
    """Resident memory before the load,"""
    resident_mb: float | None = _unit("MB")
    """with all pods Running,"""
    peak_mb: float | None = _unit("MB")
    """and the largest over all."""
    writes: float | None = _unit("")
    """To both servers together; Events, Leases and the Node aside."""
    reads: float | None = _unit("")
    """Watches and lists too."""
    events: float | None = _unit("")
    servers_burst_ms: float | None = _unit("ms")
    """Processor time of all API servers and etcds, over the same time."""
    servers_delete_ms: float | None = _unit("ms")
    load_burst_ms: float | None = _unit("ms")
    """Processor time of this process, which makes the pods and watches them."""
    requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Side → ``VERB RESOURCE`` → how many."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """All accounts at one time."""

    runner: float
    resident: float
    servers: float
    load: float

    @classmethod
    def now(cls, runner: Runner | None, servers: Servers) -> _Moment:
        found = account(runner.pid) if runner else None
        mine, resident = (found.cpu, found.resident) if found else (0.0, 0.0)
        return cls(mine, resident, sum(servers.cpu().values()), own_cpu_seconds())


async def measure(
    pair: ClusterPair,
    shape: Shape,
    *,
    rounds: int,
    say: Say,
    ways_: Sequence[str] = load_targets.WAYS,
) -> Report:
    """The report: medians and spread of each way's runs, and each rate as a part of the others'."""
    runs: list[Run] = []
    for number in range(rounds):
        for way in ways_:
            say(f"round {number + 1} of {rounds}: {way}, {shape.pods} pods")
            run = await once(way, pair, shape)
            say(f"  {shape.pods / run.running_seconds:.0f} pods/s")
            runs.append(run)
            await asyncio.sleep(load_targets.REST)
    return report(shape, runs)


async def once(way: str, pair: ClusterPair, shape: Shape) -> Run:
    """One load, one way. Raises Lost."""
    async with load_targets.running(way, pair, shape) as (runner, crowd):
        await asyncio.sleep(load_targets.REST)
        counts = pair.requests(way)
        run = await _load(pair, crowd, way, runner)
        # What follows a pod's end, as the removal of its ConfigMap's copy, belongs to its life.
        await asyncio.sleep(load_targets.REST)
        return counted(run, counts, shape.pods)


async def _load(pair: ClusterPair, crowd: Crowd, way: str, runner: Runner | None) -> Run:
    count = crowd.shape.pods
    servers = Servers([pair.remote] if runner is None else [pair.home, pair.remote])

    def a_pod(before: float, after: float) -> float:
        return (after - before) / count * 1000

    async with crowd.watched():
        before = _Moment.now(runner, servers)
        running = await crowd.run()
        between = _Moment.now(runner, servers)
        await _rested(runner)
        middle = _Moment.now(runner, servers)
        gone = await crowd.delete()
        after = _Moment.now(runner, servers)
    run = Run(
        way,
        running,
        gone,
        servers_burst_ms=a_pod(before.servers, middle.servers),
        servers_delete_ms=a_pod(middle.servers, after.servers),
        load_burst_ms=a_pod(before.load, between.load),
    )
    if runner is None:
        return run
    mine = {
        "cpu_burst_ms": a_pod(before.runner, middle.runner),
        "cpu_delete_ms": a_pod(middle.runner, after.runner),
        "start_mb": before.resident,
        "resident_mb": middle.resident,
        "peak_mb": account(runner.pid).peak,
    }
    return Run(**{**asdict(run), **mine})


async def _rested(runner: Runner | None) -> None:
    """Until the process has done what it had put off: it takes next to nothing for a while."""
    await asyncio.sleep(load_targets.REST)
    while True:
        before = account(runner.pid).cpu if runner else 0.0
        await asyncio.sleep(load_targets.REST)
        if runner is None or account(runner.pid).cpu - before < AT_REST * load_targets.REST:
            return


def counted(run: Run, counts: Mapping[str, Requests], pods: int) -> Run:
    """The run, with what its process asked of the servers. Raises Lost if a pod was made twice."""
    if not counts:
        return run
    asked = {side: list(count.all()) for side, count in counts.items()}
    made = sum(str(one) == "create pods" and one.code == 201 for one in asked["remote"])
    # Fewer where an answer was lost on its way: all of them were Running.
    if made > pods:
        raise PodsLost(f"{run.way} made {made} pods in the remote for {pods} at home")
    every = [one for requests in asked.values() for one in requests]

    def a_pod(found: Iterable[Request]) -> float:
        return sum(1 for _ in found) / pods

    extra = {
        "writes": a_pod(one for one in every if one.is_write and one.resource not in EVENTS | NODE),
        "reads": a_pod(one for one in every if one.verb in READS),
        "events": a_pod(one for one in every if one.is_write and one.resource in EVENTS),
        "requests": {side: Counter(map(str, requests)) for side, requests in asked.items()},
    }
    return Run(**{**asdict(run), **extra})


def report(shape: Shape, runs: Sequence[Run]) -> Report:
    """Figures of each way, and beside another way's of the same round."""
    made = Report("burst", asdict(shape))
    by_way = {way: [run for run in runs if run.way == way] for way in (run.way for run in runs)}
    for way, mine in by_way.items():
        made.add(
            f"{way}.pods_per_second", "pods/s", (shape.pods / run.running_seconds for run in mine)
        )
        # Each way beside those that do less.
        for base in load_targets.WAYS[: load_targets.WAYS.index(way)]:
            if base in by_way:
                _compare(made, way, base, list(zip(mine, by_way[base], strict=True)))
        for one in fields(Run):
            if "unit" in one.metadata:
                values = [getattr(run, one.name) for run in mine]
                made.add(f"{way}.{one.name}", one.metadata["unit"], values)
    made.details["requests_a_pod"] = {
        way: _requests(mine[-1], shape.pods) for way, mine in by_way.items() if mine[-1].requests
    }
    return made


def _compare(made: Report, way: str, base: str, pairs: list[tuple[Run, Run]]) -> None:
    """One way beside another: rate, and what processor time it takes, itself and of the servers."""
    made.add(
        f"{way}.of_{base}",
        "x",
        (other.running_seconds / one.running_seconds for one, other in pairs),
    )
    for what in ("cpu_burst", "cpu_delete", "servers_burst", "servers_delete"):
        both = [(getattr(one, f"{what}_ms"), getattr(other, f"{what}_ms")) for one, other in pairs]
        ratios = (mine / theirs if mine and theirs else None for mine, theirs in both)
        made.add(f"{way}.{what}_of_{base}", "x", ratios)


def _requests(run: Run, pods: int) -> dict[str, dict[str, float]]:
    """The last round's, most first."""
    return {
        side: {name: rounded(n / pods) for name, n in Counter(found).most_common()}
        for side, found in run.requests.items()
    }
