"""Many PersistentVolumeClaims at once, with the bridge and without, and an idle bridge with them.

Each round provisions and deletes the same claims in two ways, in turn and each alone: ``direct``,
in the remote by a class of hostpath-provisioner; and ``bridge``, at home by a class that leads to
that one. The class of the remote has the binding mode Immediate, so that a claim is Bound at home
only after the remote has its volume, and no pod is needed. After the claims of ``bridge`` are
Bound, the bridge is idle for a while.

A run that leaves a claim unbound, creates one twice, or leaves one in the remote, is an error. The
API servers count the requests; CPU time of the servers is that of API servers and etcd.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from e2e.bench.claim_load import ClaimLoad, ClaimsLost, Json
from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import EVENTS, NODE, READS, Requests
from e2e.bench.pods.load_targets import BRIDGE, DIRECT, ClusterPair, Runner, Say
from e2e.bench.pods.process_usage import Servers, account
from e2e.bench.report import Report, percentile, rounded
from e2e.clusters.cluster import Provisioner
from e2e.clusters.provisioners import DRIVERS

WAYS = (DIRECT, BRIDGE)
_CLAIM = "create persistentvolumeclaims"


def _unit(unit: str) -> Any:
    return field(default=None, metadata={"unit": unit})


@dataclass(frozen=True, slots=True)
class Run:
    """One load in one way. Costs are per claim; None if there is no such figure without a
    bridge."""

    way: str
    bound_seconds: float = field(metadata={"unit": "s"})
    """From the first request until all claims are Bound in the cluster of their creation."""
    bound_p50_ms: float = field(metadata={"unit": "ms"})
    """From the request for one claim of them until it is Bound."""
    gone_seconds: float = field(metadata={"unit": "s"})
    """From the deletion request until neither claims nor volumes exist there."""
    cpu_bound_ms: float | None = _unit("ms")
    """The bridge's CPU time until all are Bound, deferred work included."""
    cpu_delete_ms: float | None = _unit("ms")
    writes_bound: float | None = _unit("")
    """Writes to both servers until all are Bound, except Events, Leases and the Node."""
    writes_delete: float | None = _unit("")
    reads: float | None = _unit("")
    """Watches and lists included, over a claim's life."""
    events: float | None = _unit("")
    servers_bound_ms: float | None = _unit("ms")
    """CPU time of all API servers and etcds in the same period."""
    servers_delete_ms: float | None = _unit("ms")
    idle_cpu_percent: float | None = _unit("%")
    """Of a core, while all claims are Bound and nothing changes."""
    idle_writes: float | None = _unit("")
    """Writes in that time, Events included, Leases and the Node excluded; of all claims."""
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Side → ``VERB RESOURCE`` → count, over the lives of all claims."""


async def measure(
    pair: ClusterPair, *, claims: int, rounds: int, idle_seconds: float, say: Say
) -> Report:
    """The report: medians and spread of each way's runs, and their ratios."""
    await asyncio.to_thread(pair.remote.provision_volumes, Provisioner.HOSTPATH, say)
    runs: list[Run] = []
    for number in range(rounds):
        for way in WAYS:
            say(f"round {number + 1} of {rounds}: {way}, {claims} claims")
            run = await _once(way, pair, claims, idle_seconds)
            say(f"  Bound in {run.bound_seconds:.1f} s, deleted in {run.gone_seconds:.1f} s")
            runs.append(run)
            await asyncio.sleep(load_targets.REST)
    return report(claims, idle_seconds, runs)


def report(claims: int, idle_seconds: float, runs: Sequence[Run]) -> Report:
    """The figures of each way, and the bridge's ratios to direct claims of the same round."""
    made = Report("claims", {"claims": claims, "idle_seconds": idle_seconds})
    by_way = {way: [run for run in runs if run.way == way] for way in WAYS}
    pairs = list(zip(by_way[BRIDGE], by_way[DIRECT], strict=True))
    for what in ("bound_seconds", "gone_seconds", "servers_bound_ms", "servers_delete_ms"):
        both = [(getattr(mine, what), getattr(direct, what)) for mine, direct in pairs]
        name = f"{BRIDGE}.{what.rpartition('_')[0]}_of_direct"
        made.add(name, "x", (mine / direct if direct else None for mine, direct in both))
    for way, mine in by_way.items():
        for one in fields(Run):
            if "unit" in one.metadata:
                values = [getattr(run, one.name) for run in mine]
                made.add(f"{way}.{one.name}", one.metadata["unit"], values)
    made.details["requests_a_claim"] = {
        side: {name: rounded(count / claims) for name, count in Counter(found).most_common()}
        for side, found in by_way[BRIDGE][-1].requests.items()
    }
    return made


async def _once(way: str, pair: ClusterPair, claims: int, idle_seconds: float) -> Run:
    async with _load(way, pair, claims) as (runner, load):
        await asyncio.sleep(load_targets.REST)
        servers = Servers([pair.remote] if runner is None else [pair.home, pair.remote])
        async with load.watched():
            creation = _Phase(pair, runner, servers, claims)
            bound = await load.run()
            creating = await creation.costs()
            idle = await _idle(pair, runner, idle_seconds)
            deletion = _Phase(pair, runner, servers, claims)
            gone = await load.delete()
            deleting = await deletion.costs()
        median = percentile(load.bound_seconds.values(), 50) * 1000
        run = Run(
            way,
            bound,
            median,
            gone,
            servers_bound_ms=creating.servers,
            servers_delete_ms=deleting.servers,
        )
        if runner is None:
            return run
        return _with_costs(run, creating, deleting, idle)


