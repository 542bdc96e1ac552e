"""What to do for one pod, decided from the state of both clusters.

`plan` is a pure function; `sync.pods.controller` carries out what it says, one action after the
other. The table, with *gone* meaning that no pod of ours is there:

| home pod            | remote pod            | actions                                        |
|---------------------|-----------------------|------------------------------------------------|
| gone                | present               | delete the orphan, with the pod's own grace    |
| any                 | of a former home pod  | delete the orphan                              |
| deleting            | present               | status; delete with home's grace               |
| deleting            | gone                  | last status; remove the home pod               |
| terminal            | running               | delete it: a terminal pod does not run again   |
| terminal            | terminal or gone      | nothing                                        |
| skipped             | gone                  | status: available, and nothing runs            |
| refused             | gone                  | say so                                         |
| live                | of a former, lost node| status: why it waits                           |
| live                | held                  | mark that it may run, let it go                |
| live                | present               | follow the spec; status                        |
| live                | unschedulable too long| status; withdraw it while nobody has placed it |
| live                | being deleted         | status: not Ready; what comes next is told     |
| live                | same, on a lost node  | status; delete the home pod after a wait       |
| live, never ran     | gone                  | create, or Failed where it can never fit       |
| live, ran           | gone, ended by itself | its last status                                |
| live, ran           | gone, lost            | status: not Ready; create again, or Failed     |
|                     |                       | under `Never`                                  |
| live, past deadline | gone, or never placed | Failed: as by a kubelet                        |
| live, given up      | gone, never placed    | Failed: its controller places it elsewhere     |

Refused are pods that ask for what the remote cannot give (`pod.refused`).

Skipped are pods of DaemonSets under `--daemonsets skip`, and those of DaemonSets that would be
refused: their DaemonSet counts them as available (`podverdict.skipped`), because one that waits for
ever would stall its rolling updates on home's own nodes.

A pod that was force-deleted at home ends in the remote as a kubelet would end it: with the grace of
its spec, or what is left of a deletion that was passed on (pod_workers.go,
calculateEffectiveGracePeriod).

*Given up* needs no mark of its own: home's condition says since when the remote finds no node
(`translators.pods.unschedulable_timeout`), and it is older than the timeout. So a crash between the
withdrawal and the last status ends in the same way.

"Gone" of a pod that may have run is believed only after asking the remote's API server
(`ConfirmAbsence`): a cache that lags must neither start a pod twice nor declare one lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sync.base.resource_version import version_of
from translators import merge_patch
from translators.identity import has_home_uid, origin_of
from translators.objects import (
    HomeUid,
    Object,
    RemoteUid,
    is_daemonset_pod,
    is_deleting,
    metadata,
    uid_of,
)
from translators.pods import (
    active_deadline,
    kubelet_admission,
    remote_pod,
    run_once,
    synthetic_status,
    unschedulable_timeout,
    update,
)
from translators.pods import resize_condition as podresize
from translators.pods import status as podstatus
from translators.pods.resize_condition import ResizeRejection
from translators.pods.update import Subresource
from translators.translation_policy import Policy

#: ``status.reason`` of a DaemonSet's pod that counts as available and does not run.
REASON_SKIPPED = "DaemonSetSkipped"


@dataclass(frozen=True, slots=True)
class PodState:
    """What is known of one pod when it is reconciled."""

    home: Object | None
    """The pod bound to the virtual node, or None."""
    remote: Object | None
    """The pod of that name in the remote, if it is this virtual node's."""
    last_remote: Object | None = None
    """The last state of a remote pod of this home pod that is gone; None where unknown."""
    create_pending: bool = False
    """This process tried to make it and does not know the outcome. It can try again: a name is
    given out once."""
    absence_confirmed: bool = False
    """The remote's API server itself says that it has no such pod of ours."""
    remote_capacity: Mapping[str, int] = field(default_factory=dict)
    """What all nodes of the remote have together; {} where that is not known."""
    node: Object | None = None
    """The virtual node at home; None where it is not known."""
    rejected_resize: ResizeRejection | None = None
    """The last resize that the remote's API server refused."""
    eviction_seconds: float | None = None
    """Seconds until the home pod is deleted, because the node of the remote pod cannot confirm its
    end; None where it can (`sync.pods.evictions`)."""
    ineffective_updates: Mapping[Subresource, Object] = field(default_factory=dict)
    """Updates that the remote's API server accepted and its admission undid, by their path."""


