"""The status of a home pod of which no remote pod speaks: it waits, or has ended.

What the bridge says here it says by itself, in the fields and conditions in which a kubelet would.
As in `translators.pods.status`, what comes out is for `diff.status_patch`.
"""

from __future__ import annotations

from translators.merge_patch import delete_condition
from translators.objects import Object, condition_of, metadata
from translators.pods import status as podstatus
from translators.pods.status import CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED

#: Conditions that make a pod available to its controller, True as a kubelet sets them.
_AVAILABLE = ("Initialized", "ContainersReady", "Ready")
#: Conditions of a pod that a remote pod stood for before, under other options of the bridge.
_OF_REMOTE_POD = (CONDITION_REMOTE_SCHEDULED, "PodReadyToStartContainers")
#: Fields of the status that only a pod with containers has.
_OF_CONTAINERS = (
    "containerStatuses",
    "ephemeralContainerStatuses",
    "initContainerStatuses",
    "podIP",
    "podIPs",
    "resources",
)


def pending_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that cannot be made in the remote for now. One that ran before is not
    Ready and has no address, so that no Service leads to it.

    ``reason`` is what `kubectl get pods` shows. ``now`` is the time in RFC 3339.
    """
    before = condition_of(home, CONDITION_ACCEPTED)
    accepted = {
        "type": CONDITION_ACCEPTED,
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": before.get("lastTransitionTime") or now,
    }
    stopped = podstatus.not_running_status(home, reason=reason, message=message, now=now)
    return {
        **stopped,
        "phase": "Pending",
        "reason": reason,
        "message": message,
        "conditions": [accepted, *stopped.get("conditions", ())],
    }


def recreating_status(home: Object, *, now: str) -> Object:
    """The status of a pod that ran, whose remote pod is gone, and which is created again there:
    written before that, as it may not succeed. ``now`` is the time in RFC 3339."""
    message = "the remote pod is gone, and is created again"
    reason = podstatus.REASON_REMOTE_POD_DELETED
    found = podstatus.not_running_status(home, reason=reason, message=message, now=now)
    if not found:
        return {}
    return {**found, "phase": "Pending"}


def skipped_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a DaemonSet's pod that does not run and counts as available.

    The DaemonSet controller counts a pod as available while its Ready condition is True
    (IsPodAvailable in pkg/api/v1/pod), and a pod that is not takes part of maxUnavailable: a node
    without one would stall every rolling update of the DaemonSet on home's own nodes. So Ready is
    True, readiness gates included: whoever opens them waits for an address, and there is none.

    The Accepted condition, ``reason`` and ``message`` state that nothing runs. There is no pod IP,
    so that no Service gets an endpoint, and no container status, because no container exists.
    startTime is left alone: it marks a pod that may have run (`translators.pods.run_once`). ``now`` is the
    time in RFC 3339.
    """
    ours: Object = home.get("status") or {}
    known = {condition["type"]: condition for condition in ours.get("conditions") or ()}
    accepted = {"type": CONDITION_ACCEPTED, "status": "False", "reason": reason, "message": message}
    true = [{"type": kind, "status": "True", "reason": reason} for kind in _AVAILABLE]
    if "PodScheduled" not in known:  # Of a pod that was bound by hand.
        true.append({"type": "PodScheduled", "status": "True"})
    conditions = [
        {**condition, "lastTransitionTime": _since(condition, known, now)}
        for condition in (accepted, *true)
    ]
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
    """Whether the status of the pod has stated already that it is skipped for ``reason``."""
    status: Object = home.get("status") or {}
    accepted = condition_of(home, CONDITION_ACCEPTED)
    return status.get("phase") == "Running" and accepted.get("reason") == reason


def _since(condition: Object, known: dict[str, Object], now: str) -> str:
    """Since when the condition has its status."""
    before = known.get(condition["type"]) or {}
    same = before.get("status") == condition["status"]
    return str((before.get("lastTransitionTime") if same else None) or now)


def is_creation_blocked(home: Object) -> bool:
    """Whether the pod waits since the last attempt to make it (`pending`)."""
    return bool(condition_of(home, CONDITION_ACCEPTED))


def creation_blocked_message(home: Object) -> str:
    """Why the pod is not in the remote, for people: the Accepted condition's reason and message;
    "" where it has none."""
    accepted = condition_of(home, CONDITION_ACCEPTED)
    said = (accepted.get("reason"), accepted.get("message"))
    return ": ".join(str(part) for part in said if part)


def lost_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that was lost in the remote and must not run again: `stopped`, and why.
    ``now`` is the time in RFC 3339."""
    status = terminated_status(home, message=message, now=now) | {
        "reason": reason,
        "message": message,
    }
    if not condition_of(home, "DisruptionTarget"):
        # As the garbage collector says of pods whose node is gone: a Job need not count it.
        target = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": now}
        status["conditions"].append({**target, "reason": reason, "message": message})
    return status


def terminated_status(home: Object, *, message: str, now: str) -> Object:
    """The status of a pod of which nothing runs any more, and nobody saw how it ended.

    Containers that had not terminated are said to have, with exit code 137, as a kubelet says of
    containers that it finds gone; ``message`` says where they are. ``now`` is the time in RFC 3339.
    """
    ours = home.get("status") or {}
    status: Object = {"phase": "Failed"}
    for field_name in ("containerStatuses", "initContainerStatuses"):
        if ours.get(field_name):
            status[field_name] = [_ended(item, message, now) for item in ours[field_name]]
    status["conditions"] = [
        {**c, "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
        if c["type"] in ("Ready", "ContainersReady") and c.get("status") != "False"
        else c
        for c in ours.get("conditions") or ()
    ]
    return status


def rejected_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that is not taken and never will be (`translators.pods.kubelet_admission`), as a kubelet
    writes it (rejectPod in pkg/kubelet/kubelet.go). ``now`` is the time in RFC 3339."""
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
