"""Decides what to do for one pod from the state of both clusters.

`plan_actions` is pure; `sync.pods.action_executor` carries out its actions in order.

*Gone* means that the cluster has no such pod; a *lost* node is one that cannot confirm the deletion
of its pods (`sync.pods.pod_controller`):

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
| live, ran           | gone, outcome unknown    | status: not Ready; re-create, or Failed if the |
|                     |                          | restart policy is ``Never``                    |
| live, past deadline | gone, or never scheduled | Failed, as by a kubelet                        |
| live, timed out     | gone, never scheduled    | Failed: its controller replaces it elsewhere   |

*Rejected* are pods that ask for what the remote cannot provide
(`translators.pods.remote_pod.rejection_message`).

*Skipped* are pods of DaemonSets under ``--daemonsets skip``, and DaemonSet pods that would be
rejected: their DaemonSet counts them as available, because a pod that is pending for ever would
stall the DaemonSet's rolling update on home's own nodes.

A pod that was force-deleted at home terminates in the remote as under a kubelet: with the grace
period of its spec, or what is left of a deletion that was already forwarded (pod_workers.go,
calculateEffectiveGracePeriod).

Whether a pod is *timed out* follows from home's condition, which records since when the remote's
scheduler finds no node, and that the remote pod is deleted for that
(`translators.pods.unschedulable_timeout`). So a crash between the deletion and the last status
changes nothing.

A pod that may have run counts as gone only after the remote's API server has confirmed it
(`ConfirmAbsence`): a stale cache must neither start a pod twice nor declare it lost. The same
applies to the removal of any home pod while the cache of remote pods has skipped objects.
"""

from __future__ import annotations

from dataclasses import dataclass

from sync.base.identity_cache import CACHED_SPECS, IdentityCache
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
from sync.references.content_digest import digest
from translators import merge_patch
from translators.object_accessors import (
    Object,
    RemoteUid,
    is_daemonset_pod,
    is_deleting,
    metadata,
    uid_of,
)
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
    if home is None:
        return [] if remote is None else _delete_orphan(remote)
    planner = _Planner(home, state, policy, now)
    if remote is not None and not has_home_uid(remote, uid_of(home)):
        return _delete_orphan(remote) or planner.wait_for_previous()
    if is_deleting(home):
        return planner.terminate()
    if pod_status.is_terminal(home):
        return _stop(remote)
    if remote is not None:
        return planner.follow(remote)
    if reason := skip_reason(home, policy):
        return planner.skip(reason)
    if rejection := rejection_message(home):
        return report_waiting(home, reason="FieldRefused", message=rejection, now=now)
    return planner.start()


def rejection_message(home: Object) -> str:
    """As `translators.pods.remote_pod.rejection_message`, for a stored pod."""
    return _rejection_of_spec(home.get("spec") or _NO_SPEC)


_NO_SPEC: Object = {}
_rejection_of_spec = IdentityCache(
    # All rules about rejected fields are about the spec.
    lambda spec: remote_pod.rejection_message({"spec": spec}),
    maxsize=CACHED_SPECS,
)


def skip_reason(home: Object, policy: Policy) -> str:
    """The reason, for its owner, why a DaemonSet pod does not run; "" if it may, and for other
    pods."""
    if not is_daemonset_pod(home):
        return ""
    if policy.daemonsets == "skip":
        return (
            "the bridge does not run pods of DaemonSets (--daemonsets=skip); to keep the DaemonSet "
            "off this node give it a node affinity, to run it join with --daemonsets=run"
        )
    if rejection := rejection_message(home):
        return f"the pod cannot run in the remote cluster: {rejection}"
    return ""


def may_run(home: Object, policy: Policy) -> bool:
    """Whether the bridge runs the pod in the remote. It watches and copies nothing for others."""
    return not skip_reason(home, policy) and not rejection_message(home)


