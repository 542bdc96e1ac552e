"""Reads Kueue's Workloads and AdmissionChecks (kueue.x-k8s.io/v1beta2), and computes the parts of
their status that the controller of an admission check writes. Pure.

- A Workload has *pod sets*: a template and a count. With its quota reserved, it also has an
  assignment of ResourceFlavors to each, whose node labels and tolerations Kueue adds to the pods.
- `status.admissionChecks` has one entry for each check, with a state. Kueue admits a Workload with
  reserved quota when all are Ready, and then adds the `podSetUpdates` of each to the pods. `Retry`
  releases the quota: Kueue evicts the Workload and queues it again.
- Kueue resets all entries to Pending whenever it evicts a Workload.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from translators.object_accessors import Object, condition_of, metadata, name_of
from translators.ownership_labels import DOMAIN, LABEL_VIRTUAL

#: `spec.controllerName` of the AdmissionChecks that the bridge decides.
CONTROLLER_NAME = f"{DOMAIN}/fits"
#: On each pod that Kueue starts: its Workload, and the pod set.
ANNOTATION_WORKLOAD = "kueue.x-k8s.io/workload"
LABEL_POD_SET = "kueue.x-k8s.io/podset"
#: The label of a node by which the check selects the chosen virtual node.
LABEL_HOSTNAME = "kubernetes.io/hostname"

TOLERATION: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}

#: Bytes of a message that are kept; Kueue repeats it in conditions and Events.
MESSAGE_MAX = 4096

CheckState = Literal["Pending", "Ready", "Retry"]


@dataclass(frozen=True, slots=True)
class PodSet:
    """Equal pods of one Workload: ``count`` times ``pod``, as Kueue will start them but for the
    check's own updates."""

    name: str
    count: int
    pod: Object


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The state that the controller gives the check of one Workload."""

    state: CheckState
    message: str
    hostname: str = ""
    """The hostname label of the chosen virtual node, if the state is Ready."""


def is_own_check(check: Object) -> bool:
    """Whether the bridge decides this AdmissionCheck."""
    return bool((check.get("spec") or {}).get("controllerName") == CONTROLLER_NAME)


def has_quota(workload: Object) -> bool:
    """Whether Kueue has reserved quota: only then a check is decided."""
    return _is_true(workload, "QuotaReserved") and bool(
        (workload.get("status") or {}).get("admission")
    )


def is_over(workload: Object) -> bool:
    """Whether the Workload has finished, is being evicted, or is deactivated or deleted."""
    return (
        is_finished(workload)
        or _is_true(workload, "Evicted")
        or (workload.get("spec") or {}).get("active") is False
        or bool(metadata(workload).get("deletionTimestamp"))
    )


def is_finished(workload: Object) -> bool:
    """Whether all pods of the Workload have ended."""
    return _is_true(workload, "Finished")


def holds_room(workload: Object) -> bool:
    """Whether the Workload's pods may exist or be started: until Kueue has released its quota."""
    return has_quota(workload) and not is_finished(workload)


def waits_for_quota(workload: Object) -> bool:
    """Whether the Workload is queued, and Kueue has reserved no quota for it."""
    is_active = (workload.get("spec") or {}).get("active") is not False
    return is_active and not has_quota(workload) and not is_finished(workload)


def priority_of(workload: Object) -> int:
    return int((workload.get("spec") or {}).get("priority") or 0)


def check_entries(workload: Object, checks: Collection[str]) -> list[Object]:
    """The entries of `status.admissionChecks` that belong to these checks."""
    entries = (workload.get("status") or {}).get("admissionChecks") or ()
    return [it for it in entries if it.get("name") in checks]


def chosen_hostname(workload: Object) -> str:
    """The hostname label of the node that a check chose for the Workload; "" if none has."""
    for entry in (workload.get("status") or {}).get("admissionChecks") or ():
        if entry.get("state") == "Ready":
            for update in entry.get("podSetUpdates") or ():
                if hostname := (update.get("nodeSelector") or {}).get(LABEL_HOSTNAME):
                    return str(hostname)
    return ""


