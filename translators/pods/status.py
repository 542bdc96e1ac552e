"""The status that a home pod should have, from that of its remote pod.

Everything that the remote's kubelet says is carried, fields that this version does not know
included, but for what is home's own:

- ``hostIP`` is the virtual node's address, where clients ask for logs and exec;
- ``podIP`` and ``podIPs`` are told only where home can reach them (``policy.network``): an address
  makes the pod an endpoint of home's Services;
- ``qosClass`` is immutable, ``startTime`` is set once; ``observedGeneration`` is home's, told once
  the remote's kubelet acts on all that home's spec says;
- conditions of other writers (readiness gates, PodScheduled) stay, and Ready counts the gates;
- what the remote's scheduler says is a condition of ours, from when it first finds no node: a pod
  that is placed at once costs no write for it. True, it stays, with the time of the success;
- a DisruptionTarget of the remote is marked as such, so that it goes when another remote pod stands
  for the home pod; one that home's own controllers set stays as it is;
- a remote pod that is being deleted while home's lives is not Ready: home's own endpoints cannot
  see that it is going;
- a container that ended for good stays ended, also when the remote pod had to be made again.

A map that comes out is what `diff.status_patch` compares: None means "must not be there".
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from translators.identity import DOMAIN
from translators.merge_patch import delete_condition
from translators.objects import Object, is_deleting, metadata
from translators.pods import run_once
from translators.timestamps import format_time, parse_time
from translators.translation_policy import Policy

TERMINAL_PHASES = ("Succeeded", "Failed")

#: Told at home while the remote's scheduler finds no node: PodScheduled itself is home's, and
#: stays True.
CONDITION_REMOTE_SCHEDULED = f"{DOMAIN}/RemoteScheduled"

#: False at home while the pod cannot be made in the remote, with the reason; gone when it is made.
CONDITION_ACCEPTED = f"{DOMAIN}/Accepted"
#: Begins the message of a DisruptionTarget that comes from the remote.
REMOTE_MESSAGE_PREFIX = "in the remote cluster: "
#: ``status.reason`` of a pod whose remote pod somebody deleted there; it will be made again.
REASON_REMOTE_POD_DELETED = "RemotePodDeleted"

#: Carried whole from the remote's status; all lists but the conditions as they are. With
#: `HOME_ONLY` this decides every field of a PodStatus (to v1.36); unknown ones are carried too.
REMOTE_FIELDS = frozenset(
    {
        "allocatedResources",
        "conditions",
        "containerStatuses",
        "ephemeralContainerStatuses",
        "initContainerStatuses",
        "message",
        "phase",
        "podIP",
        "podIPs",
        "reason",
        "resize",
        "resources",
        "startTime",
        "volumeHealth",
    }
)
#: Set at home by its API server or scheduler, or computed here; never taken from the remote.
HOME_FIELDS = frozenset(
    {
        "extendedResourceClaimStatus",
        "hostIP",
        "hostIPs",
        "nodeAllocatableResourceClaimStatuses",
        "nominatedNodeName",
        "observedGeneration",
        "qosClass",
        "resourceClaimStatuses",
    }
)
_ADDRESSES = frozenset({"podIP", "podIPs"})
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
#: Conditions that are True only while the pod's containers run, or can.
_RUNNING = ("ContainersReady", "PodReadyToStartContainers", "Ready")
#: Lists of container statuses, and the lists of containers that they speak of.
_STATUSES = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}


def phase(pod: Object) -> str:
    """The pod's phase; Pending where nothing was said yet."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminal(pod: Object) -> bool:
    """Whether the pod has ended for good: a terminal phase never changes."""
    return phase(pod) in TERMINAL_PHASES


def is_observed_by_kubelet(home: Object, remote: Object) -> bool:
    """Whether the remote's kubelet has seen the remote pod as it is now, and its deletion where
    home's is being deleted.

    A kubelet that knows ``observedGeneration`` (from 1.33 on) has it in its first status; one that
    does not is known by a ``startTime`` without it, and does not tell that it saw a deletion.
    """
    status = remote.get("status") or {}
    observed = status.get("observedGeneration")
    if observed is None:
        return bool(status.get("startTime")) and not is_deleting(home)
    if is_deleting(home) and not is_deleting(remote):
        return False
    return bool(observed >= (metadata(remote).get("generation") or 0))


