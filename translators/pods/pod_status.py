"""Computes the status of a home pod from the status of its remote pod.

Everything that the remote's kubelet reports is copied, including unknown fields, except:

- ``hostIP`` is the address of the virtual node, which serves logs and exec;
- ``podIP`` and ``podIPs`` are only copied if pods of home can reach them (``--network``), and only
  addresses that a pod can have (`translators.pods.pod_addresses`),
  because an address makes the pod an endpoint of home's Services;
- ``qosClass`` is immutable, ``startTime`` is set once; ``observedGeneration`` is home's, once the
  remote's kubelet acts on the complete spec of the home pod;
- conditions of other writers (readiness gates, PodScheduled) are kept, and Ready includes the
  gates;
- conditions in the bridge's own domain are never copied: the remote can be the home of another
  bridge, which sets the same ones;
- the remote's PodScheduled becomes ``cluster-bridge.io/RemoteScheduled``, from the first time that
  the remote's scheduler finds no node, with the time of the success once it is True;
- a DisruptionTarget of the remote is marked by its message, so that it is removed when another
  remote pod is created; one of home's controllers is kept;
- while the remote pod is deleted and the home pod is not, the home pod is not Ready, because home's
  EndpointSlices cannot show that the remote pod terminates;
- a container that terminated for good stays terminated, even if the remote pod is re-created.

`translate_status` returns the desired status for `merge_patch.status_patch`: None removes a field.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from translators.merge_patch import delete_condition
from translators.object_accessors import Object, is_deleting, metadata
from translators.ownership_labels import DOMAIN, is_bridge_key
from translators.pods import restart_policy_never
from translators.pods.pod_addresses import copied_addresses
from translators.timestamps import format_time, parse_time
from translators.translation_options import Policy

TERMINAL_PHASES = ("Succeeded", "Failed")

#: Set while the remote's scheduler finds no node; PodScheduled itself belongs to home.
CONDITION_REMOTE_SCHEDULED = f"{DOMAIN}/RemoteScheduled"
#: The reason of PodScheduled if the scheduler found no node (PodReasonUnschedulable in
#: k8s.io/api/core/v1). Other reasons, such as SchedulingGated, are not about nodes.
UNSCHEDULABLE = "Unschedulable"
#: Its reason on the home pod once the bridge is about to delete the remote pod for that.
TIMED_OUT = "TimedOut"

#: False, with the reason, while the pod cannot be created in the remote.
CONDITION_ACCEPTED = f"{DOMAIN}/Accepted"
#: Prefix of the message of a DisruptionTarget from the remote.
REMOTE_MESSAGE_PREFIX = "in the remote cluster: "
#: ``status.reason`` of a pod whose remote pod was deleted by a user of the remote.
REASON_REMOTE_POD_DELETED = "RemotePodDeleted"

#: Copied from the remote's status; lists other than conditions are copied whole. With `HOME_FIELDS`
#: these are all fields of a PodStatus (up to v1.36); unknown fields are copied too.
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
#: Fields that the bridge removes when the remote's status no longer has them.
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
#: Conditions that only kubelets write (pkg/kubelet/types, PodConditionsByKubelet); removed at home
#: when the remote pod no longer has them. DisruptionTarget has several writers.
_KUBELET_CONDITIONS = (
    "AllContainersRestarting",
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    "Ready",
)
#: Conditions that are True only if the pod's containers run, or can run.
_RUNNING_CONDITIONS = ("ContainersReady", "PodReadyToStartContainers", "Ready")
#: Containers that the remote's admission adds to a pod, such as a service mesh's: with more, only
#: the statuses of home's own containers are copied.
INJECTED_CONTAINERS_MAX = 16
#: Lists of container statuses, with the corresponding lists of containers.
_STATUSES = {"containerStatuses": "containers", "initContainerStatuses": "initContainers"}


def phase(pod: Object) -> str:
    """The pod's phase; Pending if the status has none."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def is_terminal(pod: Object) -> bool:
    """Whether the pod has Succeeded or Failed; these phases never change."""
    return phase(pod) in TERMINAL_PHASES


