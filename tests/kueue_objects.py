"""Kueue's objects, virtual nodes and rooms for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sync.kube.api_resources import Object
from translators.fit.node_groups import NodeGroup
from translators.fit.published_room import LABEL_ROOM, NAMESPACE, config_map_name
from translators.kueue.workload import (
    ANNOTATION_WORKLOAD,
    CONTROLLER_NAME,
    LABEL_HOSTNAME,
    LABEL_POD_SET,
)

CHECK = "fits-one-remote"
FLAVOR = "virtual-nodes"
QUEUE = "batch"
VIRTUAL = "cluster-bridge.io/virtual-node"
API = "kueue.x-k8s.io/v1beta2"
GIBIBYTE = 2**30


def admission_check(name: str = CHECK, controller: str = CONTROLLER_NAME) -> Object:
    """An AdmissionCheck."""
    spec = {"controllerName": controller}
    return {"apiVersion": API, "kind": "AdmissionCheck", "metadata": {"name": name}, "spec": spec}


def flavor(name: str = FLAVOR, **labels: str) -> Object:
    """A ResourceFlavor of virtual nodes, with more node labels by keyword."""
    spec = {"nodeLabels": {VIRTUAL: "true", **labels}}
    return {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": spec}


def pod_set(count: int, cpu: str, name: str = "main", **spec: Any) -> Object:
    """A pod set of one container."""
    container = {"name": "main", "image": "busybox:1", "resources": {"requests": {"cpu": cpu}}}
    template = {"spec": {"containers": [container], **spec}}
    return {"name": name, "count": count, "template": template}


def workload(name: str, *pod_sets: Object, priority: int = 0, namespace: str = "default") -> Object:
    """A Workload that waits for quota."""
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"queueName": QUEUE, "active": True, "priority": priority, "podSets": [*pod_sets]},
    }


def reserved(of: Object, *checks: Object, flavor_name: str = FLAVOR) -> Object:
    """The status of a Workload whose quota Kueue has reserved. Checks are pending by default."""
    assignments = [
        {"name": it["name"], "count": it["count"], "flavors": {"cpu": flavor_name}}
        for it in of["spec"]["podSets"]
    ]
    return {
        "conditions": [condition("QuotaReserved", "True", "QuotaReserved")],
        "admission": {"clusterQueue": QUEUE, "podSetAssignments": assignments},
        "admissionChecks": [*(checks or (check_state(),))],
    }


def check_state(
    name: str = CHECK, state: str = "Pending", hostname: str = "", pod_set_name: str = "main"
) -> Object:
    """An entry of `status.admissionChecks`; with a hostname, it selects that node."""
    entry: Object = {
        "name": name,
        "state": state,
        "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    if hostname:
        selector = {LABEL_HOSTNAME: hostname}
        entry["podSetUpdates"] = [{"name": pod_set_name, "nodeSelector": selector}]
    return entry


def condition(kind: str, status: str, reason: str) -> Object:
    """A condition."""
    now = "2030-01-01T00:00:00Z"
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": now,
    }


def virtual_node(
    name: str, *, cpu: str = "64", ready: bool = True, labels: Mapping[str, str] | None = None
) -> Object:
    """A virtual node with its taint."""
    resources = {"cpu": cpu, "memory": "64Gi", "pods": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {VIRTUAL: "true", LABEL_HOSTNAME: name, **(labels or {})},
        },
        "spec": {"taints": [{"key": VIRTUAL, "value": "true", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [condition("Ready", "True" if ready else "Unknown", "Bridge")],
        },
    }


def nodes(count: int, cpu: int, **more: Any) -> NodeGroup:
    """Equal real nodes, each with ``cpu`` free cores."""
    free = {"cpu": cpu * 1000, "memory": 64 * GIBIBYTE}
    return NodeGroup(free=free, pods=110, count=count, **more)


def room(node: str, groups: str, home_version: int = 0) -> Object:
    """The ConfigMap in which a bridge publishes its remote's room."""
    meta = {
        "name": config_map_name(node),
        "namespace": NAMESPACE,
        "labels": {LABEL_ROOM: "true"},
    }
    data = {"room": groups, "homeVersion": str(home_version)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod_of(of: str, name: str, *, node: str, phase: str, cpu: str = "2") -> Object:
    """A pod that Kueue has started for a Workload's pod set ``main``."""
    pod: Object = pod_set(1, cpu)["template"]
    meta = {
        "name": name,
        "namespace": "default",
        "labels": {LABEL_POD_SET: "main"},
        "annotations": {ANNOTATION_WORKLOAD: of},
    }
    spec = {**pod["spec"], **({"nodeName": node} if node else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": {"phase": phase},
    }
