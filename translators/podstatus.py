"""The status that a home pod should have, from that of its remote pod.

Everything that the remote's kubelet says is carried, fields that this version does not know
included, but for what is home's own:

- ``hostIP`` is the virtual node's address, where clients ask for logs and exec;
- ``qosClass`` is immutable, ``startTime`` is set once, ``observedGeneration`` is home's;
- conditions of other writers (readiness gates, PodScheduled) stay, and Ready counts the gates;
- a container that ended for good stays ended, also when the remote pod had to be made again.

A map that comes out is what `diff.status_patch` compares: None means "must not be there".
"""

from __future__ import annotations

from typing import Any

from translators.diff import absent
from translators.naming import DOMAIN
from translators.policy import Policy
from translators.types import Object, metadata

TERMINAL = ("Succeeded", "Failed")

#: Told at home while the remote's scheduler finds no node: PodScheduled itself is home's, and
#: stays True.
CONDITION_REMOTE_SCHEDULED = f"{DOMAIN}/RemoteScheduled"

#: Set at home by its API server or scheduler, never taken from the remote.
_HOME_ONLY = frozenset(
    {
        "extendedResourceClaimStatus",
        "hostIP",
        "hostIPs",
        "nominatedNodeName",
        "observedGeneration",
        "qosClass",
        "resourceClaimStatuses",
    }
)
#: Ours to remove when the remote's status has them no more.
_REMOVABLE = (
    "allocatedResources",
    "ephemeralContainerStatuses",
    "message",
    "podIP",
    "podIPs",
    "reason",
    "resize",
    "resources",
)
#: Conditions that only kubelets write (pkg/kubelet/types, PodConditionsByKubelet): one that the
#: remote's has taken back goes at home too. DisruptionTarget has several writers.
_KUBELETS = (
    "AllContainersRestarting",
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    "Ready",
)
#: Lists of container statuses, and the lists of containers that they speak of.
_STATUSES = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}