def pod_sets(workload: Object, flavors: Mapping[str, Object]) -> tuple[PodSet, ...]:
    """The pod sets of a Workload, with the labels and tolerations of the assigned ``flavors`` (by
    name; unknown ones are ignored) and without pods that are no longer needed."""
    status = workload.get("status") or {}
    assigned = {
        it["name"]: it for it in (status.get("admission") or {}).get("podSetAssignments") or ()
    }
    reclaimable = {it["name"]: int(it["count"]) for it in status.get("reclaimablePods") or ()}
    found = []
    for pod_set in (workload.get("spec") or {}).get("podSets") or ():
        name = str(pod_set.get("name"))
        assignment = assigned.get(name) or {}
        count = int(assignment.get("count") or pod_set.get("count") or 0) - reclaimable.get(name, 0)
        names = dict.fromkeys((assignment.get("flavors") or {}).values())
        found.append(
            PodSet(
                name,
                max(count, 0),
                _pod(workload, pod_set, [flavors[it] for it in names if it in flavors]),
            )
        )
    return tuple(found)


def _pod(workload: Object, pod_set: Object, flavors: Iterable[Object]) -> Object:
    template = pod_set.get("template") or {}
    spec = dict(template.get("spec") or {})
    selector, tolerations = dict(spec.get("nodeSelector") or {}), [*(spec.get("tolerations") or ())]
    for flavor in flavors:
        selector |= (flavor.get("spec") or {}).get("nodeLabels") or {}
        tolerations += (flavor.get("spec") or {}).get("tolerations") or ()
    meta = {
        "namespace": metadata(workload).get("namespace", ""),
        "labels": metadata(template).get("labels") or {},
        "annotations": metadata(template).get("annotations") or {},
    }
    return {
        "metadata": meta,
        "spec": {**spec, "nodeSelector": selector, "tolerations": [*tolerations, TOLERATION]},
    }


def checks_status(
    workload: Object, checks: Collection[str], result: CheckResult, now: str
) -> Object | None:
    """The status patch (merge) that gives our checks the result; None if they have it.

    ``now`` is RFC 3339. A merge patch replaces the whole list, so the other checks' entries are in
    it: the request needs the Workload's resourceVersion.
    """
    entries = (workload.get("status") or {}).get("admissionChecks") or []
    updated = [
        _with_result(workload, it, result, now) if it.get("name") in checks else it
        for it in entries
    ]
    return None if updated == entries else {"admissionChecks": updated}


def _with_result(workload: Object, entry: Object, result: CheckResult, now: str) -> Object:
    changed: Object = {
        "name": entry["name"],
        "state": result.state,
        "lastTransitionTime": (
            entry.get("lastTransitionTime", now) if entry.get("state") == result.state else now
        ),
        "message": _bounded(result.message),
    }
    if entry.get("retryCount") is not None:
        changed["retryCount"] = entry["retryCount"]
    if result.hostname:
        changed["podSetUpdates"] = [
            {
                "name": pod_set["name"],
                "nodeSelector": {LABEL_HOSTNAME: result.hostname},
                "tolerations": [TOLERATION],
            }
            for pod_set in (workload.get("spec") or {}).get("podSets") or ()
        ]
    return changed


def _bounded(message: str) -> str:
    encoded = message.encode()
    if len(encoded) <= MESSAGE_MAX:
        return message
    return encoded[: MESSAGE_MAX - 3].decode(errors="ignore") + "..."


def active_status(check: Object, now: str) -> Object | None:
    """The status patch (merge) that marks an AdmissionCheck as active; None if it is."""
    current = condition_of(check, "Active")
    generation = metadata(check).get("generation", 0)
    if current.get("status") == "True" and current.get("observedGeneration", 0) == generation:
        return None
    others = [
        it
        for it in (check.get("status") or {}).get("conditions") or ()
        if it.get("type") != "Active"
    ]
    condition = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "bridge placement run decides which remote can hold a whole workload",
        "lastTransitionTime": now,
        "observedGeneration": generation,
    }
    return {"conditions": [*others, condition]}


def workload_of(pod: Object) -> str:
    """The name of the Workload that started the pod, in the pod's namespace; "" if none did."""
    return str((metadata(pod).get("annotations") or {}).get(ANNOTATION_WORKLOAD) or "")


def pod_set_of(pod: Object) -> str:
    """The name of the pod set that the pod belongs to."""
    return str((metadata(pod).get("labels") or {}).get(LABEL_POD_SET) or "")


def hostname_of(node: Object) -> str:
    """The hostname label of a node; its name if it has none."""
    return str((metadata(node).get("labels") or {}).get(LABEL_HOSTNAME) or name_of(node))


def _is_true(workload: Object, condition: str) -> bool:
    return bool(condition_of(workload, condition).get("status") == "True")
