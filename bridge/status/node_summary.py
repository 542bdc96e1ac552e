"""A virtual node as its Node and its pods at home tell it: plain data. Pure.

The names of fields are those of docs/reference/status.md; one that was told stays.
"""

from __future__ import annotations

from collections import Counter

from bridge.node import node_object
from translators.capacity import pod_requests
from translators.capacity.node_capacity import resource_sort_key
from translators.capacity.pod_requests import Amounts
from translators.identity import LABEL_VIRTUAL
from translators.objects import Object, metadata, name_of, namespace_of
from translators.pods import status as podstatus

#: What a pod's ``status.phase`` can be.
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
#: Pods that are named because the bridge does not make them; the others are counted.
NAMED = 20

_OSIMAGE = "cluster-bridge "


def is_virtual_node(node: Object) -> bool:
    """Whether the Node is a virtual node of a bridge."""
    labels = metadata(node).get("labels") or {}
    return LABEL_VIRTUAL in labels and node_object.LABEL_REMOTE in labels


class PodCounts:
    """Counts the pods of one node, each by one `add`."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()
        self.ready = self.deleting = self.refused = 0
        self.requested: Amounts = {}
        self._named: list[Object] = []

    def add(self, pod: Object) -> None:
        """Counts one."""
        status = pod.get("status") or {}
        phase = status.get("phase")
        self.phases[phase if phase in PHASES else "Unknown"] += 1
        self.deleting += bool(metadata(pod).get("deletionTimestamp"))
        for condition in status.get("conditions") or ():
            kind, value = condition.get("type"), condition.get("status")
            if kind == "Ready" and value == "True":
                self.ready += 1
            elif kind == podstatus.CONDITION_ACCEPTED and value == "False":
                self._refused(pod, condition)
        if phase not in podstatus.TERMINAL_PHASES:
            for resource, amount in pod_requests.requests_of(pod).items():
                self.requested[resource] = self.requested.get(resource, 0) + amount

    def _refused(self, pod: Object, condition: Object) -> None:
        self.refused += 1
        if len(self._named) < NAMED:
            self._named.append(
                {
                    "namespace": namespace_of(pod),
                    "name": name_of(pod),
                    "reason": str(condition.get("reason") or ""),
                    "message": str(condition.get("message") or ""),
                }
            )

    def as_dict(self) -> Object:
        """What was counted."""
        return {
            "total": self.phases.total(),
            "byPhase": {phase: self.phases[phase] for phase in PHASES},
            "ready": self.ready,
            "deleting": self.deleting,
            "refused": self.refused,
            "refusedPods": self._named,
        }


def summarize_node(obj: Object, pods: PodCounts | None) -> Object:
    """What the Node says, with what its pods use; None where they are not known."""
    status = obj.get("status") or {}
    info = status.get("nodeInfo") or {}
    image = str(info.get("osImage") or "")
    return {
        "name": name_of(obj),
        "ready": node_object.is_ready(obj),
        "cordoned": bool((obj.get("spec") or {}).get("unschedulable")),
        "created": metadata(obj).get("creationTimestamp"),
        "conditions": [_condition(it) for it in status.get("conditions") or ()],
        "resources": _resources(status, pods),
        "pods": None if pods is None else pods.as_dict(),
        "versions": {
            "kubelet": str(info.get("kubeletVersion") or ""),
            "bridge": image.removeprefix(_OSIMAGE) if image.startswith(_OSIMAGE) else "",
        },
    }


def _condition(condition: Object) -> Object:
    told = {key: str(condition.get(key) or "") for key in ("type", "status", "reason", "message")}
    return {**told, "since": condition.get("lastTransitionTime")}


def _resources(status: Object, pods: PodCounts | None) -> Object:
    """By resource: what the node has, what it offers, what its pods request, as quantities."""
    capacity = pod_requests.parse_resource_list(status.get("capacity"))
    offered = pod_requests.parse_resource_list(status.get("allocatable"))
    wanted = None if pods is None else pods.requested
    names = sorted({*capacity, *offered, *(wanted or ())}, key=resource_sort_key)
    return {name: _use(name, capacity, offered, wanted) for name in names}


def _use(name: str, capacity: Amounts, offered: Amounts, wanted: Amounts | None) -> Object:
    has, free = capacity.get(name, 0), offered.get(name, 0)
    used = None if wanted is None else wanted.get(name, 0)
    return {
        "capacity": pod_requests.format_amount(name, has),
        "allocatable": pod_requests.format_amount(name, free),
        "requested": None if used is None else pod_requests.format_amount(name, used),
        "requestedPercent": round(100 * used / free) if used is not None and free else None,
    }