@dataclass(frozen=True, slots=True)
class ConfirmAbsence:
    """Ask the remote's API server whether the pod is really gone, then plan again."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make the remote pod; one that must not run twice is held there
    (`translators.pods.run_once`)."""


@dataclass(frozen=True, slots=True)
class Ungate:
    """Mark at home that the pod may run from now on, unless it is ``marked``, and then let the
    remote pod go, if it is held."""

    uid: RemoteUid
    marked: bool
    gated: bool


@dataclass(frozen=True, slots=True)
class Update:
    """Patch the remote pod, or a subresource of it, so that it follows home's."""

    uid: RemoteUid
    patch: Object
    subresource: Subresource = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the remote pod; ``grace_seconds`` None means the pod's own."""

    uid: RemoteUid
    grace_seconds: int | None


@dataclass(frozen=True, slots=True)
class DeleteIfUnbound:
    """Delete a remote pod that nobody has placed, in this very version: one that was bound
    meanwhile stays, and its event brings the pod back."""

    uid: RemoteUid
    version: str


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Look again in ``seconds``, when a wait is over."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DeleteOrphan:
    """Delete a remote pod whose home pod is gone, after asking home's API server if it is."""

    uid: RemoteUid
    home_uid: HomeUid | None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Patch the home pod's status. ``event``: (reason, message) of an Event to record, of type
    Warning unless ``warning`` is False."""

    patch: Object
    event: tuple[str, str] | None = None
    warning: bool = True


@dataclass(frozen=True, slots=True)
class EvictHomePod:
    """Delete the home pod with its own grace, as the taint-eviction controller does."""


@dataclass(frozen=True, slots=True)
class RemoveHomePod:
    """Take the home pod away: nothing of it runs any more."""


Action = (
    ConfirmAbsence
    | Create
    | Ungate
    | Update
    | Delete
    | DeleteIfUnbound
    | RequeueAfter
    | DeleteOrphan
    | WriteStatus
    | EvictHomePod
    | RemoveHomePod
)


def plan(state: PodState, policy: Policy, *, now: str) -> list[Action]:
    """The actions for ``state``, in their order. ``now`` is the time in RFC 3339."""
    home, remote = state.home, state.remote
    if remote is not None and (home is None or not has_home_uid(remote, uid_of(home))):
        return _orphan(remote) or _behind(state, home, now=now)
    if home is None:
        return []
    if is_deleting(home):
        return _deleting(state, home, policy, now=now)
    if podstatus.is_terminal(home):
        return _terminal(remote)
    if remote is not None:
        return _follow(state, home, remote, policy, now=now)
    if why := skipped(home, policy):
        return _skip(home, why, policy, now=now)
    if unfit := remote_pod.rejection_message(home):
        return report_waiting(home, reason="FieldRefused", message=unfit, now=now)
    return _absent(state, home, policy, now=now)


def skipped(home: Object, policy: Policy) -> str:
    """Why the pod of a DaemonSet is not run, for its owner; "" for a pod that is to run, and for
    one that no DaemonSet made.

    Most DaemonSets are for home's own nodes (network, storage, log agents), of which the virtual
    node is none.
    """
    if not is_daemonset_pod(home):
        return ""
    if policy.daemonsets == "skip":
        return (
            "the bridge does not run pods of DaemonSets (--daemonsets=skip); to keep the DaemonSet "
            "off this node give it a node affinity, to run it join with --daemonsets=run"
        )
    if unfit := remote_pod.rejection_message(home):
        return f"the pod cannot run in the remote cluster: {unfit}"
    return ""


def may_run(home: Object, policy: Policy) -> bool:
    """Whether the pod is one to run in the remote: nothing is watched or copied for others."""
    return not skipped(home, policy) and not remote_pod.rejection_message(home)


def _orphan(remote: Object) -> list[Action]:
    if is_deleting(remote):
        return []
    known = origin_of(remote)
    return [DeleteOrphan(RemoteUid(uid_of(remote)), known.uid if known else None)]


def _behind(state: PodState, home: Object | None, *, now: str) -> list[Action]:
    """What a pod shows while a former one of its name is being deleted in the remote."""
    lost = state.eviction_seconds is not None
    if home is None or is_deleting(home) or podstatus.is_terminal(home) or not lost:
        return []
    message = (
        "the previous pod of this name is being deleted in the remote cluster, on a node that is "
        "not Ready and does not confirm its end; delete that Node if it does not come back"
    )
    return report_waiting(home, reason="RemotePodTerminating", message=message, now=now)


def _deleting(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    if state.remote is not None:
        actions = _status(home, state.remote, policy, now=now)
        grace = metadata(home).get("deletionGracePeriodSeconds")
        theirs = metadata(state.remote).get("deletionGracePeriodSeconds")
        shortened = grace is not None and theirs is not None and grace < theirs
        if not is_deleting(state.remote) or shortened:
            actions.append(Delete(RemoteUid(uid_of(state.remote)), grace))
        return actions
    unsure = state.create_pending or (run_once.may_have_started(home) and state.last_remote is None)
    if unsure and not state.absence_confirmed:
        return [ConfirmAbsence()]
    return [*_last_status(state, home, policy, now=now), RemoveHomePod()]


def _last_status(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    """What is still to be told of a pod that is gone in the remote: a finalizer may keep the home
    pod, which must not be called running then."""
    if podstatus.is_terminal(home):
        return []
    ended = state.last_remote
    if not metadata(home).get("finalizers") or (ended and podstatus.is_terminal(ended)):
        return _status(home, ended, policy, now=now) if ended is not None else []
    # Deleted with a grace of 0, or before it began: there was no last word of the remote's kubelet.
    wanted = synthetic_status.terminated_status(
        home, message="it is gone from the remote cluster", now=now
    )
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch)] if patch else []


def _terminal(remote: Object | None) -> list[Action]:
    if remote is None or is_deleting(remote) or podstatus.is_terminal(remote):
        return []
    return [Delete(RemoteUid(uid_of(remote)), None)]


def _follow(
    state: PodState, home: Object, remote: Object, policy: Policy, *, now: str
) -> list[Action]:
    if run_once.runs_once(home) and not is_deleting(remote) and not podstatus.is_terminal(remote):
        marked, held = run_once.may_have_started(home), run_once.is_gated(remote)
        if held or not marked:
            return [Ungate(RemoteUid(uid_of(remote)), marked=marked, gated=held)]
    found = updates(home, remote, policy)
    following = [it for it in found if state.ineffective_updates.get(it.subresource) != it.patch]
    acted = not following and podstatus.is_observed_by_kubelet(home, remote)
    resize = next((it.patch for it in following if it.subresource == "resize"), None)
    pending = podresize.resize_pending_condition(home, resize, state.rejected_resize, now=now)
    status = _status_of(home, remote, policy, acted=acted, now=now, pending=pending)
    if is_deleting(remote):
        return [*status, *_evicted(state, home, remote)]
    if not unschedulable_timeout.is_unschedulable(remote):
        return [*status, *following]
    allowed = active_deadline.deadline_remaining(home, now=now)
    if allowed == 0:
        return [*_overdue(home, now=now), *_terminal(remote)]
    actions = [*status, *following, *([RequeueAfter(allowed)] if allowed is not None else ())]
    if policy.unschedulable_timeout is None:
        return actions
    left = unschedulable_timeout.timeout_remaining(home, policy, now=now)
    if left == 0:
        version = version_of(remote)
        return [*status, DeleteIfUnbound(RemoteUid(uid_of(remote)), version)]
    # Not told yet: the wait begins with the status that tells it.
    wait = RequeueAfter(policy.unschedulable_timeout if left is None else left)
    return [*actions, wait]


def _evicted(state: PodState, home: Object, remote: Object) -> list[Action]:
    """What becomes of the home pod while its remote pod is being deleted, unless that has ended."""
    if state.eviction_seconds is None:
        return []
    if not _to_run_again(remote, run_once.restart_policy(home.get("spec") or {})):
        return []
    return [RequeueAfter(state.eviction_seconds)] if state.eviction_seconds else [EvictHomePod()]


def updates(home: Object, remote: Object, policy: Policy) -> list[Update]:
    """What makes the remote pod follow home's spec and metadata, while it can."""
    if podstatus.is_terminal(remote):
        return []
    uid = RemoteUid(uid_of(remote))
    found = update.pod_patches(home, remote, policy)
    return [Update(uid, change.patch, change.subresource) for change in found]


