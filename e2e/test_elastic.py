"""A remote without GPU nodes, whose autoscaler adds one for a pod that waits (`--elastic`).

The test plays the autoscaler: it adds the GPU to the remote's node once the remote pod is
Unschedulable, as Kubernetes' documentation advertises extended resources for a node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get, get_one, is_ready, wait_for
from e2e.workload_manifests import pod, shell

GPU = "example.com/gpu"
_ESCAPED = GPU.replace("/", "~1")

pytestmark = pytest.mark.join("--elastic", f"{GPU}=2", "--unschedulable-timeout", "5m")


@contextmanager
def _gpus(remote: Cluster, count: int) -> Iterator[None]:
    """The remote's node has so many GPUs."""
    (node,) = remote.node_names
    path = f"/status/capacity/{_ESCAPED}"

    def patch(operation: dict[str, str]) -> None:
        text = json.dumps([{**operation, "path": path}])
        remote.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", text)

    patch({"op": "add", "value": str(count)})
    try:
        yield
    finally:
        patch({"op": "remove"})


def test_pod_waits_for_a_gpu_node_that_the_remote_adds(bridged: Bridged) -> None:
    home = bridged.home
    node = get_one(home, "node", bridged.node)
    assert node["status"]["allocatable"][GPU] == "2", "no node of the remote has one"
    limits = {"resources": {"limits": {GPU: "1"}}}
    bridged.apply(pod(bridged.node, "train", containers=[shell("main", "sleep 3600") | limits]))
    (bound,) = wait_for(
        lambda: [it for it in bridged.home_pods() if it["spec"].get("nodeName")], "it is bound"
    )
    assert bound["spec"]["nodeName"] == bridged.node

    def message() -> str:
        conditions = get_one(home, "pod", "train", namespace=bridged.namespace)["status"]
        found = {it["type"]: it for it in conditions.get("conditions") or ()}
        assert found["PodScheduled"]["status"] == "True", "no autoscaler at home acts on it"
        waiting = found.get("cluster-bridge.io/RemoteScheduled", {})
        return str(waiting.get("message", "")) if waiting.get("status") == "False" else ""

    assert GPU in wait_for(message, "the reason is at home")
    with _gpus(bridged.remote, 1):
        bridged.kubectl("wait", "--for=condition=Ready", "pod/train", "--timeout=60s")
        (there,) = bridged.remote_pods()
        assert is_ready(there)
        assert get_one(home, "node", bridged.node)["status"]["allocatable"][GPU] == "2"
        bridged.kubectl("delete", "pod", "train", "--grace-period=1")
    assert not [it for it in get(bridged.remote, "nodes") if GPU in it["status"]["capacity"]]
