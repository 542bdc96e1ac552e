"""Summarizes a Node of home and its pods as plain data, with the field names of the status. Pure.

docs/reference/status.md documents the fields; published names stay.
"""

from __future__ import annotations

from collections import Counter

from bridge.node import node_object
from bridge.node.join_record import recorded_network
from translators.capacity import pod_requests
from translators.capacity.node_capacity import resource_sort_key
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object, metadata, name_of, namespace_of
from translators.pods import pod_status

#: The values of a pod's ``status.phase``.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
#: Rejected pods that are listed by name; the others are only counted.
MAX_NAMED = 20


class PodCounts:
    """Counts the pods of a node."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()
        self.ready = self.deleting = self.rejected = 0
        self.requested: Amounts = {}
        self._named: list[Object] = []

    def add(self, pod: Object) -> None:
        """Counts a pod."""
        status = pod.get("status") or {}
        phase = status.get("phase")
        self.phases[phase if phase in PHASES else "Unknown"] += 1
        self.deleting += bool(metadata(pod).get("deletionTimestamp"))
        for condition in status.get("conditions") or ():
            kind, value = condition.get("type"), condition.get("status")
            if kind == "Ready" and value == "True":
                self.ready += 1
            elif kind == pod_status.CONDITION_ACCEPTED and value == "False":
                self._add_rejected(pod, condition)
        if phase not in pod_status.TERMINAL_PHASES:
            for resource, amount in pod_requests.requests_of(pod).items():
                self.requested[resource] = self.requested.get(resource, 0) + amount

    def _add_rejected(self, pod: Object, condition: Object) -> None:
        self.rejected += 1
        if len(self._named) < MAX_NAMED:
            self._named.append(
                {
                    "namespace": namespace_of(pod),
                    "name": name_of(pod),
                    "reason": str(condition.get("reason") or ""),
                    "message": str(condition.get("message") or ""),
                }
            )

    def as_dict(self) -> Object:
        """The counts, as the status has them."""
        return {
            "total": self.phases.total(),
            "byPhase": {phase: self.phases[phase] for phase in PHASES},
            "ready": self.ready,
            "deleting": self.deleting,
            "refused": self.rejected,
            "refusedPods": self._named,
        }


def summarize_node(obj: Object, pods: PodCounts | None) -> Object:
    """The status of the Node. ``pods`` are the counts of its pods; None if they are unknown."""
    status = obj.get("status") or {}
    info = status.get("nodeInfo") or {}
    return {
        "name": name_of(obj),
        "ready": node_object.is_ready(obj),
        "cordoned": bool((obj.get("spec") or {}).get("unschedulable")),
        "created": metadata(obj).get("creationTimestamp"),
        "conditions": [_condition(it) for it in status.get("conditions") or ()],
        "network": _network(obj),
        "resources": _resources(status, pods),
        "pods": None if pods is None else pods.as_dict(),
        "versions": {
            "kubelet": str(info.get("kubeletVersion") or ""),
            "bridge": node_object.bridge_version(obj),
        },
    }


def _network(node: Object) -> Object | None:
    recorded = recorded_network(node)
    return {"mode": recorded.mode, "source": recorded.source} if recorded is not None else None


def _condition(condition: Object) -> Object:
    data = {key: str(condition.get(key) or "") for key in ("type", "status", "reason", "message")}
    return {**data, "since": condition.get("lastTransitionTime")}


def _resources(status: Object, pods: PodCounts | None) -> Object:
    """By resource: capacity, allocatable and the requests of the pods, as quantities."""
    capacity = pod_requests.parse_resource_list(status.get("capacity"))
    allocatable = pod_requests.parse_resource_list(status.get("allocatable"))
    requested = {} if pods is None else pods.requested
    found: Object = {}
    for name in sorted({*capacity, *allocatable, *requested}, key=resource_sort_key):
        free, used = allocatable.get(name, 0), requested.get(name, 0)
        is_known = pods is not None
        found[name] = {
            "capacity": pod_requests.format_amount(name, capacity.get(name, 0)),
            "allocatable": pod_requests.format_amount(name, free),
            "requested": pod_requests.format_amount(name, used) if is_known else None,
            "requestedPercent": round(100 * used / free) if is_known and free else None,
        }
    return found