def _skip(home: Object, why: str, policy: Policy, *, now: str) -> list[Action]:
    """The status under which the pod's DaemonSet goes on. The Event is recorded once, and again
    only where the status was lost: a Node that was NotReady has its pods' Ready set to False."""
    message = f"nothing of this pod runs, and its DaemonSet counts it as available: {why}"
    wanted = synthetic_status.skipped_status(home, reason=REASON_SKIPPED, message=message, now=now)
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    if not patch:
        return []
    event = None
    if not synthetic_status.is_skipped(home, reason=REASON_SKIPPED):
        event = (REASON_SKIPPED, message)
    return [WriteStatus(patch, event=event, warning=policy.daemonsets == "run")]


def report_waiting(
    home: Object, *, reason: str, message: str, now: str, once_each: bool = False
) -> list[Action]:
    """Tells that the pod waits, once: in its status and a condition, which remember it, and as an
    Event; with ``once_each`` a new Event only for a new reason."""
    wanted = synthetic_status.pending_status(home, reason=reason, message=message, now=now)
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    repeated = once_each and (home.get("status") or {}).get("reason") == reason
    event = None if repeated else (reason, message)
    return [WriteStatus(patch, event=event)] if patch else []


def _absent(state: PodState, home: Object, policy: Policy, *, now: str) -> list[Action]:
    restart = run_once.restart_policy(home.get("spec") or {})
    marked = run_once.may_have_started(home)
    # One of which it is not known whether it was made may come yet, and is made again first.
    if not state.create_pending and unschedulable_timeout.is_timed_out(
        home, state.last_remote, policy, now=now
    ):
        return _give_up(home, policy, now=now) if state.absence_confirmed else [ConfirmAbsence()]
    if state.last_remote is None and (state.create_pending or not marked):
        if not state.create_pending and (
            rejection := kubelet_admission.admission_rejection(
                home, state.remote_capacity, state.node
            )
        ):
            return _reject(home, *rejection, now=now)
        return _create(home, now=now)
    if state.last_remote is not None and not _to_run_again(state.last_remote, restart):
        return _status(home, state.last_remote, policy, now=now)
    if not state.absence_confirmed:
        return [ConfirmAbsence()]
    never_ran = (
        not marked and state.last_remote is not None and run_once.is_gated(state.last_remote)
    )
    if restart != "Never" or never_ran:
        return _create(home, now=now)
    message = (
        "the pod is gone from the remote cluster, nobody knows how far it came, "
        "and its restartPolicy, or a container's, is Never"
    )
    lost = synthetic_status.lost_status(home, reason="RemotePodLost", message=message, now=now)
    patch = merge_patch.status_patch(home.get("status") or {}, lost)
    return [WriteStatus(patch, event=("RemotePodLost", message))]


