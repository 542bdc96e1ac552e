"""Many pods are created, updated and deleted at once; both clusters agree on every object.

This is done with 400 pods next to other tests, and with 2,000 alone.

The remote's nodes are simulated, in separate clusters: see `e2e.bench.pods` for the load and
`e2e.audit` for the checks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from e2e.audit import Auditor
from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import EVENTS, NODE, Request, Requests
from e2e.bench.pods.load_targets import ClusterPair, Runner, connected
from e2e.bench.pods.pod_load import Crowd, Shape
from e2e.bench.report_output import say
from e2e.clusters.cluster import Cluster
from e2e.revisions import with_linger
from sync.kube.transport import MAX_CONNECTIONS

SHAPE = Shape(pods=400, namespaces=8, references=5, secrets=5)
LARGE_SHAPE = replace(SHAPE, pods=2000)
#: Seconds until an empty namespace is deleted: the last audit waits for them.
LINGER = 1.0
#: Seconds until all pods have a change, on a busy machine.
PATIENCE = 120.0
#: Pods that change at once.
WAVE = 200
#: Writes per pod: created and deleted in the remote, deleted at home afterwards, and its status,
#: which may take two steps.
WRITES = 5
#: Share of the pods for which a rejected request is allowed: a new namespace has no service account
#: yet, and a busy server throttles. Immediate retries would cause many more.
REFUSED = 0.1
#: Patches that may arrive twice. On a busy machine a renewal of the election Lease may be late: the
#: bridge then aborts its writes in flight and repeats them (`sync.kube.leader_write_fence`).
REPEATED = MAX_CONNECTIONS
#: Timeout in seconds; two idle cores need at most three minutes for 2,000 pods.
LIMIT = 600
#: Seconds until the audit log has the bridge's last requests.
LOGGED = 3.0


@pytest.mark.timeout(LIMIT, func_only=True)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(SHAPE, id="400"),
        pytest.param(LARGE_SHAPE, id="2000", marks=pytest.mark.alone),
    ],
)
async def test_many_pods_are_created_updated_and_deleted(
    simulated: dict[str, Cluster], shape: Shape
) -> None:
    """Nothing is lost, duplicated or left, and the number of writes per pod is minimal."""
    async with (
        connected(simulated) as pair,
        load_targets.running(load_targets.BRIDGE, pair, shape, program=with_linger(LINGER)) as (
            runner,
            crowd,
        ),
        crowd.watched(),
    ):
        assert runner is not None
        with Auditor(pair.home, pair.remote, node=runner.node) as auditor:
            counts = pair.requests(load_targets.BRIDGE)
            say(f"many: {shape.pods} pods")
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
    # Fewer if a response was lost: all were Running.
    assert life["create pods"] <= shape.pods, "a pod was made twice"
    assert pods.total() <= WRITES * shape.pods, pods
    copies = shape.namespaces * (shape.references + shape.secrets)
    # Copies are created and deleted. So are their namespaces; before the deletion the node
    # withdraws its claim of the namespace.
    others = life - pods
    assert others.pop("patch namespaces", 0) <= shape.namespaces, life
    assert others.total() <= 2 * (copies + shape.namespaces), others
    assert refused.total() <= REFUSED * shape.pods, refused
    # Each pod's labels, each namespace's first ConfigMap, and status updates of simulated kubelets
    # for changed pods.
    status_patches = changed.pop("patch pods/status", 0)
    assert status_patches <= shape.pods + REPEATED, status_patches
    assert changed.total() <= shape.pods + shape.namespaces + REPEATED, changed


async def _config_maps_follow(pair: ClusterPair, crowd: Crowd) -> None:
    """Changes one ConfigMap of each namespace, which a fifth of its pods use."""
    for number in range(crowd.shape.namespaces):
        await crowd.patch_reference({"data": {"key": "changed"}}, namespace=number)

    async def stale() -> int:
        found = 0
        for namespace in map(load_targets.remote_namespace, crowd.namespaces):
            path = f"/api/v1/namespaces/{namespace}/configmaps/shared-0"
            found += (await pair.in_remote.call("GET", path))["data"]["key"] != "changed"
        return found

    await _until_none(stale, "copies of ConfigMaps have not followed")


async def _labels_follow(pair: ClusterPair, crowd: Crowd, runner: Runner) -> None:
    """Changes all pods in waves."""
    for first in range(0, crowd.shape.pods, WAVE):
        body = {"metadata": {"labels": {"wave": str(first // WAVE)}}}
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + WAVE, crowd.shape.pods)):
                group.create_task(crowd.patch(number, body))
    selector = f"cluster-bridge.io/node={runner.node},wave"

    async def stale() -> int:
        listed = await pair.in_remote.call("GET", "/api/v1/pods", query={"labelSelector": selector})
        return crowd.shape.pods - len(listed["items"])

    await _until_none(stale, "pods have not followed")


async def _all_gone(pair: ClusterPair, runner: Runner) -> None:
    """Waits until nothing lingers: first copies, then their empty namespaces."""
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
    listed = "\n".join(f"  {finding}" for finding in findings[:20])
    assert not findings, f"{when}, {len(findings)} findings:\n{listed}"
    await asyncio.sleep(LOGGED)


def _writes(counts: dict[str, Requests]) -> Counter[str]:
    """Writes on both sides, except Events and the node's own objects."""
    return Counter(str(one) for one in _requests(counts) if one.code // 100 == 2)


def _refused(counts: dict[str, Requests]) -> Counter[str]:
    """Rejected writes, with the status code."""
    return Counter(f"{one} {one.code}" for one in _requests(counts) if one.code // 100 != 2)


def _requests(counts: dict[str, Requests]) -> Iterator[Request]:
    aside = EVENTS | NODE
    for count in counts.values():
        yield from (one for one in count.all() if one.is_write and one.resource not in aside)
