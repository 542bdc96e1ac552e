"""2,000 pods at once come, change and go, and both clusters agree object by object; no times.

The remote's nodes are simulated, in clusters of their own: see `e2e.bench.pods` for the load and
`e2e.audit` for what must be true of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from e2e.audit import Auditor
from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import EVENTS, NODE, Request, Requests
from e2e.bench.pods.load_targets import ClusterPair, Runner, connected
from e2e.bench.pods.pod_load import Crowd, Shape
from e2e.bench.report_output import say
from e2e.clusters.cluster import Cluster

SHAPE = Shape(pods=2000, namespaces=8, references=5, secrets=5)
#: Empty namespaces go at once: the last audit waits for them.
OPTIONS = ("--namespace-linger", "1")
#: Seconds for all pods to have followed a change, on a machine that does other things too.
PATIENCE = 120.0
#: Pods that change at once.
WAVE = 200
#: Writes of a pod over its life: made and deleted in the remote, deleted at home once it is gone
#: there, and its status, which may be told in two steps.
WRITES = 5
#: Requests that servers may refuse: a new namespace has no service account yet, and a busy server
#: has too much to do. Trying again at once would be many more.
REFUSED = 200
#: Seconds for all of it: three minutes on two idle cores would be many.
LIMIT = 600
#: Seconds after which the audit log has what the bridge last asked.
LOGGED = 3.0


@pytest.mark.timeout(LIMIT, func_only=True)
async def test_two_thousand_pods_are_created_updated_and_deleted(
    simulated: dict[str, Cluster],
) -> None:
    """Nothing is lost, doubled or left, and no pod is written to more often than it must be."""
    async with (
        connected(simulated) as pair,
        load_targets.running(load_targets.BRIDGE, pair, SHAPE, *OPTIONS) as (runner, crowd),
        crowd.watched(),
    ):
        assert runner is not None
        with Auditor(pair.home, pair.remote, node=runner.node) as auditor:
            counts = pair.requests(load_targets.BRIDGE)
            say(f"many: {SHAPE.pods} pods")
            await crowd.run()
            await _agreed(auditor, "with all pods Running")
            made, refused = _writes(counts), _refused(counts)

            counts = pair.requests(load_targets.BRIDGE)
            await _config_maps_follow(pair, crowd)
            await _labels_follow(pair, crowd, runner)
            await _agreed(auditor, "after a change of all pods and ConfigMaps")
            changed = _writes(counts)

            counts = pair.requests(load_targets.BRIDGE)
            await crowd.delete()
            await _agreed(auditor, "with everything deleted")
            await _all_gone(pair, runner)
            await asyncio.sleep(LOGGED)
            deleted = _writes(counts)
            refused += _refused(counts)
            assert not auditor.findings()

    life = made + deleted
    pods = Counter({what: n for what, n in life.items() if what.split()[1].startswith("pods")})
    # Fewer where an answer was lost on its way: all were Running.
    assert life["create pods"] <= SHAPE.pods, "a pod was made twice"
    assert pods.total() <= WRITES * SHAPE.pods, pods
    copies = SHAPE.namespaces * (SHAPE.references + SHAPE.secrets)
    # Copies are created and deleted. So are their namespaces, and before the deletion the node
    # withdraws its claim of the namespace.
    others = life - pods
    assert others.pop("patch namespaces", 0) <= SHAPE.namespaces, life
    assert others.total() <= 2 * (copies + SHAPE.namespaces), others
    assert refused.total() <= REFUSED, refused
    # Each pod's labels, and each namespace's first ConfigMap; and what simulated kubelets say of
    # pods that have changed.
    told = changed.pop("patch pods/status", 0)
    assert told <= SHAPE.pods, told
    assert changed.total() <= SHAPE.pods + SHAPE.namespaces, changed


async def _config_maps_follow(pair: ClusterPair, crowd: Crowd) -> None:
    """One ConfigMap of each namespace changes, which an eighth of its pods use."""
    for number in range(SHAPE.namespaces):
        await crowd.patch_reference({"data": {"key": "changed"}}, namespace=number)

    async def stale() -> int:
        found = 0
        for namespace in map(load_targets.remote_namespace, crowd.namespaces):
            path = f"/api/v1/namespaces/{namespace}/configmaps/shared-0"
            found += (await pair.in_remote.call("GET", path))["data"]["key"] != "changed"
        return found

    await _until_none(stale, "copies of ConfigMaps have not followed")


async def _labels_follow(pair: ClusterPair, crowd: Crowd, runner: Runner) -> None:
    """All pods change, wave by wave."""
    for first in range(0, SHAPE.pods, WAVE):
        body = {"metadata": {"labels": {"wave": str(first // WAVE)}}}
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + WAVE, SHAPE.pods)):
                group.create_task(crowd.patch(number, body))
    selector = f"cluster-bridge.io/node={runner.node},wave"

    async def stale() -> int:
        listed = await pair.in_remote.call("GET", "/api/v1/pods", query={"labelSelector": selector})
        return SHAPE.pods - len(listed["items"])

    await _until_none(stale, "pods have not followed")


async def _all_gone(pair: ClusterPair, runner: Runner) -> None:
    """Until nothing lingers: what was copied goes first, then its empty namespace."""
    query = {"labelSelector": f"cluster-bridge.io/node={runner.node}"}

    async def left() -> int:
        kinds = ("configmaps", "secrets", "services", "namespaces")
        listed = [await pair.in_remote.call("GET", f"/api/v1/{it}", query=query) for it in kinds]
        return sum(len(it["items"]) for it in listed)

    await _until_none(left, "objects linger in the remote")


async def _until_none(count: Callable[[], Awaitable[int]], what: str) -> None:
    left = await count()
    for _ in range(int(PATIENCE)):
        if not left:
            return
        await asyncio.sleep(1)
        left = await count()
    pytest.fail(f"after {PATIENCE:.0f} s, {left} {what}")


async def _agreed(auditor: Auditor, when: str) -> None:
    say(f"many: auditing {when}; {auditor.counts()}")
    findings = await asyncio.to_thread(auditor.settled)
    said = "\n".join(f"  {finding}" for finding in findings[:20])
    assert not findings, f"{when}, {len(findings)} findings:\n{said}"
    await asyncio.sleep(LOGGED)


def _writes(counts: dict[str, Requests]) -> Counter[str]:
    """What was written on both sides, but for Events and what keeps the node."""
    return Counter(str(one) for one in _asked(counts) if one.code // 100 == 2)


def _refused(counts: dict[str, Requests]) -> Counter[str]:
    """What was to be written, and was not: with the code that the server gave."""
    return Counter(f"{one} {one.code}" for one in _asked(counts) if one.code // 100 != 2)


def _asked(counts: dict[str, Requests]) -> Iterator[Request]:
    aside = EVENTS | NODE
    for count in counts.values():
        yield from (one for one in count.all() if one.is_write and one.resource not in aside)
