"""Decides what to do for one pod from the state of both clusters.

`plan_actions` is pure; `sync.pods.action_executor` carries out its actions in order. *Gone* means
that the remote has no pod for the home pod:

| home pod            | remote pod               | actions                                        |
|---------------------|--------------------------|------------------------------------------------|
| gone                | present                  | delete the orphan, with the pod's own grace    |
| any                 | of a previous home pod   | delete the orphan                              |
| deleting            | present                  | status; delete with home's grace               |
| deleting            | gone                     | last status; remove the home pod               |
| terminal            | running                  | delete it: a terminal pod does not run again   |
| terminal            | terminal or gone         | nothing                                        |
| skipped             | gone                     | status: available, although nothing runs       |
| rejected            | gone                     | status: the reason                             |
| live                | previous, on a lost node | status: why it waits                           |
| live                | gated                    | mark it as possibly started, remove the gate   |
| live                | present                  | update the remote pod; status                  |
| live                | unschedulable too long   | status; delete it unless it was bound meanwhile|
| live                | deleting                 | status: not Ready, and what happens next       |
| live                | deleting, on a lost node | status; delete the home pod after a wait       |
| live, never ran     | gone                     | create, or Failed if it can never fit          |
| live, ran           | gone, was terminal       | its last status                                |
| live, ran           | gone, lost               | status: not Ready; re-create, or Failed if the |
|                     |                          | restart policy is `Never`                      |
| live, past deadline | gone, or never scheduled | Failed, as by a kubelet                        |
| live, timed out     | gone, never scheduled    | Failed: its controller replaces it elsewhere   |

*Rejected* are pods that ask for what the remote cannot provide
(`translators.pods.remote_pod.rejection_message`).

*Skipped* are pods of DaemonSets under `--daemonsets skip`, and DaemonSet pods that would be
rejected: their DaemonSet counts them as available, because a pod that is pending for ever would
stall the DaemonSet's rolling update on home's own nodes.

A pod that was force-deleted at home terminates in the remote as under a kubelet: with the grace
period of its spec, or what is left of a deletion that was already forwarded (pod_workers.go,
calculateEffectiveGracePeriod).

*Timed out* needs no mark of its own: home's condition records since when the remote finds no node
(`translators.pods.unschedulable_timeout`). So a crash between the deletion and the last status ends
in the same way.

A pod that may have run counts as gone only after the remote's API server has confirmed it
(`ConfirmAbsence`): a stale cache must neither start a pod twice nor declare it lost.
"""

from __future__ import annotations

from sync.base.resource_version import version_of
from sync.pods.actions import (
    Action,
    ConfirmAbsence,
    Create,
    Delete,
    DeleteIfUnbound,
    DeleteOrphan,
    EvictHomePod,
    PodState,
    RemoveHomePod,
    RequeueAfter,
    Ungate,
    Update,
    WriteStatus,
)
from translators import merge_patch
from translators.objects import Object, RemoteUid, is_daemonset_pod, is_deleting, metadata, uid_of
from translators.ownership_labels import has_home_uid, origin_of
from translators.pods import (
    active_deadline,
    kubelet_admission,
    pod_status,
    remote_pod,
    resize_condition,
    restart_policy_never,
    synthetic_status,
    unschedulable_timeout,
    update,
)
from translators.translation_options import Policy

#: ``status.reason`` of a DaemonSet pod that counts as available and does not run.
REASON_SKIPPED = "DaemonSetSkipped"


def plan_actions(state: PodState, policy: Policy, *, now: str) -> list[Action]:
    """The actions for ``state``, in order. ``now`` is the time in RFC 3339."""
    home, remote = state.home, state.remote
    if remote is not None and (home is None or not has_home_uid(remote, uid_of(home))):
        return _delete_orphan(remote) or _wait_for_previous(state, home, now=now)
    if home is None:
        return []
    if is_deleting(home):
        return _terminate(state, home, policy, now=now)
    if pod_status.is_terminal(home):
        return _stop(remote)
    if remote is not None:
        return _follow(state, home, remote, policy, now=now)
    if reason := skip_reason(home, policy):
        return _skip(home, reason, policy, now=now)
    if rejection := remote_pod.rejection_message(home):
        return report_waiting(home, reason="FieldRefused", message=rejection, now=now)
    return _start(state, home, policy, now=now)


# -- which pods run ------------------------------------------------------------------------


