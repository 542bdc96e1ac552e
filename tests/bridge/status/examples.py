"""Example statuses of a virtual node."""

from __future__ import annotations

from typing import Any

from bridge.status import node_pod_summary
from tests import objects
from translators.pods.pod_status import CONDITION_ACCEPTED


def node(*, ready: bool = True, message: str = "usable nodes: 1 of 1") -> dict[str, Any]:
    """A virtual node of a bridge."""
    condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "RemoteReady"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "remote",
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "labels": {
                "cluster-bridge.io/virtual-node": "true",
                "cluster-bridge.io/remote": "0123",
            },
        },
        "spec": {},
        "status": {
            "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110", "hugepages-2Mi": "0"},
            "allocatable": {"cpu": "3", "memory": "6Gi", "pods": "100", "hugepages-2Mi": "0"},
            "conditions": [
                {**condition, "message": message, "lastTransitionTime": "2030-01-01T00:00:00Z"},
                {"type": "MemoryPressure", "status": "False", "reason": "a", "message": "b"},
            ],
            "nodeInfo": {"kubeletVersion": "v1.34.4", "osImage": "cluster-bridge 0.1.0"},
        },
    }


def pod(name: str, phase: str, *, cpu: str = "500m", **status: Any) -> dict[str, Any]:
    """A pod of the node."""
    found = objects.pod(name, "shop", node="remote")
    found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return {**found, "status": {"phase": phase, **status}}


def refused(name: str, *, message: str = "take it away") -> dict[str, Any]:
    """A pod that the bridge rejects."""
    condition = {"type": CONDITION_ACCEPTED, "status": "False", "reason": "FieldRefused"}
    return pod(name, "Pending", conditions=[{**condition, "message": message}])


def status(*pods: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A complete status with a healthy bridge."""
    counted = node_pod_summary.PodCounts()
    for it in pods:
        counted.add(it)
    return {**node_pod_summary.summarize_node(node(), counted), "bridge": bridge(), **changes}


def bridge(**changes: Any) -> dict[str, Any]:
    """An idle bridge that serves its node."""
    queue = dict.fromkeys(("depth", "working", "later", "failing", "retries"), 0)
    cluster = {"version": "v1.34.4", "watched": True, "error": ""}
    return {
        "version": "0.1.0",
        "role": "leader",
        "standby": "",
        "started": "2030-01-01T00:00:00Z",
        "uptimeSeconds": 8000,
        "lagSeconds": 0.0,
        "clusters": {
            "home": {"server": "https://192.0.2.10:6443", **cluster},
            "remote": {"server": "https://203.0.113.7:6443", **cluster},
        },
        "queues": [{"name": "pods", "oldestSeconds": 0.0, **queue}],
        "watches": [
            {
                "cluster": "remote",
                "resource": "pods",
                "watches": 2,
                "objects": 3,
                "failing": 0,
                "silentSeconds": 4,
                "error": "",
            }
        ],
        "streams": {"logs": 0},
        "errors": [],
        **changes,
    }