def needed_updates(home: Object, remote: Object, policy: Policy) -> list[Update]:
    """The patches that make the remote pod match home's spec and metadata; none for a terminal
    pod."""
    if pod_status.is_terminal(remote):
        return []
    uid = RemoteUid(uid_of(remote))
    patches = update.pod_patches(home, remote, policy)
    return [Update(uid, it.patch, it.subresource) for it in patches]


def report_waiting(
    home: Object, *, reason: str, message: str, now: str, once_each: bool = False
) -> list[Action]:
    """Reports once that the pod waits: in its status and a condition, and as an Event. With
    ``once_each``, another message with the same reason is no new Event."""
    wanted = synthetic_status.pending_status(home, reason=reason, message=message, now=now)
    is_repeated = once_each and (home.get("status") or {}).get("reason") == reason
    return _write(home, wanted, event=None if is_repeated else (reason, message))


def _is_unfinished(remote: Object, restart_policy: str) -> bool:
    """Whether a remote pod that was, or is being, deleted has to run again. Even under `Always` the
    kubelet sets Failed on a pod whose deletion home did not request."""
    if not pod_status.is_terminal(remote):
        return True
    if restart_policy == "Never":
        return False
    failed = pod_status.phase(remote) == "Failed"
    return is_deleting(remote) and (restart_policy == "Always" or failed)


def _delete_orphan(remote: Object) -> list[Action]:
    if is_deleting(remote):
        return []
    origin = origin_of(remote)
    return [DeleteOrphan(RemoteUid(uid_of(remote)), origin.uid if origin else None)]


