"""2,000 pods are created, updated and deleted at once; both clusters agree on every object.

The remote's nodes are simulated, in separate clusters: see `e2e.bench.pods` for the load and
`e2e.audit` for the checks.
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
#: Empty namespaces are deleted at once: the last audit waits for them.
OPTIONS = ("--namespace-linger", "1")
#: Seconds until all pods have a change, on a busy machine.
PATIENCE = 120.0
#: Pods that change at once.
WAVE = 200
#: Writes per pod: created and deleted in the remote, deleted at home afterwards, and its status,
#: which may take two steps.
WRITES = 5
#: Rejected requests that are allowed: a new namespace has no service account yet, and a busy server
#: throttles. Immediate retries would cause many more.
REFUSED = 200
#: Timeout in seconds; two idle cores need at most three minutes.
LIMIT = 600
#: Seconds until the audit log has the bridge's last requests.
LOGGED = 3.0


@pytest.mark.timeout(LIMIT, func_only=True)
async def test_two_thousand_pods_are_created_updated_and_deleted(
    simulated: dict[str, Cluster],
) -> None:
    """Nothing is lost, duplicated or left, and the number of writes per pod is minimal."""
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
    # Fewer if a response was lost: all were Running.
    assert life["create pods"] <= SHAPE.pods, "a pod was made twice"
    assert pods.total() <= WRITES * SHAPE.pods, pods
    copies = SHAPE.namespaces * (SHAPE.references + SHAPE.secrets)
    # Copies are created and deleted. So are their namespaces; before the deletion the node
    # withdraws its claim of the namespace.
    others = life - pods
    assert others.pop("patch namespaces", 0) <= SHAPE.namespaces, life
    assert others.total() <= 2 * (copies + SHAPE.namespaces), others
    assert refused.total() <= REFUSED, refused
    # Each pod's labels, each namespace's first ConfigMap, and status updates of simulated kubelets
    # for changed pods.
    status_patches = changed.pop("patch pods/status", 0)
    assert status_patches <= SHAPE.pods, status_patches
    assert changed.total() <= SHAPE.pods + SHAPE.namespaces, changed


async def _config_maps_follow(pair: ClusterPair, crowd: Crowd) -> None:
    """Changes one ConfigMap of each namespace, which an eighth of its pods use."""
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
    """Changes all pods in waves."""
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
