"""Labels that all nodes of the remote share."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.node import node_object
from translators.object_accessors import Object

_ARCH, _OS = "kubernetes.io/arch", "kubernetes.io/os"
_ZONE, _GPU = "topology.kubernetes.io/zone", "nvidia.com/gpu.product"


def _worker(arch: str = "arm64", *, ready: bool = True, **more: Any) -> Object:
    keys = {"zone": _ZONE, "gpu": _GPU, "hostname": "kubernetes.io/hostname"}
    return {
        "metadata": {"labels": {keys.get(key, key): value for key, value in more.items()}},
        "status": {
            "nodeInfo": {"architecture": arch, "operatingSystem": "linux"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


def _common(nodes: list[Object]) -> dict[str, str]:
    """The shared labels without deprecated names of labels that are also set."""
    found = node_object.common_labels(nodes)
    for key in (_ARCH, _OS):
        assert found.pop(f"beta.{key}", None) == found.get(key)
    return found


def test_label_with_same_value_on_all_nodes_is_shared() -> None:
    nodes = [_worker(zone="a", gpu="H100", team="x"), _worker(zone="a", gpu="H100", team="x")]
    assert _common(nodes) == {_ARCH: "arm64", _OS: "linux", _ZONE: "a", _GPU: "H100"}


def test_label_that_differs_or_is_missing_is_not_shared() -> None:
    nodes = [_worker(zone="a", gpu="H100"), _worker("amd64", zone="b")]
    assert _common(nodes) == {_OS: "linux"}


def test_unusable_nodes_are_ignored_unless_all_are_unusable() -> None:
    away = _worker("amd64", ready=False, zone="b")
    assert _common([_worker(zone="a"), away])[_ZONE] == "a"
    assert _common([away])[_ARCH] == "amd64"


def test_host_names_and_empty_values_are_not_shared() -> None:
    assert _common([_worker("", hostname="w", zone="")]) == {_OS: "linux"}
    assert _common([]) == {}


@pytest.mark.parametrize(
    "label",
    [
        "agentpool",
        "cloud.google.com/gke-nodepool",
        "compute.coreweave.com/node-pool-uid",
        "eks.amazonaws.com/nodegroup",
        "hcloud/node-group",
        "kubernetes.azure.com/agentpool",
        "node_id",
        "nodepool",
    ],
)
def test_labels_of_autoscalers_groups_are_not_shared(label: str) -> None:
    """By them the home cluster's autoscaler assigns a node to a group, and scales it down."""
    labels: dict[str, Any] = {label: "pool"}
    assert label not in _common([_worker(**labels)])
