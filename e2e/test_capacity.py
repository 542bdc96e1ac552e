"""The node has the remote's free capacity soon after each change, and home's scheduler uses it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, second_node
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.simulated_node import simulated_node
from e2e.unmanaged_objects import unmanaged_requests
from e2e.workload_manifests import pod, shell
from translators.capacity import pod_requests

#: The size of a worker that the test creates.
LARGE = {
    "cpu": "8",
    "memory": "16Gi",
    "pods": "20",
    "example.com/gpu": "4",
    "hugepages-2Mi": "64Mi",
}


def test_requests_of_unmanaged_pods_are_not_offered(bridged: Bridged) -> None:
    """Less with an unmanaged pod, the same as before without it; nothing is written in between."""
    before = _allocatable(bridged)
    with _unmanaged_pod(bridged, "unmanaged", cpu="300m", memory="256Mi"):
        wait_for(
            lambda: _less(before, _allocatable(bridged)) == _requested(cpu="300m", memory="256Mi"),
            "the requests of the unmanaged pod are subtracted",
        )
        wait_for(lambda: "Running" in _phases(bridged), "it runs")
        version = _node(bridged)["metadata"]["resourceVersion"]
        time.sleep(3)
        assert _node(bridged)["metadata"]["resourceVersion"] == version
    wait_for(lambda: _allocatable(bridged) == before, "all is offered again after the deletion")


@pytest.mark.core
def test_scheduler_places_no_pod_on_a_full_remote(bridged: Bridged) -> None:
    """A pod that does not fit stays at home, and is scheduled after others were deleted."""
    with _unmanaged_pod(bridged, "greedy", cpu=f"{_allocatable(bridged)['cpu'] - 100}m"):
        wait_for(lambda: _allocatable(bridged)["cpu"] == 100, "the rest is offered")
        bridged.apply(_requesting_pod(bridged.node, "waits", cpu="200m"))
        bridged.apply(_requesting_pod(bridged.node, "fits", cpu="100m"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/fits", "--timeout=60s")
        waits = get_one(bridged.home, "pod", "waits", namespace=bridged.namespace)
        assert "nodeName" not in waits["spec"]
        [scheduled] = waits["status"]["conditions"]
        assert scheduled["reason"] == "Unschedulable"
        assert "Insufficient cpu" in scheduled["message"]
        assert "waits" not in uids(bridged.remote_pods())
    bridged.kubectl("wait", "--for=condition=Ready", "pod/waits", "--timeout=60s")


def test_unusable_remote_node_does_not_count(bridged: Bridged) -> None:
    """A taint or cordon removes it from the sum; a PreferNoSchedule taint does not."""
    before, [name] = _allocatable(bridged), uids(get(bridged.remote, "nodes"))
    remote = bridged.remote.kubectl
    for begin, end in (
        (("taint", "node", name, "a=b:NoSchedule"), ("taint", "node", name, "a:NoSchedule-")),
        (("cordon", name), ("uncordon", name)),
    ):
        remote(*begin)
        try:
            wait_for(lambda: _allocatable(bridged) == {}, f"nothing is offered after {begin}")
            ready = _condition(bridged, "Ready")
            assert (ready["status"], ready["reason"]) == ("True", "NoSchedulableNodes")
        finally:
            remote(*end)
        wait_for(lambda: _allocatable(bridged) == before, f"all is offered again after {end}")
    remote("taint", "node", name, "a=b:PreferNoSchedule")
    try:
        time.sleep(2.0)
        assert _allocatable(bridged) == before
    finally:
        remote("taint", "node", name, "a:PreferNoSchedule-")


@pytest.mark.join("--reserve", "cpu=1,memory=1Gi", "--share", "0.5", "--limits", "cpu=2,pods=7")
def test_options_limit_allocatable(bridged: Bridged) -> None:
    """Half of every resource of a large worker is offered after the reservation, with limits."""
    [theirs] = get(bridged.remote, "nodes")
    real = pod_requests.parse_resource_list(theirs["status"]["allocatable"])
    with _worker(bridged.remote, f"large-{bridged.namespace}"):
        wait_for(lambda: "example.com/gpu" in _allocatable(bridged), "the large worker is offered")
        found = _allocatable(bridged)
        left = real["memory"] - unmanaged_requests(bridged, "memory") + 15 * 2**30
        assert found["memory"] == left // 2
        assert (found["cpu"], found["pods"]) == (2000, 7)
        assert (found["example.com/gpu"], found["hugepages-2Mi"]) == (2, 2**25)
        status = _node(bridged)["status"]
        has = pod_requests.parse_resource_list(status["capacity"])
        both = (
            pod_requests.parse_resource_list(theirs["status"]["capacity"])["cpu"]
            + pod_requests.parse_resource_list(LARGE)["cpu"]
        )
        assert (has["cpu"], has["example.com/gpu"]) == (both, 4), (
            "capacity is the total, not what is offered"
        )
        shown = bridge_process.run("status", bridged.node, home=bridged.home).stdout
        assert re.search(rf"cpu: \S+ of 2 \(.*; the remote has {both // 1000}$", shown, re.M), shown
        name = f"large-{bridged.namespace}"
        with _unmanaged_pod(
            bridged, "gpu", node=name, **{"example.com/gpu": "2", "hugepages-2Mi": "4Mi"}
        ):
            wait_for(lambda: _allocatable(bridged)["example.com/gpu"] == 1, "half of two are left")
            assert _allocatable(bridged)["hugepages-2Mi"] == 30 * 2**20
    wait_for(
        lambda: "example.com/gpu" not in _allocatable(bridged), "not offered without the worker"
    )


def test_largest_pod_is_reported_as_annotation(bridged: Bridged) -> None:
    """It is set with the node, and at most the free part of the only worker, own pods counted."""
    annotation = _node(bridged)["metadata"]["annotations"]["cluster-bridge.io/largest-pod"]
    sizes = pod_requests.parse_resource_list(
        dict(part.split("=") for part in annotation.split(","))
    )
    offered = _allocatable(bridged)
    assert offered["cpu"] - 100 < sizes["cpu"] <= offered["cpu"]
    assert offered["memory"] - 2**27 < sizes["memory"] <= offered["memory"]


@pytest.mark.join("--accept-namespaces=test-*")
def test_remote_quota_limits_allocatable_and_is_named_when_exhausted(
    bridged: Bridged,
) -> None:
    """Of five pods, the two that a quota allows are scheduled; the others wait at home."""
    namespace = bridged.remote_namespace
    remote = bridged.remote.kubectl
    remote("create", "namespace", namespace)
    remote("annotate", "namespace", namespace, "cluster-bridge.io/accepts-home=e2e")
    try:
        remote("create", "quota", "team", "-n", namespace, "--hard=requests.cpu=450m,pods=7")
        wait_for(
            lambda: (_allocatable(bridged)["cpu"], _allocatable(bridged)["pods"]) == (450, 7),
            "the node offers what the quota allows",
        )
        kind = "cluster-bridge.io/QuotaExhausted"
        assert _condition(bridged, kind)["status"] == "False"
        with _unmanaged_pod(bridged, "uses-it", namespace=namespace, cpu="50m"):
            wait_for(
                lambda: _allocatable(bridged)["cpu"] == 400, "unmanaged pods use part of the quota"
            )
            for number in range(5):
                bridged.apply(_requesting_pod(bridged.node, f"p{number}", cpu="200m"))
            wait_for(lambda: _condition(bridged, kind)["status"] == "True", "the quota is used up")
            assert (
                _condition(bridged, kind)["message"]
                == f"namespace {namespace}, quota team: requests.cpu"
            )
            time.sleep(2.0)
            placed = [it for it in bridged.home_pods() if it["spec"].get("nodeName")]
            assert len(placed) == len(bridged.remote_pods()) - 1 == 2
            assert not [it for it in placed if it["status"].get("reason")], "none was refused"
        bridged.kubectl("delete", "pods", "--all", "--grace-period=1")
        wait_for(
            lambda: _condition(bridged, kind)["status"] == "False", "part of the quota is free"
        )
        remote("delete", "quota", "team", "-n", namespace)
        wait_for(lambda: _allocatable(bridged)["cpu"] > 450, "no quota, no limit")
    finally:
        remote("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
def pools(remote: Cluster, node_name: str) -> Iterator[str]:
    """The remote's own node is in pool ``a``, a new worker in pool ``b``; the worker's name."""
    [own] = uids(get(remote, "nodes"))
    remote.kubectl("label", "node", own, "pool=a")
    try:
        with _worker(remote, f"b-{node_name}", pool="b"):
            yield f"b-{node_name}"
    finally:
        remote.kubectl("label", "node", own, "pool-")


@pytest.mark.join("--node-selector", "pool=a")
def test_two_virtual_nodes_represent_two_pools_of_one_remote(
    pools: str, bridged: Bridged, limited: Limited, tmp_path: Path
) -> None:
    """Each has the size of its pool, and its pods run only there."""
    other = f"{bridged.node}-b"
    assert "example.com/gpu" not in _allocatable(bridged)
    with second_node(bridged, limited, other, tmp_path, "--node-selector", "pool=b"):
        try:
            status = get_one(bridged.home, "node", other)["status"]
            assert status["allocatable"] == LARGE
            bridged.apply(_requesting_pod(bridged.node, "at-a", cpu="100m"))
            bridged.apply(_requesting_pod(other, "at-b", cpu="100m"))
            bridged.kubectl("wait", "--for=condition=Ready", "pod/at-a", "--timeout=60s")
            wait_for(lambda: len(_placed(bridged)) == 2, "both are placed in the remote")
            placed = _placed(bridged)
            assert placed["at-b"]["nodeName"] == pools
            assert placed["at-a"]["nodeName"] != pools
            assert placed["at-a"]["nodeSelector"] == {"pool": "a"}
            bridged.remote.kubectl("label", "node", pools, "pool-")
            wait_for(
                lambda: not get_one(bridged.home, "node", other)["status"].get("allocatable"),
                "a node that left the pool no longer counts",
            )
        finally:
            _delete_pod(bridged.remote, bridged.remote_namespace, "at-b")


# -- state -----------------------------------------------------------------------------------


def _node(bridged: Bridged) -> Json:
    return get_one(bridged.home, "node", bridged.node)


def _allocatable(bridged: Bridged) -> dict[str, int]:
    return pod_requests.parse_resource_list(_node(bridged)["status"].get("allocatable"))


def _condition(bridged: Bridged, kind: str) -> Json:
    conditions = _node(bridged)["status"]["conditions"]
    return next((it for it in conditions if it["type"] == kind), {"status": "none"})


def _placed(bridged: Bridged) -> dict[str, Json]:
    """The specs of the remote pods that are bound to a node, by name."""
    pods = ((pod["metadata"]["name"], pod["spec"]) for pod in bridged.remote_pods())
    return {name: spec for name, spec in pods if spec.get("nodeName")}


def _phases(bridged: Bridged) -> list[str]:
    pods = get(bridged.remote, "pods", namespace="default", selector=f"of={bridged.node}")
    return [it["status"].get("phase", "") for it in pods]


def _requested(**amounts: str) -> dict[str, int]:
    return {**pod_requests.parse_resource_list(amounts), "pods": 1}


def _less(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    changes = {name: before[name] - after.get(name, 0) for name in before}
    return {name: change for name, change in changes.items() if change}


# -- unmanaged pods and nodes ----------------------------------------------------------------


def _requesting_pod(node: str, name: str, **requests: str) -> str:
    container = shell(
        "main", "sleep 3600", resources={"requests": requests, "limits": _whole(requests)}
    )
    return pod(node, name, containers=[container])


def _whole(requests: dict[str, str]) -> dict[str, str]:
    """The limits: extended resources and huge pages need them."""
    return {name: value for name, value in requests.items() if name not in ("cpu", "memory")}


@contextlib.contextmanager
def _unmanaged_pod(
    bridged: Bridged, name: str, *, node: str = "", namespace: str = "default", **requests: str
) -> Iterator[None]:
    """An unmanaged pod in the remote; huge pages also need memory."""
    if any(key.startswith("hugepages-") for key in requests):
        requests = {"memory": "64Mi", **requests}
    manifest = json.loads(_requesting_pod("", name, **requests))
    manifest["metadata"]["labels"] = {"of": bridged.node}
    del manifest["spec"]["nodeSelector"]
    if node:
        manifest["spec"]["nodeName"] = node
    bridged.remote.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    try:
        yield
    finally:
        _delete_pod(bridged.remote, namespace, name)


def _delete_pod(cluster: Cluster, namespace: str, name: str) -> None:
    """Deletes the pod, even where no kubelet reports its end."""
    force = ("--force", "--grace-period=0", "--ignore-not-found")
    cluster.kubectl("delete", "pod", "-n", namespace, name, *force)


@contextlib.contextmanager
def _worker(remote: Cluster, name: str, **labels: str) -> Iterator[None]:
    """A node without a kubelet that the control plane considers Ready."""
    with simulated_node(remote, name, capacity=LARGE, **labels):
        wait_for(
            lambda: not get_one(remote, "node", name)["spec"].get("taints"),
            "the new node has lost the taint of a new one",
        )
        yield
