"""Throttling API servers, and a burst in one namespace: no pod is lost, and others do not wait.

The clusters' nodes are simulated, so that hundreds of pods become Running as fast as they are made.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import orjson
import pytest
import yaml

from e2e.bench.pods import load_targets
from e2e.bench.pods.audit_log import BRIDGE
from e2e.bench.pods.benchmark_client import BenchmarkClient
from e2e.bench.pods.pod_load import Crowd, Shape
from e2e.bridge_process import Bridge
from e2e.clusters import Cluster, Nodes, down, find, specs, up
from e2e.clusters.cluster import Backend
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json

REMOTE_NODES = 5
#: Seconds until the audit log has the bridge's last requests.
LOGGED = 3.0
#: Pods of the burst, and of another namespace during the burst.
CROWD, SINGLES = 1000, 5
#: Maximum seconds of each wait.
PATIENCE = 60.0
#: Pods of the throttled load: each rejection asks the bridge to wait for a second.
PUSHED_BACK = 300


@pytest.fixture(scope="module")
def simulated() -> Iterator[dict[str, Cluster]]:
    """Clusters with simulated nodes, beside those of the other tests."""
    usual = settings_from_environment()
    settings = dataclasses.replace(usual, prefix=f"{usual.prefix[:5]}push", backend=Backend.NATIVE)
    before = set(find(settings))
    home = specs(["home"], nodes=Nodes.SIMULATED)
    remote = specs(["remote"], nodes=Nodes.SIMULATED, node_count=REMOTE_NODES)
    found = up([*home, *remote], settings, print)
    yield found
    if started := [name for name in found if name not in before]:
        down(started, settings)


async def test_throttling_api_servers_lose_no_pod(
    simulated: dict[str, Cluster], tmp_path: Path
) -> None:
    """Both servers have few seats for the bridge and reject further requests (API priority and
    fairness)."""
    shape = Shape(pods=PUSHED_BACK)
    async with load_targets.connected(simulated) as pair:
        with ExitStack() as stack:
            home, remote = (
                stack.enter_context(few_seats(cluster, tmp_path / cluster.name))
                for cluster in (pair.home, pair.remote)
            )
            marks = [_size(pair.home), _size(pair.remote)]
            node = load_targets.name("pushed")
            crowd = Crowd(pair.at_home, node, shape, node=node)
            await crowd.prepare()
            stack.enter_context(joined(home, remote, node, tmp_path / "log"))
            async with crowd.watched():
                await crowd.run()
                assert await _is_ready(pair.at_home, node)
                await crowd.delete()
            assert await _pods_of(pair.in_remote, node) == []
            await asyncio.sleep(LOGGED)
            for cluster, mark in zip((pair.home, pair.remote), marks, strict=True):
                assert _refused(cluster, mark) > 0, f"{cluster.name} refused nothing"
        await pair.at_home.call("DELETE", f"/api/v1/nodes/{node}")
        await crowd.clear()


async def test_burst_of_one_namespace_does_not_delay_another(
    simulated: dict[str, Cluster], tmp_path: Path
) -> None:
    """Its pods are created and shown as Running at home while most pods of the burst still wait."""
    async with load_targets.connected(simulated) as pair:
        node = load_targets.name("fair")
        crowd = Crowd(pair.at_home, node, Shape(pods=CROWD), node=node)
        singles = Crowd(pair.at_home, f"{node}-one", Shape(pods=SINGLES), node=node)
        await crowd.prepare()
        await singles.prepare()
        with joined(pair.home, pair.remote, node, tmp_path / "log") as bridge:
            bridge.stop()
            async with (
                crowd.watched(),
                singles.watched(),
                _made(pair.in_remote, node) as made,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(crowd.run())
                await _until(lambda: len(crowd.phases) == CROWD)
                await asyncio.to_thread(bridge.start)
                before = len(made)
                await asyncio.gather(*(singles.create(number) for number in range(SINGLES)))
                await _until(lambda: len(singles.running_at) == SINGLES)
                running = len(crowd.running_at)
            async with crowd.watched(), singles.watched():
                await asyncio.gather(crowd.delete(), singles.delete())
        await pair.at_home.call("DELETE", f"/api/v1/nodes/{node}")
        await crowd.clear()
        await singles.clear()
    positions = [number for number, name in enumerate(made) if name.startswith(f"{node}-one-")]
    order = f"{before} pods were created before; singles: {positions}; then Running: {running}"
    print(order)
    assert len(made) == CROWD + SINGLES
    assert positions[-1] - before < CROWD // 4, order
    assert running < CROWD * 3 // 4, order


# -- helpers -------------------------------------------------------------------------------


@contextmanager
def joined(home: Cluster, remote: Cluster, node: str, log: Path) -> Iterator[Bridge]:
    """A bridge between the clusters."""
    bridge = Bridge(home, remote, log, ("--name", node, "--home-name", "e2e", "--port", "0"))
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.stop()
        print(log.read_text())


@contextmanager
def few_seats(cluster: Cluster, folder: Path) -> Iterator[Cluster]:
    """The cluster for an administrative account with few seats and no queue."""
    name = f"pushed-{uuid.uuid4().hex[:6]}"
    made = _few_seats(name)
    cluster.kubectl("create", "-f", "-", input=json.dumps(made))
    try:
        token = cluster.kubectl("create", "token", name, "-n", "default").stdout.strip()
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": token}
        folder.mkdir()
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield dataclasses.replace(cluster, kubeconfig=path)
    finally:
        cluster.kubectl("delete", "-f", "-", input=json.dumps(made))


def _few_seats(name: str) -> Json:
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    flow = "flowcontrol.apiserver.k8s.io/v1"
    everything: Json = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    everything |= {"clusterScope": True, "namespaces": ["*"]}
    rules = {
        "subjects": [{"kind": "ServiceAccount", "serviceAccount": {k: subject[k] for k in _WHO}}],
        "resourceRules": [everything],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }
    items: list[Json] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {k: subject[k] for k in _WHO}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [subject],
        },
        {
            "apiVersion": flow,
            "kind": "PriorityLevelConfiguration",
            "metadata": {"name": name},
            "spec": {
                "type": "Limited",
                "limited": {
                    "nominalConcurrencyShares": 1,
                    "borrowingLimitPercent": 0,
                    "lendablePercent": 0,
                    "limitResponse": {"type": "Reject"},
                },
            },
        },
        {
            "apiVersion": flow,
            "kind": "FlowSchema",
            "metadata": {"name": name},
            "spec": {
                "matchingPrecedence": 2,
                "priorityLevelConfiguration": {"name": name},
                "distinguisherMethod": {"type": "ByUser"},
                "rules": [rules],
            },
        },
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


_WHO = ("name", "namespace")


async def _until(true: Callable[[], bool]) -> None:
    for _ in range(round(PATIENCE / 0.005)):
        if true():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"not within {PATIENCE:.0f} s")


@asynccontextmanager
async def _made(remote: BenchmarkClient, node: str) -> AsyncIterator[list[str]]:
    """The remote's pods of the virtual node, in the order of their creation."""
    made: list[str] = []

    async def watch() -> None:
        label = {"labelSelector": f"cluster-bridge.io/node={node}"}
        async for event in remote.watch("/api/v1/pods", label):
            if event["type"] == "ADDED":
                meta = event["object"]["metadata"]
                made.append(f"{meta['namespace']}/{meta['name']}")

    task = asyncio.create_task(watch())
    try:
        yield made
    finally:
        task.cancel()


async def _pods_of(remote: BenchmarkClient, node: str) -> list[Json]:
    """The remote's pods of the virtual node."""
    label = f"cluster-bridge.io/node={node}"
    found: list[Json] = (await remote.call("GET", "/api/v1/pods", query={"labelSelector": label}))[
        "items"
    ]
    return found


async def _is_ready(home: BenchmarkClient, node: str) -> bool:
    status = (await home.call("GET", f"/api/v1/nodes/{node}"))["status"]
    return any(it["type"] == "Ready" and it["status"] == "True" for it in status["conditions"])


def _size(cluster: Cluster) -> int:
    assert cluster.audit_log is not None
    return cluster.audit_log.stat().st_size


def _refused(cluster: Cluster, mark: int) -> int:
    """Number of the bridge's requests that the server has answered with 429 since the mark."""
    assert cluster.audit_log is not None
    with cluster.audit_log.open("rb") as log:
        log.seek(mark)
        events = [orjson.loads(line) for line in log if b"429" in line]
    return sum(
        event["userAgent"].startswith(BRIDGE) and event["responseStatus"]["code"] == 429
        for event in events
        if "responseStatus" in event
    )
