"""The virtual node behaves like a node: changes by users stay, and deleted objects return."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.workload_manifests import busybox, web

ZONE = "topology.kubernetes.io/zone"
DEFAULT_TAINT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}


def _node(bridged: Bridged) -> Json:
    return get_one(bridged.home, "node", bridged.node)


def _labels(bridged: Bridged) -> dict[str, str]:
    found: dict[str, str] = _node(bridged)["metadata"]["labels"]
    return found


def _taints(bridged: Bridged) -> list[Json]:
    """Taints that home's own controllers did not set."""
    taints = _node(bridged)["spec"].get("taints") or []
    return [taint for taint in taints if not taint["key"].startswith("node.kubernetes.io/")]


def _ready(bridged: Bridged) -> Json:
    found: Json = next(c for c in _node(bridged)["status"]["conditions"] if c["type"] == "Ready")
    return found


def _join_again(bridged: Bridged, *more: str) -> None:
    """Ctrl-C, and a join with additional options."""
    assert bridged.bridge.stop() == 0
    bridged.bridge.args = (*bridged.bridge.args, *more)
    bridged.bridge.start()


def test_deleted_node_and_lease_are_recreated_and_pods_continue(bridged: Bridged) -> None:
    """The new Node owns the Lease, or home would garbage-collect it."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    running, first = uids(bridged.remote_pods()), _node(bridged)["metadata"]["uid"]

    def lease() -> Json:
        found = get(bridged.home, "leases", namespace="kube-node-lease")
        return next((it for it in found if it["metadata"]["name"] == bridged.node), {})

    old_lease = lease()["metadata"]["uid"]
    bridged.home.kubectl("delete", "lease", bridged.node, "-n", "kube-node-lease")
    wait_for(lambda: lease().get("metadata", {}).get("uid", old_lease) != old_lease, "the Lease")
    bridged.home.kubectl("delete", "node", bridged.node)
    wait_for(lambda: first not in uids(get(bridged.home, "nodes")).values(), "the Node was deleted")
    wait_for(lambda: bridged.node in uids(get(bridged.home, "nodes")), "the Node is made again")
    second = _node(bridged)["metadata"]["uid"]
    wait_for(
        lambda: [it["uid"] for it in lease()["metadata"]["ownerReferences"]] == [second],
        "the Lease is the new Node's",
    )
    assert _taints(bridged) == [DEFAULT_TAINT]
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=10s")
    assert uids(bridged.remote_pods()) == running


#: The clouds by the scheme of their ids. An id of another scheme is an error to all but ``azure``
#: (MapToAWSInstanceID of cloud-provider-aws, splitProviderID of cloud-provider-gcp), to which the
#: machine exists and is unmanaged (IsNodeUnmanagedByProviderID of cloud-provider-azure).
CLOUDS = ("aws", "gce", "azure")


def _is_deleted_by(cloud: str, node: Json) -> bool:
    """Whether the cloud's controller deletes the Node, which is none of its machines.

    The rule is that of MonitorNodes (k8s.io/cloud-provider, node_lifecycle_controller.go): a Node
    that is not Ready is deleted if its cloud answers that the machine does not exist, and stays if
    the cloud answers with an error. It finds the machine by the provider id, or else by the name.
    """
    ready: Json = next(
        (each for each in node["status"]["conditions"] if each["type"] == "Ready"), {}
    )
    scheme = node["spec"].get("providerID", "").partition("://")[0]
    return ready.get("status") != "True" and scheme in ("", cloud)


def test_no_cloud_controller_deletes_a_node_that_is_not_ready(bridged: Bridged) -> None:
    """Nor one that a bridge joined before Nodes had a provider id; home keeps its pods."""
    node = _node(bridged)
    assert node["spec"]["providerID"].startswith("cluster-bridge://")
    node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert [cloud for cloud in CLOUDS if _is_deleted_by(cloud, node)] == []

    assert bridged.bridge.stop() == 0
    bridged.home.kubectl("delete", "node", bridged.node)
    del node["spec"]["providerID"], node["status"], node["metadata"]["uid"]
    del node["metadata"]["resourceVersion"]
    bridged.home.kubectl("create", "-f", "-", input=json.dumps(node))
    bridged.bridge.start()
    wait_for(lambda: _node(bridged)["spec"].get("providerID"), "the Node gets an id")


def test_cordon_and_drain_by_users_survive_a_restart(bridged: Bridged) -> None:
    """A drained Deployment waits, and returns after uncordon."""
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    before = set(uids(bridged.remote_pods()))
    bridged.home.kubectl("drain", bridged.node, "--ignore-daemonsets", "--timeout=60s")
    wait_for(lambda: not before & set(uids(bridged.remote_pods())), "they ended in the remote")
    _join_again(bridged)
    assert _node(bridged)["spec"]["unschedulable"]
    assert {pod["status"]["phase"] for pod in bridged.home_pods()} == {"Pending"}
    bridged.home.kubectl("uncordon", bridged.node)
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")


@pytest.mark.join("--labels", "team=orders,tier=1", "--annotations", "example.com/note=a b")
def test_changes_by_users_stay_and_options_of_a_join_apply(bridged: Bridged) -> None:
    """Over three joins, the last of which has other options."""
    theirs = {"key": "example.com/theirs", "effect": "NoExecute"}
    found = _node(bridged)["metadata"]
    assert (found["labels"]["team"], found["labels"]["tier"]) == ("orders", "1")
    assert found["annotations"]["example.com/note"] == "a b"
    assert _taints(bridged) == [DEFAULT_TAINT]

    for command in (
        ("label", "node", bridged.node, "mine=yes", "tier=mine", "--overwrite"),
        ("annotate", "node", bridged.node, "example.com/mine=yes"),
        ("taint", "node", bridged.node, "cluster-bridge.io/virtual-node-"),
        ("taint", "node", bridged.node, "example.com/theirs:NoExecute"),
    ):
        bridged.home.kubectl(*command)
    _join_again(bridged)
    assert _labels(bridged) | {"mine": "yes", "tier": "mine", "team": "orders"} == _labels(bridged)
    assert _taints(bridged) == [theirs], "one that was removed does not come back"

    more = ("--taints", "burst=yes:NoSchedule", "--labels", "tier=2", "--annotations", "b=c")
    _join_again(bridged, *more)
    found = _node(bridged)["metadata"]
    assert found["labels"] | {"mine": "yes", "tier": "mine"} == found["labels"]
    assert "team" not in found["labels"]
    assert "example.com/note" not in found["annotations"]
    assert (found["annotations"]["b"], found["annotations"]["example.com/mine"]) == ("c", "yes")
    burst = {"key": "burst", "value": "yes", "effect": "NoSchedule"}
    assert _taints(bridged) == [theirs, burst]


def test_labels_shared_by_all_remote_nodes_are_copied_to_the_node(bridged: Bridged) -> None:
    """They appear when all nodes have them, and disappear with the first that lacks them."""
    machine = get(bridged.remote, "nodes")[0]
    arch = machine["status"]["nodeInfo"]["architecture"]
    assert _labels(bridged)["kubernetes.io/arch"] == arch
    assert ZONE not in _labels(bridged)
    name = machine["metadata"]["name"]
    bridged.remote.kubectl("label", "node", name, f"{ZONE}=z1")
    try:
        wait_for(lambda: _labels(bridged).get(ZONE) == "z1", "the Node has the zone")
        with _other_machine(bridged):
            wait_for(lambda: ZONE not in _labels(bridged), "there is no one zone")
            assert "kubernetes.io/arch" not in _labels(bridged), "nor one architecture"
            assert "kubernetes.io/os" in _labels(bridged)
        wait_for(lambda: _labels(bridged).get(ZONE) == "z1", "the Node has the zone again")
        assert _labels(bridged)["kubernetes.io/arch"] == arch
    finally:
        bridged.remote.kubectl("label", "node", name, f"{ZONE}-")
    wait_for(lambda: ZONE not in _labels(bridged), "it has gone")


@contextmanager
def _other_machine(bridged: Bridged) -> Iterator[None]:
    """A node of another architecture, which takes no pods."""
    made = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "other"},
        "status": {
            "nodeInfo": {
                **get(bridged.remote, "nodes")[0]["status"]["nodeInfo"],
                "architecture": "riscv64",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    bridged.remote.kubectl("create", "-f", "-", input=json.dumps(made))
    try:
        yield
    finally:
        bridged.remote.kubectl("delete", "node", "other")


def test_cordoned_remote_takes_no_new_pods_and_keeps_others(bridged: Bridged) -> None:
    """Ready, since running pods continue; the condition has the reason why no new pod fits."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    name = get(bridged.remote, "nodes")[0]["metadata"]["name"]
    bridged.remote.kubectl("cordon", name)
    try:
        wait_for(
            lambda: _ready(bridged)["reason"] == "NoSchedulableNodes", "the node has the reason"
        )
        assert _ready(bridged)["status"] == "True"
        assert "1 cordoned" in _ready(bridged)["message"]
        bridged.apply(busybox(bridged.node, "comes", "sleep 3600"))
        wait_for(
            lambda: "Too many pods" in bridged.kubectl("get", "events", "-o", "yaml"),
            "home's scheduler finds no room",
        )
    finally:
        bridged.remote.kubectl("uncordon", name)
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "pod/comes", "--timeout=60s")
    assert _ready(bridged)["reason"] == "RemoteReady"
