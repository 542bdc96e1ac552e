"""The content of the virtual node's Node, and unmanaged fields of it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from bridge.node import node_metadata_merge, node_object
from bridge.node.conditions import NodeCondition
from bridge.node.node_metadata_merge import NodeMetadata
from bridge.node.node_object import NodeFacts
from sync.capacity.remote_capacity import RemoteCapacity
from tests.fakeapi.patching import merge, strategic
from translators.capacity.node_capacity import NodeCapacity
from translators.object_accessors import Object

_TAINT = {"key": "cluster-bridge.io/virtual-node", "value": "true", "effect": "NoSchedule"}
_FACTS = NodeFacts(
    name="burst",
    remote_id="fedcba9876543210",
    address="10.20.0.5",
    port=10250,
    version="0.1.0",
    configured=NodeMetadata(taints=(_TAINT,)),
    annotations={"cluster-bridge.io/context": "remote"},
)
_HEALTHY = NodeCondition(True, "RemoteReady", "all is well")
_CAPACITY = NodeCapacity({"cpu": "8"}, {"cpu": "7840m", "memory": "14Gi", "pods": "220"}, nodes=2)
_OFFERED = RemoteCapacity(_CAPACITY, "cpu=1,memory=2Gi", None)
_NOW, _LATER = "2025-11-03T09:00:00Z", "2025-11-03T09:05:00Z"


def _worker(*, ready: str = "True", **info: str) -> Object:
    node_info = {
        "architecture": "arm64",
        "bootID": "b",
        "kernelVersion": "6.1.0",
        "kubeletVersion": "v1.34.4",
        "machineID": "m",
        "operatingSystem": "linux",
        "osImage": "Debian",
        "systemUUID": "s",
        **info,
    }
    return {
        "metadata": {"name": "worker"},
        "status": {"nodeInfo": node_info, "conditions": [{"type": "Ready", "status": ready}]},
    }


def _status(current: Object, **more: Any) -> Object:
    given: dict[str, Any] = {
        "offered": _OFFERED,
        "nodes": [_worker()],
        "ready": _HEALTHY,
        "now": _NOW,
        **more,
    }
    given["nodes"] = [(node, 1) for node in given["nodes"]]
    return node_object.desired_status(current, _FACTS, **given)


def _new_node(nodes: list[Object]) -> Object:
    return node_object.build_node(
        _FACTS, node_object.desired_metadata(_FACTS, nodes, largest="cpu=1")
    )


def _written(current: Object, desired: Object) -> Object:
    """The Node with the patch of its status applied, as the API server does it."""
    patched = strategic(current.get("status") or {}, node_object.status_patch(current, desired))
    return {**current, "status": patched}


def test_a_new_node_has_labels_annotations_and_its_taint() -> None:
    node = _new_node([_worker()])

    assert node["metadata"] == {
        "name": "burst",
        "labels": {
            "kubernetes.io/hostname": "burst",
            "kubernetes.io/arch": "arm64",
            "kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "arm64",
            "beta.kubernetes.io/os": "linux",
            "type": "virtual-kubelet",
            "node.kubernetes.io/exclude-from-external-load-balancers": "true",
            "cluster-bridge.io/virtual-node": "true",
            "cluster-bridge.io/remote": "fedcba9876543210",
        },
        "annotations": {
            "cluster-bridge.io/context": "remote",
            "cluster-bridge.io/largest-pod": "cpu=1",
            "cluster-bridge.io/applied": '{"labels":{"beta.kubernetes.io/arch":"arm64",'
            '"beta.kubernetes.io/os":"linux","kubernetes.io/arch":"arm64",'
            '"kubernetes.io/os":"linux"},'
            '"taints":{"cluster-bridge.io/virtual-node:NoSchedule":"true"}}',
        },
    }
    assert node["spec"] == {
        "providerID": "cluster-bridge://fedcba9876543210/burst",
        "taints": [_TAINT],
    }


def test_node_without_taint_or_remote_nodes_is_valid() -> None:
    facts = NodeFacts(
        name="a." * 40 + "a",
        remote_id="f",
        address="10.20.0.5",
        port=1,
        version="0",
        configured=NodeMetadata(),
        annotations={},
    )
    node = node_object.build_node(facts, node_object.desired_metadata(facts, [], largest=""))

    assert node["spec"] == {"providerID": f"cluster-bridge://f/{facts.name}"}
    assert "kubernetes.io/arch" not in node["metadata"]["labels"]
    assert len(node["metadata"]["labels"]["kubernetes.io/hostname"]) <= 63


def test_only_own_labels_and_annotations_are_restored() -> None:
    node = _new_node([_worker()])
    node["metadata"]["labels"] |= {"team": "orders", "kubernetes.io/arch": "amd64"}
    del node["metadata"]["annotations"]["cluster-bridge.io/context"]
    node["metadata"]["annotations"]["note"] = "x"
    before = copy.deepcopy(node)
    patch = node_metadata_merge.metadata_patch(
        node, node_object.desired_metadata(_FACTS, [_worker()], largest="cpu=2")
    )

    assert patch == {
        "metadata": {
            "labels": {"kubernetes.io/arch": "arm64"},
            "annotations": {
                "cluster-bridge.io/context": "remote",
                "cluster-bridge.io/largest-pod": "cpu=2",
            },
        }
    }
    assert node == before
    assert (
        node_metadata_merge.metadata_patch(
            merge(node, patch), node_object.desired_metadata(_FACTS, [_worker()], largest="cpu=2")
        )
        == {}
    )


def test_unchanged_status_has_empty_patch() -> None:
    node = _written({}, _status({}))

    assert node_object.status_patch(node, _status(node, now=_LATER)) == {}
    assert node["status"]["addresses"] == [
        {"type": "InternalIP", "address": "10.20.0.5"},
        {"type": "Hostname", "address": "burst"},
    ]
    assert node["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}


def test_status_has_all_kubelet_conditions() -> None:
    conditions = {item["type"]: item["status"] for item in _status({})["conditions"]}

    assert conditions == {
        "Ready": "True",
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "NetworkUnavailable": "False",
    }


def test_unchanged_condition_keeps_its_times() -> None:
    node = _written({}, _status({}))
    sick = NodeCondition(False, "RemoteUnreachable", "no route")
    changed = _status(node, ready=sick, now=_LATER)
    found = {item["type"]: item for item in changed["conditions"]}

    assert found["Ready"]["lastTransitionTime"] == _LATER
    assert found["DiskPressure"]["lastTransitionTime"] == _NOW
    assert node_object.status_patch(node, changed)["conditions"] == [found["Ready"]]


def test_new_reason_keeps_transition_time() -> None:
    node = _written({}, _status({}))
    status = _status(node, ready=NodeCondition(True, "RemoteReady", "3 nodes"), now=_LATER)

    assert status["conditions"][0]["message"] == "3 nodes"
    assert status["conditions"][0]["lastTransitionTime"] == _NOW


def test_unmanaged_conditions_and_fields_stay() -> None:
    other = {"type": "example.com/Checked", "status": "True"}
    node = {"status": {"conditions": [other], "volumesInUse": ["v"], "features": {"x": True}}}
    written = _written(node, _status(node))["status"]

    assert other in written["conditions"]
    assert (written["volumesInUse"], written["features"]) == (["v"], {"x": True})


def test_heartbeat_is_the_time_of_last_change() -> None:
    node = _written({}, _status({}))
    assert {item["lastHeartbeatTime"] for item in node["status"]["conditions"]} == {_NOW}
    sick = NodeCondition(False, "RemoteUnreachable", "no route")
    found = {c["type"]: c for c in _status(node, ready=sick, now=_LATER)["conditions"]}

    assert found["Ready"]["lastHeartbeatTime"] == _LATER
    assert found["DiskPressure"]["lastHeartbeatTime"] == _NOW


def test_removed_resource_is_removed_from_capacity() -> None:
    node = _written({}, _status({}))
    node["status"]["capacity"]["nvidia.com/gpu"] = "1"
    patch = node_object.status_patch(node, _status(node))

    assert patch == {"capacity": {"nvidia.com/gpu": None}}


def test_old_address_is_removed() -> None:
    node = _written({}, _status({}))
    node["status"]["addresses"].append({"type": "ExternalIP", "address": "203.0.113.7"})
    written = _written(node, _status(node))

    assert [item["type"] for item in written["status"]["addresses"]] == ["InternalIP", "Hostname"]


def test_node_info_has_common_fields_and_no_machine_identity() -> None:
    nodes = [_worker(), _worker(kernelVersion="6.6.0", bootID="c")]

    assert _status({}, nodes=nodes)["nodeInfo"] == {
        "architecture": "arm64",
        "bootID": "",
        "containerRuntimeVersion": "",
        "kernelVersion": "",
        "kubeProxyVersion": "",
        "kubeletVersion": "v1.34.4",
        "machineID": "",
        "operatingSystem": "linux",
        "osImage": "cluster-bridge 0.1.0",
        "systemUUID": "fedcba9876543210",
    }


@pytest.mark.parametrize(
    ("versions", "oldest"),
    [
        (["v1.34.4", "v1.34.4"], "v1.34.4"),
        (["v1.34.10", "v1.34.9"], "v1.34.9"),
        (["v1.9.0", "v1.10.0+k3s1"], "v1.9.0"),
        ([], ""),
    ],
    ids=["the one that all have", "numbers are not text", "nor with a suffix", "none"],
)
def test_kubelet_version_is_the_oldest(versions: list[str], oldest: str) -> None:
    nodes = [_worker(kubeletVersion=version) for version in versions]

    assert _status({}, nodes=nodes)["nodeInfo"]["kubeletVersion"] == oldest


def test_capacity_is_one_line_with_the_most_important_first() -> None:
    assert node_object.describe_capacity(_CAPACITY) == "2 nodes: cpu 7840m, memory 14Gi, pods 220"
    gpu = NodeCapacity({}, {"nvidia.com/gpu": "1", "cpu": "2"}, nodes=1)
    assert node_object.describe_capacity(gpu) == "1 node: cpu 2, nvidia.com/gpu 1"
    assert node_object.describe_capacity(NodeCapacity({}, {}, nodes=0)) == "0 nodes: nothing"


def test_quota_condition_appears_with_first_quota() -> None:
    kind = "cluster-bridge.io/QuotaExhausted"

    def with_quota(node: Object, exhausted: tuple[str, ...] | None) -> Object:
        return _written(node, _status(node, offered=replace(_OFFERED, exhausted=exhausted)))

    def condition(node: Object) -> Object | None:
        found = [it for it in node["status"]["conditions"] if it["type"] == kind]
        return found[0] if found else None

    none = with_quota({}, None)
    assert condition(none) is None
    reached = with_quota(none, ("namespace a, quota q: pods", "namespace b, quota q: cpu"))
    quota = condition(reached) or {}
    assert (quota["status"], quota["reason"]) == ("True", "RemoteQuotaReached")
    assert quota["message"] == "namespace a, quota q: pods; namespace b, quota q: cpu"
    assert (condition(with_quota(reached, ())) or {})["status"] == "False"
    assert (condition(with_quota(reached, None)) or {})["status"] == "False", (
        "the quota was removed"
    )


def test_irrelevant_node_change_is_ignored() -> None:
    node = _worker()
    beat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "later"}
    again = {**node, "status": {**node["status"], "conditions": [beat]}}
    zone = {"labels": {"topology.kubernetes.io/zone": "a", "team": "x"}}

    assert (
        node_object.relevant_fields(again)
        == node_object.relevant_fields(node)
        == node_object.relevant_fields(_worker())
    )
    assert node_object.relevant_fields({**node, "metadata": zone}) != node_object.relevant_fields(
        node
    )
    assert node_object.relevant_fields(
        {**node, "spec": {"unschedulable": True}}
    ) != node_object.relevant_fields(node)


def test_crowded_node_has_soft_taint() -> None:
    soft = {"key": "cluster-bridge.io/unschedulable", "effect": "PreferNoSchedule"}
    assert node_object.desired_metadata(_FACTS, [], largest="", pods_wait=True).taints == (
        _TAINT,
        soft,
    )


def test_differing_node_info_is_empty() -> None:
    nodes = [_worker(), _worker(architecture="amd64")]

    assert (
        "kubernetes.io/arch" not in node_object.desired_metadata(_FACTS, nodes, largest="").labels
    )
    assert _status({}, nodes=nodes)["nodeInfo"]["architecture"] == ""


def test_label_with_remote_identifies_a_virtual_node() -> None:
    virtual = {"metadata": {"name": "vn", "labels": {node_object.LABEL_REMOTE: "0123"}}}
    assert node_object.is_virtual_node(virtual)
    assert node_object.remote_id_of(virtual) == "0123"
    assert not node_object.is_virtual_node({"metadata": {"name": "worker", "labels": {}}})


def test_bridge_version_is_read_from_os_image() -> None:
    assert node_object.bridge_version({"status": {"nodeInfo": {"osImage": "Debian"}}}) == ""
    image = {"status": {"nodeInfo": {"osImage": "cluster-bridge 1.2.3"}}}
    assert node_object.bridge_version(image) == "1.2.3"