def skip_reason(home: Object, policy: Policy) -> str:
    """Why a DaemonSet pod is not run, for its owner; "" for every other pod and for one that runs.

    Most DaemonSets are for home's own nodes (network, storage, log agents), not for a virtual node.
    """
    if not is_daemonset_pod(home):
        return ""
    if policy.daemonsets == "skip":
        return (
            "the bridge does not run pods of DaemonSets (--daemonsets=skip); to keep the DaemonSet "
            "off this node give it a node affinity, to run it join with --daemonsets=run"
        )
    if rejection := remote_pod.rejection_message(home):
        return f"the pod cannot run in the remote cluster: {rejection}"
    return ""


def may_run(home: Object, policy: Policy) -> bool:
    """Whether the pod is to run in the remote. Nothing is watched or copied for other pods."""
    return not skip_reason(home, policy) and not remote_pod.rejection_message(home)


def _is_unfinished(remote: Object, restart_policy: str) -> bool:
    """Whether a remote pod that was, or is being, deleted is to run again.

    Under `Always` a pod never ends by itself: a kubelet sets Failed when the pod is deleted in the
    remote, which home did not ask for.
    """
    if not pod_status.is_terminal(remote):
        return True
    if restart_policy == "Never":
        return False
    failed = pod_status.phase(remote) == "Failed"
    return is_deleting(remote) and (restart_policy == "Always" or failed)


# -- no home pod, or a previous one --------------------------------------------------------


def _delete_orphan(remote: Object) -> list[Action]:
    if is_deleting(remote):
        return []
    origin = origin_of(remote)
    return [DeleteOrphan(RemoteUid(uid_of(remote)), origin.uid if origin else None)]


def _wait_for_previous(state: PodState, home: Object | None, *, now: str) -> list[Action]:
    """Reports that a previous pod of the same name is still terminating on a lost node."""
    on_lost_node = state.eviction_seconds is not None
    if home is None or is_deleting(home) or pod_status.is_terminal(home) or not on_lost_node:
        return []
    message = (
        "the previous pod of this name is being deleted in the remote cluster, on a node that is "
        "not Ready and cannot confirm the deletion; delete that Node if it does not come back"
    )
    return report_waiting(home, reason="RemotePodTerminating", message=message, now=now)


# -- the home pod is being deleted, or terminal ---------------------------------------------