def translate_status(
    home: Object,
    remote: Object,
    policy: Policy,
    *,
    now: str,
    observed: bool = True,
    resize_pending: Object | None = None,
) -> Object:
    """The status of the home pod while ``remote`` stands for it. ``acted``: the remote has done
    all that home's spec says, so that home's generation counts as observed. ``now`` is the time in
    RFC 3339. ``pending``: the condition of a resize that the remote has not taken, which its own
    kubelet knows nothing of (`translators.pods.resize_condition`)."""
    theirs: Object = remote.get("status") or {}
    ours: Object = home.get("status") or {}
    status: Object = dict.fromkeys(_REMOVABLE)
    unsaid = HOME_FIELDS if policy.network == "flat" else HOME_FIELDS | _ADDRESSES
    status.update({key: value for key, value in theirs.items() if key not in unsaid})
    status["phase"] = phase(remote)
    if ours.get("startTime"):
        status["startTime"] = ours["startTime"]
    if theirs.get("hostIP"):
        # Only once the pod has a machine, as a kubelet does.
        status["hostIP"] = policy.node_address
        status["hostIPs"] = [{"ip": policy.node_address}]
    generation = (metadata(home) if observed else {}).get(
        "generation", ours.get("observedGeneration")
    )
    if generation is not None:
        status["observedGeneration"] = generation
    for field_name in _STATUSES:
        found = container_statuses(field_name, home, remote)
        if found:
            status[field_name] = found
    said = {
        c["type"]: c
        for c in [*(theirs.get("conditions") or ()), *([resize_pending] if resize_pending else ())]
    }
    status["conditions"] = _conditions(home, remote, list(said.values()), generation, now)
    return status


def not_running_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The parts of the status of a pod whose remote pod is gone and is to be created again: no
    container runs, it is not Ready, and it has no address. {} for a pod that never ran. ``now`` is
    the time in RFC 3339."""
    ours: Object = home.get("status") or {}
    status: Object = {key: None for key in _ADDRESSES if ours.get(key)}
    for field_name in _STATUSES:
        if found := container_statuses(field_name, home, {}):
            status[field_name] = found
    conditions = [
        {**c, "status": "False", "reason": reason, "message": message, "lastTransitionTime": now}
        for c in ours.get("conditions") or ()
        if c["type"] in _RUNNING and c.get("status") == "True"
    ]
    return {**status, "conditions": conditions} if conditions else status


def container_statuses(field_name: str, home: Object, remote: Object) -> list[Object]:
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


def _conditions(
    home: Object, remote: Object, theirs: list[Object], generation: Any, now: str
) -> list[Object]:
    """Home's conditions with ``theirs``, the remote's, put in their places, in a stable order."""
    merged: dict[str, Object] = {
        c["type"]: c for c in (home.get("status") or {}).get("conditions") or ()
    }
    gates = _gates(home)
    said = {condition["type"] for condition in theirs}
    over = {kind for kind in merged if _is_over(merged[kind], said)}
    for condition in theirs:
        kind = condition["type"]
        if kind in gates:
            continue  # Whoever opens home's gates does so at home.
        if kind == "PodScheduled":
            if run_once.is_only_own_gate(condition, remote):
                continue
            ours = merged.get(kind)
            if ours and "observedGeneration" in condition:
                merged[kind] = {**ours, "observedGeneration": generation}
            kind = CONDITION_REMOTE_SCHEDULED
            if condition.get("status") == "True" and kind not in merged:
                continue
            before = merged.get(kind) or {}
            same = all(before.get(k) == condition.get(k) for k in ("status", "reason"))
            # By our clock, and for each reason: `translators.pods.unschedulable_timeout` counts from it.
            since = (before.get("lastTransitionTime") if same else None) or now
            condition = {**condition, "type": kind, "lastTransitionTime": since}  # noqa: PLW2901
        elif kind == "DisruptionTarget":
            if kind in merged and not _is_remotes(merged[kind]):
                continue  # Home's own has been acted on already.
            message = REMOTE_MESSAGE_PREFIX + str(condition.get("message") or "")
            condition = {**condition, "message": message}  # noqa: PLW2901
        elif kind == "Ready":
            condition = _ready(_going(condition, home, remote), home, merged)  # noqa: PLW2901
        if "observedGeneration" in condition:
            # None where home's API server knows none of pods, and would not store it.
            condition = {**condition, "observedGeneration": generation}  # noqa: PLW2901
        merged[kind] = condition
    return [
        delete_condition(kind) if kind in over else condition for kind, condition in merged.items()
    ]


def _is_over(condition: Object, said: set[str]) -> bool:
    """Whether a condition at home is the remote's or ours, and is taken back."""
    kind = condition["type"]
    if kind == "DisruptionTarget":
        return kind not in said and _is_remotes(condition)
    return kind == CONDITION_ACCEPTED or (kind in _KUBELETS and kind not in said)


def _is_remotes(condition: Object) -> bool:
    return str(condition.get("message") or "").startswith(REMOTE_MESSAGE_PREFIX)


def _going(ready: Object, home: Object, remote: Object) -> Object:
    """Ready, which a pod that is deleted in the remote alone is not: since its deletion."""
    if is_deleting(home) or not is_deleting(remote) or ready.get("status") != "True":
        return ready
    return {
        **ready,
        "status": "False",
        "reason": REASON_REMOTE_POD_DELETED,
        "message": "the pod is being deleted in the remote cluster",
        "lastTransitionTime": _deleted_at(remote),
    }


def _deleted_at(pod: Object) -> str:
    """When the deletion was asked for: the timestamp in the metadata is when the grace is over."""
    meta = metadata(pod)
    over = parse_time(meta["deletionTimestamp"])
    asked = over - timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
    return format_time(asked)


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