def phase(pod: Object) -> str:
    """The pod's phase; Pending where nothing was said yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminal(pod: Object) -> bool:
    """Whether the pod has ended for good: a terminal phase never changes."""
    return phase(pod) in TERMINAL


def to_home(home: Object, remote: Object, policy: Policy) -> Object:
    """The status of the home pod while ``remote`` stands for it."""
    theirs: Object = remote.get("status") or {}
    ours: Object = home.get("status") or {}
    status: Object = dict.fromkeys(_REMOVABLE)
    status.update({key: value for key, value in theirs.items() if key not in _HOME_ONLY})
    status["phase"] = phase(remote)
    if ours.get("startTime"):
        status["startTime"] = ours["startTime"]
    if theirs.get("hostIP"):
        # Only once the pod has a machine, as a kubelet does.
        status["hostIP"] = policy.node_address
        status["hostIPs"] = [{"ip": policy.node_address}]
    generation = metadata(home).get("generation")
    if generation is not None:
        status["observedGeneration"] = generation
    for field_name in _STATUSES:
        found = _container_statuses(field_name, home, remote)
        if found:
            status[field_name] = found
    status["conditions"] = _conditions(home, theirs, generation)
    return status


def _container_statuses(field_name: str, home: Object, remote: Object) -> list[Object]:
    """The remote's, but for containers that ended at home and may not run again: the API server
    refuses a status in which one of them does (ValidatePodStatusUpdate), and with it all the
    rest. Where a remote pod made anew has none yet, none is running."""
    ours = (home.get("status") or {}).get(field_name) or []
    theirs = (remote.get("status") or {}).get(field_name) or []
    if not theirs and not is_terminal(remote):
        theirs = [_waiting(status) for status in ours]
    spec = home.get("spec") or {}
    containers = {c.get("name"): c for c in spec.get(_STATUSES[field_name]) or ()}
    policy = str(spec.get("restartPolicy") or "Always")
    is_init = field_name == "initContainerStatuses"
    ended = {
        status.get("name"): status
        for status in ours
        if _exit_code(status) is not None
        and not _may_run_again(status, containers.get(status.get("name")) or {}, policy, is_init)
    }
    return [
        ended.get(status.get("name"), status) if _exit_code(status) is None else status
        for status in theirs
    ]


def _exit_code(status: Object) -> int | None:
    """None while the container has not terminated."""
    terminated = (status.get("state") or {}).get("terminated")
    return None if terminated is None else int(terminated.get("exitCode") or 0)


def _may_run_again(status: Object, container: Object, policy: str, is_init: bool) -> bool:
    """Whether a terminated container may be anything else, as the API server has it."""
    own = container.get("restartPolicy")
    if is_init:
        if "Always" in (own, policy):
            return True
    elif container.get("restartPolicyRules"):
        return True  # The remote's API server has judged by them already.
    else:
        policy = str(own or policy)
    return policy == "Always" or (policy == "OnFailure" and _exit_code(status) != 0)


def _waiting(status: Object) -> Object:
    """The status of a container before its remote pod has been started once more."""
    kept = {key: value for key, value in status.items() if key != "containerID"}
    return {
        **kept,
        "ready": False,
        "started": False,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }


def _conditions(home: Object, theirs: Object, generation: Any) -> list[Object]:
    """Home's conditions with the remote's put in their places, in a stable order."""
    ours = (home.get("status") or {}).get("conditions") or []
    merged: dict[str, Object] = {c["type"]: c for c in ours}
    gates = _gates(home)
    for condition in theirs.get("conditions") or ():
        kind = condition["type"]
        if kind in gates:
            continue  # Whoever opens home's gates does so at home.
        if kind == "PodScheduled":
            kind = CONDITION_REMOTE_SCHEDULED
            if condition.get("status") == "True" and kind not in merged:
                continue
            condition = {**condition, "type": kind}  # noqa: PLW2901
        elif kind == "Ready":
            condition = _ready(condition, home, merged)  # noqa: PLW2901
        if "observedGeneration" in condition:
            # None where home's API server knows none of pods, and would not store it.
            condition = {**condition, "observedGeneration": generation}  # noqa: PLW2901
        merged[kind] = condition
    said = {condition["type"] for condition in theirs.get("conditions") or ()}
    return [
        absent(kind) if kind in _KUBELETS and kind not in said else condition
        for kind, condition in merged.items()
    ]


def _gates(home: Object) -> list[str]:
    return [g["conditionType"] for g in (home.get("spec") or {}).get("readinessGates") or ()]


def _ready(condition: Object, home: Object, conditions: dict[str, Object]) -> Object:
    """Ready as a kubelet computes it: the containers' readiness and home's readiness gates.

    The remote pod has no gates, so its own Ready speaks of its containers alone. A pod is ready
    since the last of all these became true. While it is not, the time of the transition stays.
    """
    gates = _gates(home)
    if condition.get("status") != "True" or not gates:
        return condition
    # Times are RFC 3339 in UTC with whole seconds, which sort as text.
    times = [c.get("lastTransitionTime") for c in (condition, *map(conditions.get, gates)) if c]
    latest = max((time for time in times if time), default=None)
    if latest:
        condition = {**condition, "lastTransitionTime": latest}
    closed = [g for g in gates if conditions.get(g, {}).get("status") != "True"]
    if not closed:
        return condition
    before = conditions.get("Ready") or {}
    held = {
        **condition,
        "status": "False",
        "reason": "ReadinessGatesNotReady",
        "message": f"readiness gates are not true: {', '.join(closed)}",
    }
    if before.get("status") == "False" and before.get("lastTransitionTime"):
        held["lastTransitionTime"] = before["lastTransitionTime"]
    return held


def pending(*, reason: str, message: str, clear_start: bool) -> Object:
    """The status of a pod that cannot be made in the remote for now.

    ``reason`` is what `kubectl get pods` shows. ``clear_start`` takes back the mark that the pod
    was handed to the remote (`handed_over`), after a refusal that says it was not.
    """
    status: Object = {"phase": "Pending", "reason": reason, "message": message}
    if clear_start:
        status["startTime"] = None
    return status


def handed_over(*, now: str) -> Object:
    """The mark, written before the remote pod is made, that the pod may have run from now on.

    ``now`` is the time in RFC 3339. It is ``startTime``: "when the object was acknowledged by the
    kubelet" (k8s.io/api/core/v1 PodStatus).
    """
    return {"startTime": now}


def was_handed_over(home: Object) -> bool:
    """Whether the pod may have run in the remote before."""
    return bool((home.get("status") or {}).get("startTime"))


def failed(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The status of a pod that was lost in the remote and must not run again.

    Containers that had not terminated are said to have, with exit code 137, as a kubelet says of
    containers that it finds gone. ``now`` is the time in RFC 3339.
    """
    ours = home.get("status") or {}
    status: Object = {"phase": "Failed", "reason": reason, "message": message}
    for field_name in ("containerStatuses", "initContainerStatuses"):
        if ours.get(field_name):
            status[field_name] = [_ended(item, message, now) for item in ours[field_name]]
    conditions = [
        {**c, "status": "False", "reason": "PodFailed", "lastTransitionTime": now}
        if c["type"] in ("Ready", "ContainersReady") and c.get("status") != "False"
        else c
        for c in ours.get("conditions") or ()
    ]
    if conditions:
        status["conditions"] = conditions
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