@asynccontextmanager
async def _load(
    way: str, pair: ClusterPair, claims: int
) -> AsyncIterator[tuple[Runner | None, ClaimLoad]]:
    """The bridge (None for the remote itself), and the load, prepared but without claims."""
    name = load_targets.name(way)
    remote_class = {
        "provisioner": DRIVERS[Provisioner.HOSTPATH],
        "volumeBindingMode": "Immediate",
    }
    there = ClaimLoad(pair.in_remote, name, remote_class, claims=claims)
    try:
        await there.prepare()
        if way == DIRECT:
            yield None, there
            return
        async with _bridged(pair, name, claims) as (runner, load):
            yield runner, load
            await _nothing_left(pair, name)
    finally:
        await there.forget()


@asynccontextmanager
async def _bridged(
    pair: ClusterPair, name: str, claims: int
) -> AsyncIterator[tuple[Runner, ClaimLoad]]:
    home_class: Json = {
        "provisioner": "volumes.cluster-bridge.io",
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": {"remoteStorageClass": name},
    }
    load = ClaimLoad(pair.at_home, name, home_class, claims=claims, node=name)
    try:
        await load.prepare()
        async with load_targets.bridge(pair, name, ("--storage", "provision")) as runner:
            yield runner, load
    finally:
        await load.forget()


async def _nothing_left(pair: ClusterPair, node: str) -> None:
    """Confirms that no claim of the node is left in the remote. Raises ClaimsLost."""
    found = await pair.in_remote.call(
        "GET",
        "/api/v1/persistentvolumeclaims",
        query={"labelSelector": f"cluster-bridge.io/node={node}"},
    )
    if found["items"]:
        raise ClaimsLost(f"{len(found['items'])} claims are left in the remote")


@dataclass(frozen=True, slots=True)
class _Costs:
    """The costs of one phase of a run, per claim."""

    servers: float
    cpu: float = 0.0
    writes: float = 0.0
    reads: float = 0.0
    events: float = 0.0
    requests: Mapping[str, Counter[str]] = field(default_factory=dict)


class _Phase:
    """Measures the costs from its creation on."""

    def __init__(
        self, pair: ClusterPair, runner: Runner | None, servers: Servers, claims: int
    ) -> None:
        self._runner, self._servers, self._claims = runner, servers, claims
        self._counts = pair.requests(BRIDGE) if runner else {}
        self._before = self._now()

    def _now(self) -> tuple[float, float]:
        mine = account(self._runner.pid).cpu if self._runner else 0.0
        return mine, sum(self._servers.cpu().values())

    async def costs(self) -> _Costs:
        """The costs until the bridge has been idle for a while. Raises ClaimsLost if it created a
        claim twice."""
        await load_targets.idle(self._runner)
        ended = self._now()
        cpu, servers = (
            (after - before) / self._claims * 1000
            for before, after in zip(self._before, ended, strict=True)
        )
        by_side = {side: list(count.all()) for side, count in self._counts.items()}
        created = sum(str(one) == _CLAIM and one.code == 201 for one in by_side.get("remote", ()))
        if created > self._claims:
            raise ClaimsLost(f"{created} claims created in the remote for {self._claims} at home")
        every = [one for requests in by_side.values() for one in requests]
        events = sum(one.is_write and one.resource in EVENTS for one in every)
        writes = sum(one.is_write and one.resource not in EVENTS | NODE for one in every)
        reads = sum(one.verb in READS for one in every)
        return _Costs(
            servers,
            cpu,
            writes / self._claims,
            reads / self._claims,
            events / self._claims,
            {side: Counter(map(str, requests)) for side, requests in by_side.items()},
        )


async def _idle(
    pair: ClusterPair, runner: Runner | None, seconds: float
) -> tuple[float, int] | None:
    """Percent of a core, and writes, of the bridge in the next seconds."""
    if runner is None or not seconds:
        return None
    counts: Mapping[str, Requests] = pair.requests(BRIDGE)
    before = account(runner.pid).cpu
    await asyncio.sleep(seconds)
    percent = (account(runner.pid).cpu - before) / seconds * 100
    return percent, sum(count.writes(NODE).total() for count in counts.values())


def _with_costs(
    run: Run, creating: _Costs, deleting: _Costs, idle: tuple[float, int] | None
) -> Run:
    sides = creating.requests.keys() | deleting.requests.keys()
    return replace(
        run,
        cpu_bound_ms=creating.cpu,
        cpu_delete_ms=deleting.cpu,
        writes_bound=creating.writes,
        writes_delete=deleting.writes,
        reads=creating.reads + deleting.reads,
        events=creating.events + deleting.events,
        idle_cpu_percent=idle[0] if idle else None,
        idle_writes=idle[1] if idle else None,
        requests={side: creating.requests[side] + deleting.requests[side] for side in sides},
    )