def _terminate(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    if state.remote is not None:
        actions = _status(home, state.remote, policy, now=now)
        home_grace = metadata(home).get("deletionGracePeriodSeconds")
        remote_grace = metadata(state.remote).get("deletionGracePeriodSeconds")
        is_shortened = (
            home_grace is not None and remote_grace is not None and home_grace < remote_grace
        )
        if not is_deleting(state.remote) or is_shortened:
            actions.append(Delete(RemoteUid(uid_of(state.remote)), home_grace))
        return actions
    may_run_unseen = state.create_pending or (
        restart_policy_never.may_have_started(home) and state.last_remote is None
    )
    if may_run_unseen and not state.absence_confirmed:
        return [ConfirmAbsence()]
    return [*_last_status(state, home, policy, now=now), RemoveHomePod()]


def _last_status(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    """The final status of a pod whose remote pod was deleted. A finalizer may keep the home pod,
    and its status must not show Running then."""
    if pod_status.is_terminal(home):
        return []
    last = state.last_remote
    if not metadata(home).get("finalizers") or (last and pod_status.is_terminal(last)):
        return _status(home, last, policy, now=now) if last is not None else []
    # Deleted with a grace period of 0, or before it started: no final status from a kubelet.
    wanted = synthetic_status.terminated_status(home, message="the remote pod was deleted", now=now)
    return _write(home, wanted)


def _stop(remote: Object | None) -> list[Action]:
    if remote is None or is_deleting(remote) or pod_status.is_terminal(remote):
        return []
    return [Delete(RemoteUid(uid_of(remote)), None)]


# -- the remote pod exists -----------------------------------------------------------------


def _follow(
    state: PodState, home: Object, remote: Object, policy: Policy, *, now: str
) -> list[Action]:
    if (
        restart_policy_never.runs_once(home)
        and not is_deleting(remote)
        and not pod_status.is_terminal(remote)
    ):
        marked, gated = (
            restart_policy_never.may_have_started(home),
            restart_policy_never.is_gated(remote),
        )
        if gated or not marked:
            return [Ungate(RemoteUid(uid_of(remote)), marked=marked, gated=gated)]
    updates = [
        it
        for it in needed_updates(home, remote, policy)
        if state.ineffective_updates.get(it.subresource) != it.patch
    ]
    observed = not updates and pod_status.is_observed_by_kubelet(home, remote)
    resize = next((it.patch for it in updates if it.subresource == "resize"), None)
    pending = resize_condition.resize_pending_condition(
        home, resize, state.rejected_resize, now=now
    )
    status = _live_status(home, remote, policy, observed=observed, now=now, resize_pending=pending)
    if is_deleting(remote):
        return [*status, *_evict(state, home, remote)]
    if not unschedulable_timeout.is_unschedulable(remote):
        return [*status, *updates]
    return _wait_for_node(home, remote, policy, status, updates, now=now)


def _wait_for_node(
    home: Object,
    remote: Object,
    policy: Policy,
    status: list[Action],
    updates: list[Update],
    *,
    now: str,
) -> list[Action]:
    """The remote's scheduler finds no node: the pod waits until its deadline or the timeout."""
    until_deadline = active_deadline.deadline_remaining(home, now=now)
    if until_deadline == 0:
        return [*_exceed_deadline(home, now=now), *_stop(remote)]
    actions = [*status, *updates]
    if until_deadline is not None:
        actions.append(RequeueAfter(until_deadline))
    if policy.unschedulable_timeout is None:
        return actions
    until_timeout = unschedulable_timeout.timeout_remaining(home, policy, now=now)
    if until_timeout == 0:
        return [*status, DeleteIfUnbound(RemoteUid(uid_of(remote)), version_of(remote))]
    # None: the timeout counts from the status that is written now.
    wait = policy.unschedulable_timeout if until_timeout is None else until_timeout
    return [*actions, RequeueAfter(wait)]


def _evict(state: PodState, home: Object, remote: Object) -> list[Action]:
    """Deletes the home pod when the node of its terminating remote pod is lost for too long."""
    if state.eviction_seconds is None:
        return []
    if not _is_unfinished(remote, restart_policy_never.restart_policy(home.get("spec") or {})):
        return []
    return [RequeueAfter(state.eviction_seconds)] if state.eviction_seconds else [EvictHomePod()]


def needed_updates(home: Object, remote: Object, policy: Policy) -> list[Update]:
    """The patches that make the remote pod match home's spec and metadata; none for a terminal
    pod."""
    if pod_status.is_terminal(remote):
        return []
    uid = RemoteUid(uid_of(remote))
    patches = update.pod_patches(home, remote, policy)
    return [Update(uid, it.patch, it.subresource) for it in patches]


# -- the remote pod was deleted, or never created --------------------------------------------


def _start(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    restart_policy = restart_policy_never.restart_policy(home.get("spec") or {})
    may_have_started, last = restart_policy_never.may_have_started(home), state.last_remote
    # A pod whose create request has an unknown outcome may still appear: it is created first.
    if not state.create_pending and unschedulable_timeout.is_timed_out(home, last, policy, now=now):
        return _time_out(home, policy, now=now) if state.absence_confirmed else [ConfirmAbsence()]
    if last is None and (state.create_pending or not may_have_started):
        if not state.create_pending and (
            rejection := kubelet_admission.admission_rejection(
                home, state.remote_capacity, state.node
            )
        ):
            return _reject(home, *rejection, now=now)
        return _create(home, now=now)
    if last is not None and not _is_unfinished(last, restart_policy):
        return _status(home, last, policy, now=now)
    if not state.absence_confirmed:
        return [ConfirmAbsence()]
    never_ran = not may_have_started and last is not None and restart_policy_never.is_gated(last)
    if restart_policy != "Never" or never_ran:
        return _create(home, now=now)
    message = (
        "the remote pod no longer exists, its outcome is unknown, "
        "and its restartPolicy, or a container's, is Never"
    )
    wanted = synthetic_status.lost_status(home, reason="RemotePodLost", message=message, now=now)
    return _write(home, wanted, event=("RemotePodLost", message))


def _create(home: Object, *, now: str) -> list[Action]:
    """Creates the remote pod. If the pod ran before, its status shows first that it does not run,
    however long the creation takes."""
    left = active_deadline.deadline_remaining(home, now=now)
    if left == 0:
        return _exceed_deadline(home, now=now)
    actions = [*_write(home, synthetic_status.recreating_status(home, now=now)), Create()]
    # A pod that is blocked for the first time is requeued by the controller, which reports that.
    if left is not None and synthetic_status.is_creation_blocked(home):
        actions.append(RequeueAfter(left))
    return actions


# -- statuses without a remote pod ----------------------------------------------------------


def _skip(home: Object, reason: str, policy: Policy, *, now: str) -> list[Action]:
    """The status with which the pod's DaemonSet continues. The Event is recorded once, and again
    only if the status was lost: the pods of a NotReady Node get Ready False."""
    message = f"this pod does not run, and its DaemonSet counts it as available: {reason}"
    wanted = synthetic_status.skipped_status(home, reason=REASON_SKIPPED, message=message, now=now)
    is_reported = synthetic_status.is_skipped(home, reason=REASON_SKIPPED)
    event = None if is_reported else (REASON_SKIPPED, message)
    return _write(home, wanted, event=event, warning=policy.daemonsets == "run")


def report_waiting(
    home: Object, *, reason: str, message: str, now: str, once_each: bool = False
) -> list[Action]:
    """Reports once that the pod waits: in its status and a condition, and as an Event. With
    ``once_each`` the same reason with another message is no new Event."""
    wanted = synthetic_status.pending_status(home, reason=reason, message=message, now=now)
    is_repeated = once_each and (home.get("status") or {}).get("reason") == reason
    return _write(home, wanted, event=None if is_repeated else (reason, message))


def _exceed_deadline(home: Object, *, now: str) -> list[Action]:
    """Failed, as a kubelet sets it when activeDeadlineSeconds is over."""
    reason, message = active_deadline.REASON, active_deadline.MESSAGE
    wanted = synthetic_status.terminated_status(home, message=message, now=now)
    return _write(home, wanted | {"reason": reason, "message": message}, event=(reason, message))


def _reject(home: Object, reason: str, message: str, *, now: str) -> list[Action]:
    """Failed, as a kubelet sets it when it does not admit a pod."""
    wanted = synthetic_status.rejected_status(home, reason=reason, message=message, now=now)
    return _write(home, wanted, event=(reason, message))


def _time_out(home: Object, policy: Policy, *, now: str) -> list[Action]:
    """Failed, as a disruption, which a Job need not count."""
    reason = unschedulable_timeout.REASON_REMOTE_UNSCHEDULABLE
    message = unschedulable_timeout.timeout_message(home, policy)
    wanted = synthetic_status.lost_status(home, reason=reason, message=message, now=now)
    return _write(home, wanted, event=(reason, message))


# -- statuses from the remote pod -----------------------------------------------------------


def _status(home: Object, remote: Object, policy: Policy, *, now: str) -> list[Action]:
    if pod_status.is_terminal(home):
        return []
    observed = pod_status.is_observed_by_kubelet(home, remote)
    observed = observed and not needed_updates(home, remote, policy)
    return _live_status(home, remote, policy, observed=observed, now=now)


def _live_status(
    home: Object,
    remote: Object,
    policy: Policy,
    *,
    observed: bool,
    now: str,
    resize_pending: Object | None = None,
) -> list[Action]:
    """The status of a home pod that is not terminal. ``observed``: the remote's kubelet has acted
    on the whole spec of the home pod. ``resize_pending``: the condition of a rejected resize."""
    wanted = pod_status.translate_status(
        home, remote, policy, now=now, observed=observed, resize_pending=resize_pending
    )
    event = None
    restart_policy = restart_policy_never.restart_policy(home.get("spec") or {})
    is_lost = is_deleting(remote) and not is_deleting(home)
    is_lost = is_lost and _is_unfinished(remote, restart_policy)
    if is_lost and not unschedulable_timeout.is_timed_out(home, remote, policy, now=now):
        message = "deleted in the remote cluster"
        if restart_policy != "Never":
            message += "; it is re-created there after its deletion"
        wanted["reason"], wanted["message"] = pod_status.REASON_REMOTE_POD_DELETED, message
        if pod_status.is_terminal(remote):
            # A terminal phase could not be taken back.
            wanted["phase"] = pod_status.phase(home)
        if (home.get("status") or {}).get("reason") != pod_status.REASON_REMOTE_POD_DELETED:
            event = (pod_status.REASON_REMOTE_POD_DELETED, message)
    return _write(home, wanted, event=event)


def _write(
    home: Object, wanted: Object, event: tuple[str, str] | None = None, *, warning: bool = True
) -> list[Action]:
    """Writes what differs from the home pod's status; nothing, and no Event, if nothing does."""
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=event, warning=warning)] if patch else []
