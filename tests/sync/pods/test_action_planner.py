"""The table of `sync.pods.action_planner`, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from sync.pods.action_planner import plan_actions, skip_reason
from sync.pods.actions import (
    Action,
    ConfirmAbsence,
    Create,
    Delete,
    DeleteOrphan,
    EvictHomePod,
    PodState,
    RemoveHomePod,
    RequeueAfter,
    Ungate,
    Update,
    WriteStatus,
)
from tests.sync.pod_states import NOW, POLICY, PREVIOUS_UID, RECENTLY, REMOTE_UID, home, remote
from translators.object_accessors import Object


def _plan(state: PodState) -> list[Action]:
    return plan_actions(state, POLICY, now=NOW)


def _summary(action: Action) -> Any:
    """A status as its phase and message; any other action unchanged."""
    if not isinstance(action, WriteStatus):
        return action
    return ("status", action.patch.get("phase"), action.event[0] if action.event else None)


def _selects(pod: Object, label: str) -> Object:
    """The pod with a node selector."""
    pod["spec"]["nodeSelector"] = {label: "burst"}
    return pod


_CREATE = [Create()]
_NODE = {"metadata": {"name": "burst", "labels": {"name": "burst"}}}
_ORPHAN = [DeleteOrphan(uid=REMOTE_UID, home_uid=PREVIOUS_UID)]
_STATUS = ("status", None, None)
_RUNNING = ("status", "Running", None)
_SUCCEEDED = ("status", "Succeeded", None)
_FAILED = ("status", "Failed", None)
_DELETING = remote(phase="Failed", deleting=30)

_IMAGES = {"cluster-bridge.io/carried-images": '{"main":"busybox:2"}'}

_TABLE: dict[str, tuple[PodState, list[Any]]] = {
    "a remote pod without a home pod is deleted": (
        PodState(None, remote(of=PREVIOUS_UID)),
        _ORPHAN,
    ),
    "a remote pod without an owner is deleted too": (
        PodState(None, {"metadata": {"uid": REMOTE_UID}}),
        [DeleteOrphan(uid=REMOTE_UID, home_uid=None)],
    ),
    "which it shows where no kubelet confirms that end": (
        PodState(home(), remote(of=PREVIOUS_UID, deleting=30), eviction_seconds=0.0),
        [("status", None, "RemotePodTerminating")],
    ),
    "one that can never fit has failed before it began": (
        PodState(home(asks="9"), None, remote_capacity={"cpu": 8000}),
        [("status", "Failed", "OutOfcpu")],
    ),
    "one that ran is not given up for its size": (
        PodState(
            home(asks="9", marked=True), None, absence_confirmed=True, remote_capacity={"cpu": 8000}
        ),
        _CREATE,
    ),
    "one that selects another node has failed before it began": (
        PodState(_selects(home(), "zone"), None, node=_NODE),
        [("status", "Failed", "NodeAffinity")],
    ),
    "not where it may have run": (
        PodState(_selects(home(marked=True), "zone"), None, node=_NODE, absence_confirmed=True),
        _CREATE,
    ),
    "nor where it selects the node": (
        PodState(_selects(home(), "name"), None, node=_NODE),
        _CREATE,
    ),
    "one that ran is not Ready before it is created again": (
        PodState(home(phase="Running", ready=True), None, absence_confirmed=True),
        [("status", "Pending", None), *_CREATE],
    ),
    "one that waits is looked at when its deadline passes": (
        PodState(home(refused=RECENTLY, deadline=600), None),
        [*_CREATE, RequeueAfter(360)],
    ),
    "one that does not wait is not": (PodState(home(deadline=600), None), _CREATE),
    "a wait begins with the status that shows it": (
        PodState(home(deadline=200), remote(phase="Pending", waits=True, deadline=200)),
        [_STATUS, RequeueAfter(200), RequeueAfter(300)],
    ),
    "and has failed then": (
        PodState(home(refused=RECENTLY, deadline=200), None),
        [("status", "Failed", "DeadlineExceeded")],
    ),
    "also while the remote finds no node": (
        PodState(home(waits=RECENTLY, deadline=200), remote(phase="Pending", waits=True)),
        [("status", "Failed", "DeadlineExceeded"), Delete(REMOTE_UID, None)],
    ),
    "until which it is waited for": (
        PodState(
            home(waits=RECENTLY, deadline=250), remote(phase="Pending", waits=True, deadline=250)
        ),
        [RequeueAfter(10), RequeueAfter(60)],
    ),
    "a deadline of a pod that is on a node is its kubelet's": (
        PodState(home(waits=RECENTLY, deadline=200), remote(deadline=200)),
        [_RUNNING],
    ),
    "one that must not run twice is marked before it is let go": (
        PodState(home(policy="Never"), remote(phase="Pending", held=True)),
        [Ungate(REMOTE_UID, marked=False, gated=True)],
    ),
    "which is done again where it is not known to be done": (
        PodState(home(policy="Never", marked=True), remote(phase="Pending", held=True)),
        [Ungate(REMOTE_UID, marked=True, gated=True)],
    ),
    "not where it was marked": (
        PodState(
            home(policy="Never", marked=True),
            None,
            last_remote=remote(phase="Pending", held=True),
            absence_confirmed=True,
        ),
        [("status", "Failed", "RemotePodLost")],
    ),
    "what was tried and may not have arrived is tried again": (
        PodState(home(policy="Never"), None, create_pending=True),
        _CREATE,
    ),
    "a marked pod of an earlier process is asked for before it is made": (
        PodState(home(marked=True), None),
        [ConfirmAbsence()],
    ),
    "one that is lost is made again": (
        PodState(home(marked=True), None, absence_confirmed=True),
        _CREATE,
    ),
    "but one that must not run twice has failed": (
        PodState(home(phase="Running", policy="Never"), None, absence_confirmed=True),
        [("status", "Failed", "RemotePodLost")],
    ),
    "a pod that ended by itself has its last status": (
        PodState(
            home(phase="Running", policy="Never"), None, last_remote=remote(phase="Succeeded")
        ),
        [_SUCCEEDED],
    ),
    "an eviction by the remote's kubelet is an end too": (
        PodState(home(phase="Running"), None, last_remote=remote(phase="Failed")),
        [_FAILED],
    ),
    "a pod that was deleted while it ran is asked for": (
        PodState(home(phase="Running"), None, last_remote=remote(deleting=30)),
        [ConfirmAbsence()],
    ),
    "and made again": (
        PodState(
            home(phase="Running"), None, last_remote=remote(deleting=30), absence_confirmed=True
        ),
        _CREATE,
    ),
    "and so is one that its kubelet called Failed on the way": (
        PodState(home(phase="Running"), None, last_remote=_DELETING, absence_confirmed=True),
        _CREATE,
    ),
    "but not where one attempt is all": (
        PodState(home(phase="Running", policy="Never"), None, last_remote=_DELETING),
        [_FAILED],
    ),
    "nor where the work was done": (
        PodState(
            home(phase="Running", policy="OnFailure"),
            None,
            last_remote=remote(phase="Succeeded", deleting=30),
        ),
        [_SUCCEEDED],
    ),
    "a running pod is reported": (PodState(home(marked=True), remote()), [_RUNNING]),
    "one whose image changed is updated": (
        PodState(home(image="busybox:2"), remote()),
        [
            _RUNNING,
            Update(
                REMOTE_UID,
                {
                    "metadata": {"annotations": _IMAGES},
                    "spec": {"containers": [{"name": "main", "image": "busybox:2"}]},
                },
            ),
        ],
    ),
    "but not one that has ended": (
        PodState(home(image="busybox:2"), remote(phase="Succeeded")),
        [_SUCCEEDED],
    ),
    "nor one that is being deleted": (
        PodState(home(image="busybox:2"), remote(deleting=30)),
        [("status", "Running", "RemotePodDeleted")],
    ),
    "an end on the way to another attempt is no end": (
        PodState(home(phase="Running"), _DELETING),
        [("status", None, "RemotePodDeleted")],
    ),
    "a lost node may come back and confirm the end": (
        PodState(home(phase="Running"), remote(deleting=30), eviction_seconds=12.0),
        [("status", None, "RemotePodDeleted"), RequeueAfter(12.0)],
    ),
    "a pod on a node that stays lost is deleted at home": (
        PodState(home(phase="Running"), remote(deleting=30), eviction_seconds=0.0),
        [("status", None, "RemotePodDeleted"), EvictHomePod()],
    ),
    "which is done once": (
        PodState(home(phase="Running", deleting=30), remote(deleting=30), eviction_seconds=0.0),
        [_STATUS],
    ),
    "a pod that is being deleted is deleted with its grace": (
        PodState(home(phase="Running", deleting=25), remote()),
        [_STATUS, Delete(REMOTE_UID, 25)],
    ),
    "a forced deletion sends none, as no kubelet takes it for its grace": (
        PodState(home(phase="Running", deleting=0), remote()),
        [_STATUS, Delete(REMOTE_UID, None)],
    ),
    "a forced deletion shortens none": (
        PodState(home(phase="Running", deleting=0), remote(deleting=25)),
        [_STATUS],
    ),
    "only once": (PodState(home(phase="Running", deleting=25), remote(deleting=25)), [_STATUS]),
    "again where the grace was shortened": (
        PodState(home(phase="Running", deleting=1), remote(deleting=25)),
        [_STATUS, Delete(REMOTE_UID, 1)],
    ),
    "not where the remote's is shorter": (
        PodState(home(phase="Running", deleting=25), remote(deleting=1)),
        [_STATUS],
    ),
    "its termination is reported while the remote pod exists": (
        PodState(home(phase="Running", deleting=25), remote(phase="Failed", deleting=25)),
        [_FAILED],
    ),
    "after the remote pod's deletion its last status is written and the home pod removed": (
        PodState(home(phase="Running", deleting=25), None, last_remote=_DELETING),
        [_FAILED, RemoveHomePod()],
    ),
    "one that a finalizer keeps is not called pending for ever": (
        PodState(home(deleting=30, kept=True), None),
        [_FAILED, RemoveHomePod()],
    ),
    "nor running when the remote's kubelet had no last word": (
        PodState(home(phase="Running", deleting=0, kept=True), None, last_remote=remote()),
        [_FAILED, RemoveHomePod()],
    ),
    "its last word counts": (
        PodState(
            home(phase="Running", deleting=30, kept=True),
            None,
            last_remote=remote(phase="Succeeded"),
        ),
        [_SUCCEEDED, RemoveHomePod()],
    ),
    "one that may have is asked for": (
        PodState(home(marked=True, deleting=30), None),
        [ConfirmAbsence()],
    ),
    "and goes": (
        PodState(home(marked=True, deleting=30), None, absence_confirmed=True),
        [RemoveHomePod()],
    ),
    "one that is perhaps being made is asked for": (
        PodState(home(deleting=30), None, create_pending=True),
        [ConfirmAbsence()],
    ),
    "also when an earlier one has ended": (
        PodState(home(marked=True, deleting=30), None, create_pending=True, last_remote=remote()),
        [ConfirmAbsence()],
    ),
    "a terminal pod that is deleted goes": (
        PodState(home(phase="Failed", deleting=0), None, absence_confirmed=True),
        [RemoveHomePod()],
    ),
    "what of it is left is deleted first": (
        PodState(home(phase="Succeeded", deleting=30), remote(phase="Succeeded")),
        [Delete(REMOTE_UID, 30)],
    ),
    "a terminal pod does not run again": (
        PodState(home(phase="Failed"), remote()),
        [Delete(REMOTE_UID, None)],
    ),
    "a terminal home pod without a remote pod is unchanged": (
        PodState(home(phase="Succeeded"), None),
        [],
    ),
    "a DaemonSet's pod is skipped, and counts as available": (
        PodState(home(daemon=True), None),
        [("status", "Running", "DaemonSetSkipped")],
    ),
    "a DaemonSet's pod that is deleted goes": (
        PodState(home(daemon=True, deleting=30), None),
        [RemoveHomePod()],
    ),
}


@pytest.mark.parametrize(("state", "expected"), _TABLE.values(), ids=_TABLE.keys())
def test_plan(state: PodState, expected: list[Any]) -> None:
    assert [_summary(action) for action in _plan(state)] == expected


def test_rejection_is_reported_once() -> None:
    pod = home(daemon=True)
    pod["status"] |= {"reason": "DaemonSetSkipped"}
    first = _plan(PodState(pod, None))
    assert isinstance(first[0], WriteStatus)
    pod["status"] |= first[0].patch

    assert _plan(PodState(pod, None)) == []


def test_non_controller_owner_is_no_daemonset() -> None:
    pod = home()
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "log"}]

    assert not skip_reason(pod, POLICY)


def test_terminal_pod_before_another_attempt_is_reported_as_deleted() -> None:
    actions = _plan(PodState(home(phase="Running"), _DELETING))

    assert isinstance(actions[0], WriteStatus)
    assert actions[0].patch["reason"] == "RemotePodDeleted"
