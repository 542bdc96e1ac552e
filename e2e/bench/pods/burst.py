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
from e2e.bridge_process import INSTALLED, Program


def _unit(unit: str) -> Any:
    return field(default=None, metadata={"unit": unit})


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one target. Costs are per pod; None if the target has no such figure."""

    target: str
    running_seconds: float = field(metadata={"unit": "s"})
    """From the first request until all pods are Running in the cluster of their creation."""
    gone_seconds: float = field(metadata={"unit": "s"})
    """From the deletion request until no pod exists there."""
    cpu_burst_ms: float | None = _unit("ms")
    """The process's CPU time for the creation, deferred work included."""
    cpu_delete_ms: float | None = _unit("ms")
    start_mb: float | None = _unit("MB")
    """Resident memory before the load."""
    resident_mb: float | None = _unit("MB")
    """Resident memory with all pods Running."""
    peak_mb: float | None = _unit("MB")
    """Maximum resident memory."""
    writes: float | None = _unit("")
    """Writes to both servers, except Events, Leases and the Node."""
    reads: float | None = _unit("")
    """Watches and lists included."""
    events: float | None = _unit("")
    servers_burst_ms: float | None = _unit("ms")
    """CPU time of all API servers and etcds in the same period."""
    servers_delete_ms: float | None = _unit("ms")
    load_burst_ms: float | None = _unit("ms")
    """CPU time of this process, which creates and watches the pods."""
    requests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Side → ``VERB RESOURCE`` → count."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """CPU times and memory at one moment."""

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
    targets: Sequence[str] = load_targets.LOAD_TARGETS,
) -> Report:
    """The report: medians and spread of each target's runs, and their ratios."""
    runs: list[Run] = []
    for number in range(rounds):
        for way in targets:
            say(f"round {number + 1} of {rounds}: {way}, {shape.pods} pods")
            run = await once(way, pair, shape)
            say(f"  {shape.pods / run.running_seconds:.0f} pods/s")
            runs.append(run)
            await asyncio.sleep(load_targets.REST)
    return report(shape, runs)


async def once(way: str, pair: ClusterPair, shape: Shape, program: Program = INSTALLED) -> Run:
    """One load on one target; ``program`` is the command of a bridge. Raises PodsLost."""
    async with load_targets.running(way, pair, shape, program=program) as (runner, crowd):
        await asyncio.sleep(load_targets.REST)
        counts = pair.requests(way)
        run = await _load(pair, crowd, way, runner)
        # Work after a pod's deletion, such as the removal of its ConfigMap's copy, counts, too.
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
        await load_targets.idle(runner)
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


def counted(run: Run, counts: Mapping[str, Requests], pods: int) -> Run:
    """The run with its process's requests. Raises PodsLost if a pod was created twice."""
    if not counts:
        return run
    requests_by_side = {side: list(count.all()) for side, count in counts.items()}
    made = sum(str(one) == "create pods" and one.code == 201 for one in requests_by_side["remote"])
    # Fewer if a response was lost: all of them were Running.
    if made > pods:
        raise PodsLost(f"{run.target} made {made} pods in the remote for {pods} at home")
    every = [one for requests in requests_by_side.values() for one in requests]

    def a_pod(found: Iterable[Request]) -> float:
        return sum(1 for _ in found) / pods

    extra = {
        "writes": a_pod(one for one in every if one.is_write and one.resource not in EVENTS | NODE),
        "reads": a_pod(one for one in every if one.verb in READS),
        "events": a_pod(one for one in every if one.is_write and one.resource in EVENTS),
        "requests": {
            side: Counter(map(str, requests)) for side, requests in requests_by_side.items()
        },
    }
    return Run(**{**asdict(run), **extra})


def report(shape: Shape, runs: Sequence[Run]) -> Report:
    """The figures of each target, and their ratios within the same round."""
    made = Report("burst", asdict(shape))
    by_way = {
        way: [run for run in runs if run.target == way] for way in (run.target for run in runs)
    }
    for way, mine in by_way.items():
        made.add(
            f"{way}.pods_per_second", "pods/s", (shape.pods / run.running_seconds for run in mine)
        )
        # Each target is compared with those that do less.
        for base in load_targets.LOAD_TARGETS[: load_targets.LOAD_TARGETS.index(way)]:
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
    """Compares rate and CPU time of two targets."""
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
    """The requests of the last round, most frequent first."""
    return {
        side: {name: rounded(n / pods) for name, n in Counter(found).most_common()}
        for side, found in run.requests.items()
    }