def _create(home: Object, *, now: str) -> list[Action]:
    """Of a pod that ran, the status comes first: it does not run, however long this takes."""
    left = active_deadline.deadline_remaining(home, now=now)
    if left == 0:
        return _overdue(home, now=now)
    patch = merge_patch.status_patch(
        home.get("status") or {}, synthetic_status.recreating_status(home, now=now)
    )
    status = [WriteStatus(patch)] if patch else []
    # A pod that has to wait for the first time is looked at again by whoever writes that.
    look = (
        [RequeueAfter(left)]
        if left is not None and synthetic_status.is_creation_blocked(home)
        else []
    )
    return [*status, Create(), *look]


def _overdue(home: Object, *, now: str) -> list[Action]:
    """As a kubelet: the pod has Failed."""
    wanted = synthetic_status.terminated_status(home, message=active_deadline.MESSAGE, now=now)
    wanted |= {"reason": active_deadline.REASON, "message": active_deadline.MESSAGE}
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=(active_deadline.REASON, active_deadline.MESSAGE))]


def _reject(home: Object, reason: str, message: str, *, now: str) -> list[Action]:
    """As a kubelet: the pod has Failed before it began."""
    wanted = synthetic_status.rejected_status(home, reason=reason, message=message, now=now)
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=(reason, message))]


