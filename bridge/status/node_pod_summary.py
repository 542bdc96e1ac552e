"""Summarizes a Node of home and its pods as plain data, with the field names of the status. Pure.

docs/reference/status.md documents the fields; published names stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import isfinite

from bridge.node import node_object
from bridge.node.join_record import recorded_network
from translators.capacity import pod_requests
from translators.capacity.node_capacity import resource_sort_key
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object, metadata, name_of, namespace_of
from translators.ownership_labels import LABEL_COST, LABEL_TIER
from translators.pods import pod_status

#: The values of a pod's ``status.phase``.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
#: Rejected pods that are listed by name; the others are only counted.
MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class PodSummary:
    """The part of one pod that is counted."""

    phase: str
    ready: bool = False
    deleting: bool = False
    requested: Amounts = field(default_factory=dict)
    """Its requests; none once it has ended."""
    rejection: Object | None = None
    """Name, reason and message of a pod that the bridge does not create in the remote."""


def summarize_pod(pod: Object) -> PodSummary:
    """The summary of a pod of home."""
    status = pod.get("status") or {}
    phase, ready, rejection = status.get("phase"), False, None
    for condition in status.get("conditions") or ():
        kind, value = condition.get("type"), condition.get("status")
        if kind == "Ready" and value == "True":
            ready = True
        elif kind == pod_status.CONDITION_ACCEPTED and value == "False":
            rejection = {
                "namespace": namespace_of(pod),
                "name": name_of(pod),
                "reason": str(condition.get("reason") or ""),
                "message": str(condition.get("message") or ""),
            }
    has_ended = phase in pod_status.TERMINAL_PHASES
    return PodSummary(
        phase=phase if phase in PHASES else "Unknown",
        ready=ready,
        deleting=bool(metadata(pod).get("deletionTimestamp")),
        requested={} if has_ended else pod_requests.requests_of(pod),
        rejection=rejection,
    )


class PodCounts:
    """Counts the pods of a node."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()
        self.ready = self.deleting = self.rejected = 0
        self.requested: Amounts = {}
        self._named: list[Object] = []

    def add(self, pod: Object) -> None:
        """Counts a pod."""
        self.add_summary(summarize_pod(pod))

    def add_summary(self, pod: PodSummary) -> None:
        """Counts a pod that was summarized before."""
        self.phases[pod.phase] += 1
        self.deleting += pod.deleting
        self.ready += pod.ready
        for resource, amount in pod.requested.items():
            self.requested[resource] = self.requested.get(resource, 0) + amount
        if pod.rejection is not None:
            self.rejected += 1
            if len(self._named) < MAX_NAMED:
                self._named.append(pod.rejection)

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
        "tier": _label(obj, LABEL_TIER),
        "cost": _cost(_label(obj, LABEL_COST)),
        "conditions": [_condition(it) for it in status.get("conditions") or ()],
        "network": _network(obj),
        "resources": _resources(status, pods),
        "pods": None if pods is None else pods.as_dict(),
        "versions": {
            "kubelet": str(info.get("kubeletVersion") or ""),
            "bridge": node_object.bridge_version(obj),
        },
    }


def _label(node: Object, name: str) -> str:
    return str((metadata(node).get("labels") or {}).get(name) or "")


def _cost(text: str) -> float | None:
    """The number in a label; None without a valid one."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if isfinite(found) else None


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
