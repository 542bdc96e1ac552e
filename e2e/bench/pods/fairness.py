"""The delay of a single pod during a burst of pods in another namespace.

Single pods are created in sequence, first on an idle bridge, then during the burst. Times are those
of the servers' audit logs: the load and this process are busy and would affect their own times.

- ``exists``: from home's response to the remote's response to the bridge's creation of the pod;
- ``remote``: the part of that in the remote's API server;
- ``bridge``: the rest: home's watch, the bridge's queue, and the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count, islice

from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import BRIDGE, Request, Requests
from e2e.bench.pods.benchmark_client import AGENT
from e2e.bench.pods.load_targets import ClusterPair, Say
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bench.report import Report, percentile

#: Single pods on an idle bridge.
IDLE_PODS = 50
#: Seconds between two single pods.
PAUSE = 0.1
#: Seconds until the audit log has the last request.
LOGGED = 5.0
Steps = dict[str, float]


async def measure(pair: ClusterPair, *, pods: int, rounds: int, say: Say) -> Report:
    """p50 and p99 of each step, idle and during the burst."""
    taken: dict[str, list[list[Steps]]] = {"idle": [], "beside": []}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}: single pods, then beside {pods}")
        for phase, steps in (await _round(pair, pods)).items():
            taken[phase].append(steps)
        await asyncio.sleep(load_targets.REST)
    made = Report("fairness", {"pods": pods})
    for phase, found in taken.items():
        for step in found[0][0]:
            for percent in (50, 99):
                values = [percentile((one[step] for one in steps), percent) for steps in found]
                made.add(f"{phase}.{step}_p{percent}_ms", "ms", [value * 1000 for value in values])
        made.add(f"{phase}.single_pods", "", [float(len(steps)) for steps in found])
    return made


async def _round(pair: ClusterPair, pods: int) -> dict[str, list[Steps]]:
    async with load_targets.running(load_targets.BRIDGE, pair, Shape(pods)) as (runner, crowd):
        assert runner is not None
        # The number of pods is open: they are created by number.
        single = Crowd(pair.at_home, f"single-{runner.node}", Shape(1), node=runner.node)
        try:
            await single.prepare()
            return await _phases(pair, crowd, single)
        finally:
            await single.forget()


async def _phases(pair: ClusterPair, crowd: Crowd, single: Crowd) -> dict[str, list[Steps]]:
    numbers = count()
    # The first pods cause the namespace and all copies that the others need; they stay.
    for number in islice(numbers, single.shape.references):
        await single.create(number)
    await asyncio.sleep(LOGGED)
    logs = _logs(pair)
    for number in islice(numbers, IDLE_PODS):
        await single.create(number)
        await asyncio.sleep(PAUSE)
    await asyncio.sleep(LOGGED)
    idle = pod_steps(logs, single.namespaces[0], IDLE_PODS)
    logs, made = _logs(pair), 0
    async with crowd.watched(), single.watched():
        async with asyncio.TaskGroup() as group:
            burst = group.create_task(crowd.run(), name="burst")
            while not burst.done():
                await single.create(next(numbers))
                made += 1
                await asyncio.sleep(PAUSE)
        await asyncio.sleep(LOGGED)
        beside = pod_steps(logs, single.namespaces[0], made)
        await crowd.delete()
        await single.delete()
    return {"idle": idle, "beside": beside}


def _logs(pair: ClusterPair) -> tuple[Requests, Requests]:
    assert pair.home.audit_log is not None
    assert pair.remote.audit_log is not None
    return Requests(pair.home.audit_log, AGENT), Requests(pair.remote.audit_log, BRIDGE)


def pod_steps(logs: tuple[Requests, Requests], namespace: str, wanted: int) -> list[Steps]:
    """The durations of the single pods' creation, from both audit logs. Raises PodsLost."""
    home, remote = (
        _made(log.all(), where)
        for log, where in zip(
            logs, (namespace, load_targets.remote_namespace(namespace)), strict=True
        )
    )
    if missing := wanted - len(home.keys() & remote.keys()):
        raise PodsLost(f"{missing} single pods were not created in the remote")
    return [
        {
            "exists": remote[name].answered - home[name].answered,
            "bridge": remote[name].received - home[name].answered,
            "remote": remote[name].answered - remote[name].received,
        }
        for name in home
    ]


def _made(requests: Iterable[Request], namespace: str) -> Mapping[str, Request]:
    """Pod name → the request that created it in this namespace."""
    return {
        one.name: one
        for one in requests
        if str(one) == "create pods" and one.code == 201 and one.namespace == namespace
    }
