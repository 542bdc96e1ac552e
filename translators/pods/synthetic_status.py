"""Computes the statuses of home pods without a remote pod: pending, skipped, lost or rejected.

Fields and conditions are those that a kubelet would set. As in `translators.pods.pod_status`, the
result is the desired status for `merge_patch.status_patch`.
"""

from __future__ import annotations

from translators.merge_patch import delete_condition
from translators.object_accessors import Object, condition_of, metadata
from translators.pods import pod_status
from translators.pods.pod_status import CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED

#: The conditions, True, by which a controller counts a pod as available.
_AVAILABLE = ("Initialized", "ContainersReady", "Ready")
#: Conditions of a previous remote pod, created while the bridge had other options.
_OF_REMOTE_POD = (CONDITION_REMOTE_SCHEDULED, "PodReadyToStartContainers")
#: Status fields that only a pod with containers has.
_OF_CONTAINERS = (
    "containerStatuses",
    "ephemeralContainerStatuses",
    "initContainerStatuses",
    "podIP",
    "podIPs",
    "resources",
)


def pending_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that cannot be created in the remote for now, with the reason that
    `kubectl get pods` shows. A pod that ran before becomes not ready and has no address."""
    before = condition_of(home, CONDITION_ACCEPTED)
    accepted = {
        "type": CONDITION_ACCEPTED,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": before.get("lastTransitionTime") or now,
    }
    stopped = pod_status.not_running_status(home, reason=reason, message=message, now=now)
    return {
        **stopped,
        "phase": "Pending",
        "reason": reason,
        "message": message,
        "conditions": [accepted, *stopped.get("conditions", ())],
    }


def recreating_status(home: Object, *, now: str) -> Object:
    """The status of a pod whose remote pod is re-created, written before the creation."""
    message = "the remote pod no longer exists and is re-created"
    reason = pod_status.REASON_REMOTE_POD_DELETED
    stopped = pod_status.not_running_status(home, reason=reason, message=message, now=now)
    if not stopped:
        return {}
    return {**stopped, "phase": "Pending"}


def skipped_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a DaemonSet pod that does not run but counts as available.

    The DaemonSet controller counts a pod as available while Ready is True (IsPodAvailable in
    pkg/api/v1/pod); an unavailable one would block rolling updates on home's own nodes. So Ready is
    True, with the readiness gates, whose controllers would wait for a pod IP in vain. Accepted,
    ``reason`` and ``message`` report that nothing runs. Without a pod IP no Service gets an
    endpoint; startTime would mark a pod that may have run
    (`translators.pods.restart_policy_never`).
    """
    home_status: Object = home.get("status") or {}
    by_type = {condition["type"]: condition for condition in home_status.get("conditions") or ()}
    accepted = {"type": CONDITION_ACCEPTED, "status": "False", "reason": reason, "message": message}
    true = [{"type": kind, "status": "True", "reason": reason} for kind in _AVAILABLE]
    if "PodScheduled" not in by_type:  # A user bound the pod by setting nodeName.
        true.append({"type": "PodScheduled", "status": "True"})
    conditions = []
    for condition in (accepted, *true):
        before = by_type.get(condition["type"]) or {}
        is_same = before.get("status") == condition["status"]
        since = (before.get("lastTransitionTime") if is_same else None) or now
        conditions.append({**condition, "lastTransitionTime": since})
    status: Object = {
        "phase": "Running",
        "reason": reason,
        "message": message,
        "conditions": [*conditions, *map(delete_condition, _OF_REMOTE_POD)],
        **dict.fromkeys(_OF_CONTAINERS),
    }
    generation = metadata(home).get("generation")
    if generation is not None:
        status["observedGeneration"] = generation
    return status


def is_skipped(home: Object, *, reason: str) -> bool:
    """Whether the pod's status already reports that it is skipped for ``reason``."""
    status: Object = home.get("status") or {}
    accepted = condition_of(home, CONDITION_ACCEPTED)
    return status.get("phase") == "Running" and accepted.get("reason") == reason


def is_creation_blocked(home: Object) -> bool:
    """Whether the last attempt to create the remote pod failed (`pending_status`)."""
    return bool(condition_of(home, CONDITION_ACCEPTED))


def creation_blocked_message(home: Object) -> str:
    """Why the pod is not in the remote; "" without an Accepted condition."""
    accepted = condition_of(home, CONDITION_ACCEPTED)
    parts = (accepted.get("reason"), accepted.get("message"))
    return ": ".join(str(part) for part in parts if part)


def lost_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that was lost in the remote and must not run again."""
    status = terminated_status(home, message=message, now=now) | {
        "reason": reason,
        "message": message,
    }
    if not condition_of(home, "DisruptionTarget"):
        # As the pod garbage collector does for pods of deleted nodes: a Job may ignore these.
        target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}
        status["conditions"].append({**target, "reason": reason, "message": message})
    return status


def terminated_status(home: Object, *, message: str, now: str) -> Object:
    """The status of a pod whose containers no longer run and whose end was not observed: exit code
    137, as from a kubelet that finds no container, with ``message``."""
    home_status = home.get("status") or {}
    status: Object = {"phase": "Failed"}
    for field_name in ("containerStatuses", "initContainerStatuses"):
        if home_status.get(field_name):
            status[field_name] = [_ended(item, message, now) for item in home_status[field_name]]
    status["conditions"] = [
        {**c, "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
        if c["type"] in ("Ready", "ContainersReady") and c.get("status") != "False"
        else c
        for c in home_status.get("conditions") or ()
    ]
    return status


def rejected_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that the virtual node's admission rejects (rejectPod in
    pkg/kubelet/kubelet.go)."""
    status: Object = {"phase": "Failed", "reason": reason, "message": message, "startTime": now}
    generation = metadata(home).get("generation")
    if generation is not None:
        status["observedGeneration"] = generation
    return status


def _ended(status: Object, message: str, now: str) -> Object:
    if "terminated" in (status.get("state") or {}):
        return status
    ended = {
        "exitCode": 137,
        "reason": "ContainerStatusUnknown",
        "message": message,
        "finishedAt": now,
        "startedAt": (status.get("state") or {}).get("running", {}).get("startedAt"),
        "containerID": status.get("containerID"),
    }
    return {
        **status,
        "ready": False,
        "started": False,
        "state": {"terminated": {key: value for key, value in ended.items() if value}},
    }