def _stop(remote: Object | None) -> list[Action]:
    if remote is None or is_deleting(remote) or pod_status.is_terminal(remote):
        return []
    return [Delete(RemoteUid(uid_of(remote)), None)]


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans for a pod that exists at home."""

    home: Object
    state: PodState
    policy: Policy
    now: str

    @property
    def _restart_policy(self) -> str:
        return restart_policy_never.restart_policy(self.home.get("spec") or {})

    def wait_for_previous(self) -> list[Action]:
        """Reports that a previous pod of the same name still terminates on a lost node."""
        on_lost_node = self.state.eviction_seconds is not None
        if is_deleting(self.home) or pod_status.is_terminal(self.home) or not on_lost_node:
            return []
        message = (
            "the previous pod of this name is being deleted in the remote cluster, on a node that "
            "is not Ready and cannot confirm the deletion; delete that Node if it does not come "
            "back"
        )
        reason = "RemotePodTerminating"
        return report_waiting(self.home, reason=reason, message=message, now=self.now)

    # -- the home pod is being deleted -----------------------------------------------------

    def terminate(self) -> list[Action]:
        home, remote, last = self.home, self.state.remote, self.state.last_remote
        if remote is not None:
            actions = self._status(remote)
            # 0 of a forced deletion would remove the remote pod while its containers run.
            home_grace = metadata(home).get("deletionGracePeriodSeconds") or None
            remote_grace = metadata(remote).get("deletionGracePeriodSeconds")
            is_shortened = (
                home_grace is not None and remote_grace is not None and home_grace < remote_grace
            )
            if not is_deleting(remote) or is_shortened:
                actions.append(Delete(RemoteUid(uid_of(remote)), home_grace))
            return actions
        may_exist = self.state.create_pending or (
            last is None
            and (restart_policy_never.may_have_started(home) or not self.state.is_cache_complete)
        )
        if may_exist and not self.state.absence_confirmed:
            return [ConfirmAbsence()]
        return [*self._last_status(), RemoveHomePod()]

    def _last_status(self) -> list[Action]:
        """The final status of a home pod without remote pod; a finalizer may keep the home pod."""
        home, last = self.home, self.state.last_remote
        if pod_status.is_terminal(home):
            return []
        if not metadata(home).get("finalizers") or (last and pod_status.is_terminal(last)):
            return self._status(last) if last is not None else []
        # Deleted with a grace period of 0, or before it started: no final status from a kubelet.
        message = "the remote pod was deleted"
        return _write(home, synthetic_status.terminated_status(home, message=message, now=self.now))

    # -- the remote pod exists -------------------------------------------------------------

    def follow(self, remote: Object) -> list[Action]:
        """Ungates or updates the remote pod of a live home pod, and writes home's status."""
        home, uid = self.home, RemoteUid(uid_of(remote))
        is_ended = is_deleting(remote) or pod_status.is_terminal(remote)
        if restart_policy_never.runs_once(home) and not is_ended:
            marked = restart_policy_never.may_have_started(home)
            gated = restart_policy_never.is_gated(remote)
            if gated or not marked:
                return [Ungate(uid, marked=marked, gated=gated)]
        ineffective = self.state.ineffective_updates
        updates = [
            it
            for it in needed_updates(home, remote, self.policy)
            if it.subresource not in ineffective or ineffective[it.subresource] != digest(it.patch)
        ]
        observed = not updates and pod_status.is_observed_by_kubelet(home, remote)
        resize = next((it.patch for it in updates if it.subresource == "resize"), None)
        pending = resize_condition.resize_pending_condition(
            home, resize, self.state.rejected_resize, now=self.now
        )
        status = self._live_status(remote, observed=observed, resize_pending=pending)
        if is_deleting(remote):
            return [*status, *self._evict(remote)]
        if not unschedulable_timeout.is_unschedulable(remote):
            return [*status, *updates]
        return self._wait_for_node(remote, status, updates)

    def _wait_for_node(
        self, remote: Object, status: list[Action], updates: list[Update]
    ) -> list[Action]:
        """The remote's scheduler finds no node: the pod waits until its deadline or the timeout."""
        home, timeout = self.home, self.policy.unschedulable_timeout
        until_deadline = active_deadline.deadline_remaining(home, now=self.now)
        if until_deadline == 0:
            return [*self._exceed_deadline(), *_stop(remote)]
        actions = [*status, *updates]
        if until_deadline is not None:
            actions.append(RequeueAfter(until_deadline))
        if timeout is None:
            return actions
        until_timeout = unschedulable_timeout.timeout_remaining(home, self.policy, now=self.now)
        if until_timeout == 0:
            marked = self._live_status(remote, observed=False, timed_out=True)
            return [*marked, DeleteIfUnbound(RemoteUid(uid_of(remote)), version_of(remote))]
        # None: the timeout counts from the status that is written now.
        return [*actions, RequeueAfter(timeout if until_timeout is None else until_timeout)]

    def _evict(self, remote: Object) -> list[Action]:
        """Deletes the home pod when the node of its terminating remote pod is lost for too long."""
        seconds = self.state.eviction_seconds
        if seconds is None or not _is_unfinished(remote, self._restart_policy):
            return []
        return [RequeueAfter(seconds)] if seconds else [EvictHomePod()]

    # -- the remote pod was deleted, or never created ----------------------------------------

    def start(self) -> list[Action]:
        """Creates the remote pod, if it may be created (again)."""
        home, state = self.home, self.state
        may_have_started, last = restart_policy_never.may_have_started(home), state.last_remote
        confirmed, pending = state.absence_confirmed, state.create_pending
        # A pod whose create request has an unknown outcome may still appear: it is created first.
        if not pending and unschedulable_timeout.is_timed_out(
            home, last, self.policy, now=self.now
        ):
            return self._time_out() if confirmed else [ConfirmAbsence()]
        if last is None and (pending or not may_have_started):
            capacity, node = state.remote_capacity, state.node
            rejection = kubelet_admission.admission_rejection(home, capacity, node)
            return self._create() if pending or rejection is None else self._reject(*rejection)
        if last is not None and not _is_unfinished(last, self._restart_policy):
            return self._status(last)
        if not confirmed:
            return [ConfirmAbsence()]
        was_gated = last is not None and restart_policy_never.is_gated(last)
        never_ran = was_gated and not may_have_started
        if self._restart_policy != "Never" or never_ran:
            return self._create()
        message = (
            "the remote pod no longer exists, its outcome is unknown, "
            "and its restartPolicy, or a container's, is Never"
        )
        return self._lose("RemotePodLost", message)

    def _create(self) -> list[Action]:
        """Creates the remote pod. If the pod ran before, its status shows first that it does not
        run."""
        left = active_deadline.deadline_remaining(self.home, now=self.now)
        if left == 0:
            return self._exceed_deadline()
        status = synthetic_status.recreating_status(self.home, now=self.now)
        actions = [*_write(self.home, status), Create()]
        # A pod that is blocked for the first time is requeued by the controller.
        if left is not None and synthetic_status.is_creation_blocked(self.home):
            actions.append(RequeueAfter(left))
        return actions

    # -- statuses --------------------------------------------------------------------------

    def skip(self, why: str) -> list[Action]:
        """The status under which the DaemonSet counts the pod as available. Repairing its condition
        Ready, which is set to False while the Node is NotReady, records no second Event."""
        home, reason = self.home, REASON_SKIPPED
        message = f"this pod does not run, and its DaemonSet counts it as available: {why}"
        status = synthetic_status.skipped_status(home, reason=reason, message=message, now=self.now)
        is_reported = synthetic_status.is_skipped(home, reason=reason)
        event = None if is_reported else (reason, message)
        return _write(home, status, event=event, warning=self.policy.daemonsets == "run")

    def _exceed_deadline(self) -> list[Action]:
        reason, message = active_deadline.REASON, active_deadline.MESSAGE
        status = synthetic_status.terminated_status(self.home, message=message, now=self.now)
        status |= {"reason": reason, "message": message}
        return _write(self.home, status, event=(reason, message))

    def _reject(self, reason: str, message: str) -> list[Action]:
        status = synthetic_status.rejected_status(
            self.home, reason=reason, message=message, now=self.now
        )
        return _write(self.home, status, event=(reason, message))

    def _time_out(self) -> list[Action]:
        message = unschedulable_timeout.timeout_message(self.home, self.policy)
        return self._lose(unschedulable_timeout.REASON_REMOTE_UNSCHEDULABLE, message)

    def _lose(self, reason: str, message: str) -> list[Action]:
        """Sets Failed, with the condition DisruptionTarget: a Job can ignore such failures."""
        status = synthetic_status.lost_status(
            self.home, reason=reason, message=message, now=self.now
        )
        return _write(self.home, status, event=(reason, message))

    def _status(self, remote: Object) -> list[Action]:
        if pod_status.is_terminal(self.home):
            return []
        observed = pod_status.is_observed_by_kubelet(self.home, remote)
        observed = observed and not needed_updates(self.home, remote, self.policy)
        return self._live_status(remote, observed=observed)

    def _live_status(
        self,
        remote: Object,
        *,
        observed: bool,
        resize_pending: Object | None = None,
        timed_out: bool = False,
    ) -> list[Action]:
        """The status of a home pod that is not terminal; parameters as for `translate_status`."""
        home, policy, now = self.home, self.policy, self.now
        wanted = pod_status.translate_status(
            home, remote, policy, now=now, observed=observed, resize_pending=resize_pending
        )
        if timed_out:
            unschedulable_timeout.mark_timed_out(wanted)
        event = None
        restart_policy, reason = self._restart_policy, pod_status.REASON_REMOTE_POD_DELETED
        is_lost = is_deleting(remote) and not is_deleting(home)
        is_lost = is_lost and _is_unfinished(remote, restart_policy)
        if is_lost and not unschedulable_timeout.is_timed_out(home, remote, policy, now=now):
            message = "deleted in the remote cluster"
            if restart_policy != "Never":
                message += "; it is re-created there after its deletion"
            wanted["reason"], wanted["message"] = reason, message
            if pod_status.is_terminal(remote):
                # A terminal phase is final, and home's pod is to run again.
                wanted["phase"] = pod_status.phase(home)
            if (home.get("status") or {}).get("reason") != reason:
                event = (reason, message)
        return _write(home, wanted, event=event)


def _write(
    home: Object, wanted: Object, event: tuple[str, str] | None = None, *, warning: bool = True
) -> list[Action]:
    """Writes the fields that differ from home's status; if none does, records no Event either."""
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=event, warning=warning)] if patch else []