def _give_up(home: Object, policy: Policy, *, now: str) -> list[Action]:
    """The pod has Failed, as a disruption: a Job need not count it."""
    reason, message = (
        unschedulable_timeout.REASON_REMOTE_UNSCHEDULABLE,
        unschedulable_timeout.timeout_message(home, policy),
    )
    wanted = synthetic_status.lost_status(home, reason=reason, message=message, now=now)
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=(reason, message))]


def _to_run_again(ended: Object, restart: str) -> bool:
    """Whether a remote pod that is gone leaves work undone.

    Under `Always` a pod never ends by itself: its kubelet calls it Failed when it is deleted
    there, which home did not ask for.
    """
    if not podstatus.is_terminal(ended):
        return True
    if restart == "Never":
        return False
    deleted = is_deleting(ended)
    return deleted and (restart == "Always" or podstatus.phase(ended) == "Failed")


def _status(home: Object, remote: Object, policy: Policy, *, now: str) -> list[Action]:
    if podstatus.is_terminal(home):
        return []
    acted = podstatus.is_observed_by_kubelet(home, remote) and not updates(home, remote, policy)
    return _status_of(home, remote, policy, acted=acted, now=now)


def _status_of(
    home: Object,
    remote: Object,
    policy: Policy,
    *,
    acted: bool,
    now: str,
    pending: Object | None = None,
) -> list[Action]:
    """What is to be told of a home pod that has not ended. ``acted``: the remote's kubelet has
    done all that home's says. ``pending``: the condition of a resize that was not taken there."""
    wanted = podstatus.translate_status(
        home, remote, policy, now=now, observed=acted, resize_pending=pending
    )
    event = None
    restart = run_once.restart_policy(home.get("spec") or {})
    lost = is_deleting(remote) and not is_deleting(home) and _to_run_again(remote, restart)
    if lost and not unschedulable_timeout.is_timed_out(home, remote, policy, now=now):
        message = "deleted in the remote cluster"
        if restart != "Never":
            message += "; it is made again there when it is gone"
        wanted["reason"], wanted["message"] = podstatus.REASON_REMOTE_POD_DELETED, message
        if podstatus.is_terminal(remote):
            # A terminal phase could not be taken back.
            wanted["phase"] = podstatus.phase(home)
        if (home.get("status") or {}).get("reason") != podstatus.REASON_REMOTE_POD_DELETED:
            event = (podstatus.REASON_REMOTE_POD_DELETED, message)
    patch = merge_patch.status_patch(home.get("status") or {}, wanted)
    return [WriteStatus(patch, event=event)] if patch else []