def is_observed_by_kubelet(home: Object, remote: Object) -> bool:
    """Whether the remote's kubelet has observed the current remote pod, and its deletion if the
    home pod is being deleted.

    Kubelets from 1.33 on set ``observedGeneration`` in their first status. An older one is
    recognized by ``startTime`` without it, and does not report that it observed a deletion.
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
    """The status of the home pod while ``remote`` exists.

    ``observed``: the remote's kubelet acts on the complete spec of the home pod. ``now`` is the
    time in RFC 3339. ``resize_pending``: the condition of a resize that the remote has not
    accepted.
    """
    remote_status: Object = remote.get("status") or {}
    home_status: Object = home.get("status") or {}
    status: Object = dict.fromkeys(_REMOVABLE)
    excluded = HOME_FIELDS | _ADDRESSES
    status.update({key: value for key, value in remote_status.items() if key not in excluded})
    if policy.network == "flat" and (ips := copied_addresses(remote_status, policy)):
        status["podIP"] = ips[0]
        if remote_status.get("podIPs"):
            status["podIPs"] = [{"ip": ip} for ip in ips]
    status["phase"] = phase(remote)
    if home_status.get("startTime"):
        status["startTime"] = home_status["startTime"]
    if remote_status.get("hostIP"):
        # Only after the pod is scheduled, as a kubelet does.
        status["hostIP"] = policy.node_address
        status["hostIPs"] = [{"ip": policy.node_address}]
    generation = (metadata(home) if observed else {}).get(
        "generation", home_status.get("observedGeneration")
    )
    if generation is not None:
        status["observedGeneration"] = generation
    for field_name in _STATUSES:
        statuses = container_statuses(field_name, home, remote)
        if statuses:
            status[field_name] = statuses
    remote_conditions = {
        c["type"]: c
        for c in [
            *(remote_status.get("conditions") or ()),
            *([resize_pending] if resize_pending else ()),
        ]
        if not is_bridge_key(c["type"])
    }
    status["conditions"] = _conditions(
        home, remote, list(remote_conditions.values()), generation, now
    )
    return status


def not_running_status(home: Object, *, reason: str, message: str, now: str) -> Object:
    """The changed parts of the status of a pod whose remote pod is to be re-created: no running
    container, not Ready, no address. {} if the pod never ran."""
    home_status: Object = home.get("status") or {}
    status: Object = {key: None for key in _ADDRESSES if home_status.get(key)}
    for field_name in _STATUSES:
        if statuses := container_statuses(field_name, home, {}):
            status[field_name] = statuses
    conditions = [
        {**c, "status": "False", "reason": reason, "message": message, "lastTransitionTime": now}
        for c in home_status.get("conditions") or ()
        if c["type"] in _RUNNING_CONDITIONS and c.get("status") == "True"
    ]
    return {**status, "conditions": conditions} if conditions else status


def container_statuses(field_name: str, home: Object, remote: Object) -> list[Object]:
    """The remote's container statuses, except for containers that terminated at home and may not
    restart.

    The API server rejects a status in which such a container runs again (ValidatePodStatusUpdate),
    with all other changes. If a re-created remote pod has no statuses yet, no container runs.
    """
    home_statuses = (home.get("status") or {}).get(field_name) or []
    remote_statuses = (remote.get("status") or {}).get(field_name) or []
    listed = (home.get("spec") or {}).get(_STATUSES[field_name]) or ()
    if len(remote_statuses) > len(listed) + INJECTED_CONTAINERS_MAX:
        names = {container.get("name") for container in listed}
        remote_statuses = [it for it in remote_statuses if it.get("name") in names]
    if not remote_statuses and not is_terminal(remote):
        remote_statuses = [_waiting(status) for status in home_statuses]
    spec = home.get("spec") or {}
    containers = {c.get("name"): c for c in spec.get(_STATUSES[field_name]) or ()}
    policy = str(spec.get("restartPolicy") or "Always")
    is_init = field_name == "initContainerStatuses"
    ended = {
        status.get("name"): status
        for status in home_statuses
        if _exit_code(status) is not None
        and not _may_run_again(status, containers.get(status.get("name")) or {}, policy, is_init)
    }
    return [
        ended.get(status.get("name"), status) if _exit_code(status) is None else status
        for status in remote_statuses
    ]


def _exit_code(status: Object) -> int | None:
    """None while the container has not terminated."""
    terminated = (status.get("state") or {}).get("terminated")
    return None if terminated is None else int(terminated.get("exitCode") or 0)


def _may_run_again(status: Object, container: Object, policy: str, is_init: bool) -> bool:
    own = container.get("restartPolicy")
    if is_init:
        if "Always" in (own, policy):
            return True
    elif container.get("restartPolicyRules"):
        return True  # The remote's API server has already evaluated them.
    else:
        policy = str(own or policy)
    return policy == "Always" or (policy == "OnFailure" and _exit_code(status) != 0)


def _waiting(status: Object) -> Object:
    """The status of a container whose remote pod has not started again."""
    kept = {key: value for key, value in status.items() if key != "containerID"}
    return {
        **kept,
        "ready": False,
        "started": False,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }


def _conditions(
    home: Object, remote: Object, remote_conditions: list[Object], generation: Any, now: str
) -> list[Object]:
    """Home's conditions, updated with the remote's, in a stable order."""
    merged: dict[str, Object] = {
        c["type"]: c for c in (home.get("status") or {}).get("conditions") or ()
    }
    gates = _gates(home)
    remote_types = {condition["type"] for condition in remote_conditions}
    removed = {kind for kind in merged if _is_obsolete(merged[kind], remote_types)}
    for condition in remote_conditions:
        kind = condition["type"]
        if kind in gates:
            continue  # Controllers set home's readiness gates at home.
        if kind == "PodScheduled":
            if restart_policy_never.is_only_own_gate(condition, remote):
                continue
            scheduled = merged.get(kind)
            if scheduled and "observedGeneration" in condition:
                merged[kind] = {**scheduled, "observedGeneration": generation}
            kind = CONDITION_REMOTE_SCHEDULED
            if condition.get("status") == "True" and kind not in merged:
                continue
            before = merged.get(kind) or {}
            if before.get("reason") == TIMED_OUT and condition.get("reason") == UNSCHEDULABLE:
                condition = {**condition, "reason": TIMED_OUT}  # noqa: PLW2901
            same = all(before.get(k) == condition.get(k) for k in ("status", "reason"))
            # Per reason and by the bridge's clock, for `translators.pods.unschedulable_timeout`.
            since = (before.get("lastTransitionTime") if same else None) or now
            condition = {**condition, "type": kind, "lastTransitionTime": since}  # noqa: PLW2901
        elif kind == "DisruptionTarget":
            if kind in merged and not _is_from_remote(merged[kind]):
                continue  # Home's controllers have already set their own.
            message = REMOTE_MESSAGE_PREFIX + str(condition.get("message") or "")
            condition = {**condition, "message": message}  # noqa: PLW2901
        elif kind == "Ready":
            condition = _ready(_not_ready_while_deleted(condition, home, remote), home, merged)  # noqa: PLW2901
        if "observedGeneration" in condition:
            # None if home's API server does not support it for pods.
            condition = {**condition, "observedGeneration": generation}  # noqa: PLW2901
        merged[kind] = condition
    return [
        delete_condition(kind) if kind in removed else condition
        for kind, condition in merged.items()
    ]


def _is_obsolete(condition: Object, remote_types: set[str]) -> bool:
    """Whether a condition at home came from the remote or the bridge, and no longer applies."""
    kind = condition["type"]
    if kind == "DisruptionTarget":
        return kind not in remote_types and _is_from_remote(condition)
    return kind == CONDITION_ACCEPTED or (kind in _KUBELET_CONDITIONS and kind not in remote_types)


def _is_from_remote(condition: Object) -> bool:
    return str(condition.get("message") or "").startswith(REMOTE_MESSAGE_PREFIX)


def _not_ready_while_deleted(ready: Object, home: Object, remote: Object) -> Object:
    """Ready, or not ready since the deletion if only the remote pod is being deleted."""
    if is_deleting(home) or not is_deleting(remote) or ready.get("status") != "True":
        return ready
    # The deletion timestamp includes the grace period.
    deadline = parse_time(metadata(remote)["deletionTimestamp"])
    grace = metadata(remote).get("deletionGracePeriodSeconds") or 0
    with suppress(OverflowError):  # longer than the calendar
        deadline -= timedelta(seconds=grace)
    return {
        **ready,
        "status": "False",
        "reason": REASON_REMOTE_POD_DELETED,
        "message": "the pod is being deleted in the remote cluster",
        "lastTransitionTime": format_time(deadline),
    }


def _gates(home: Object) -> list[str]:
    return [g["conditionType"] for g in (home.get("spec") or {}).get("readinessGates") or ()]


def _ready(condition: Object, home: Object, conditions: dict[str, Object]) -> Object:
    """Ready as a kubelet computes it, from the containers (the remote's condition) and home's
    gates.

    The transition time is that of the last condition that became True; while the pod is not ready,
    the time is kept.
    """
    gates = _gates(home)
    if condition.get("status") != "True" or not gates:
        return condition
    # Times are RFC 3339 in UTC with whole seconds, which sort as text.
    times = [c.get("lastTransitionTime") for c in (condition, *map(conditions.get, gates)) if c]
    latest = max((time for time in times if time), default=None)
    if latest:
        condition = {**condition, "lastTransitionTime": latest}
    unmet = [g for g in gates if conditions.get(g, {}).get("status") != "True"]
    if not unmet:
        return condition
    before = conditions.get("Ready") or {}
    not_ready = {
        **condition,
        "status": "False",
        "reason": "ReadinessGatesNotReady",
        "message": f"readiness gates are not true: {', '.join(unmet)}",
    }
    if before.get("status") == "False" and before.get("lastTransitionTime"):
        not_ready["lastTransitionTime"] = before["lastTransitionTime"]
    return not_ready
