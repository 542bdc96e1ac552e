"""The pod of a copy: where it may run, and what it may do."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.volumes import copy_pod
from translators.object_accessors import Object
from translators.offload_admission_patch import Offloading, admission_patch, is_exempt
from translators.storage.identifiers import DRIVER

CLAIM = {"metadata": {"name": "data", "namespace": "shop"}}
OF_REMOTE = {"spec": {"csi": {"driver": DRIVER, "volumeHandle": "r1/shop-h/data"}}}
OF_HOME = {"spec": {"csi": {"driver": "disk.example.com", "volumeHandle": "r1/shop-h/data"}}}
TAINTS = [
    {"key": "cluster-bridge.io/virtual-node", "effect": "NoSchedule"},
    {"key": "example.com/databases", "value": "yes", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
]
VIRTUAL = "cluster-bridge.io/virtual-node"


def pod(volume: Object | None = None, *, role: str = "source", node: str = "") -> Object:
    return copy_pod.copy_pod(
        CLAIM,
        role=role,
        pair="1/2",
        volume=volume,
        node=node,
        taints=TAINTS,
        image="debian",
        run="run",
        timeout=300,
    )


@pytest.mark.parametrize(
    ("volume", "node", "term"),
    [
        (OF_REMOTE, "", {"matchExpressions": [{"key": VIRTUAL, "operator": "Exists"}]}),
        (OF_HOME, "", {"matchExpressions": [{"key": VIRTUAL, "operator": "DoesNotExist"}]}),
        (
            None,
            "burst",
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["burst"]}]},
        ),
    ],
)
def test_scheduler_finds_a_node_with_the_volume(
    volume: Object | None, node: str, term: Object
) -> None:
    (affinity,) = pod(volume, node=node)["spec"]["affinity"].values()
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [term]}


def test_taints_of_administrators_are_tolerated() -> None:
    """Taints with which Kubernetes excludes a broken node are not tolerated."""
    keys = [toleration["key"] for toleration in pod(OF_HOME)["spec"]["tolerations"]]
    unschedulable = "node.kubernetes.io/unschedulable"
    assert keys == [VIRTUAL, "example.com/databases", unschedulable]


def test_name_is_that_of_each_run_of_the_same_copy() -> None:
    names = {pod(OF_HOME)["metadata"]["name"], pod(OF_REMOTE, node="x")["metadata"]["name"]}
    assert len(names) == 1
    assert names != {pod(OF_HOME, role="target")["metadata"]["name"]}


@pytest.mark.parametrize("policy", ["burst", "remote-only", "local-only"])
def test_offload_does_not_change_the_pod(policy: Any) -> None:
    assert is_exempt(pod(OF_HOME))
    assert admission_patch(pod(OF_HOME), Offloading(policy, {})) == []


def test_source_is_mounted_to_be_read() -> None:
    mounts = [pod(OF_HOME, role=role)["spec"]["containers"][0] for role in ("source", "target")]
    assert [container["volumeMounts"][0]["readOnly"] for container in mounts] == [True, False]
