"""The table of `sync.pods.plan`, row by row."""

from __future__ import annotations

from typing import Any

import pytest

from sync.pods.plan import (
    Action,
    Confirm,
    Create,
    Delete,
    DeleteOrphan,
    Evict,
    Later,
    LetGo,
    RemoveHome,
    State,
    Update,
    WriteStatus,
    plan,
    skipped,
)
from tests.sync.podstates import FORMER_UID, LATELY, NOW, POLICY, REMOTE_UID, home, remote
from translators.objects import Object


def _plan(state: State) -> list[Action]:
    return plan(state, POLICY, now=NOW)


def _told(action: Action) -> Any:
    """A status as the phase that it sets and what it says; any other action as it is."""
    if not isinstance(action, WriteStatus):
        return action
    return ("status", action.patch.get("phase"), action.event[0] if action.event else None)


def _selects(pod: Object, label: str) -> Object:
    """The pod with a node selector."""
    pod["spec"]["nodeSelector"] = {label: "burst"}
    return pod


_CREATE = [Create()]
_NODE = {"metadata": {"name": "burst", "labels": {"name": "burst"}}}
_ORPHAN = [DeleteOrphan(uid=REMOTE_UID, home_uid=FORMER_UID)]
_STATUS = ("status", None, None)
_RUNNING = ("status", "Running", None)
_SUCCEEDED = ("status", "Succeeded", None)
_FAILED = ("status", "Failed", None)
_DELETING = remote(phase="Failed", deleting=30)

_IMAGES = {"cluster-bridge.io/carried-images": '{"main":"busybox:2"}'}

_TABLE: dict[str, tuple[State, list[Any]]] = {
    "nothing is there and nothing is done": (State(None, None), []),
    "a remote pod without a home pod is deleted": (
        State(None, remote(of=FORMER_UID)),
        _ORPHAN,
    ),
    "one that is being deleted already is left to it": (
        State(None, remote(of=FORMER_UID, deleting=30)),
        [],
    ),
    "one that nobody can tell whose it is goes too": (
        State(None, {"metadata": {"uid": REMOTE_UID}}),
        [DeleteOrphan(uid=REMOTE_UID, home_uid=None)],
    ),
    "a remote pod of a former home pod makes room": (
        State(home(), remote(of=FORMER_UID)),
        _ORPHAN,
    ),
    "a new pod waits while that one ends": (
        State(home(), remote(of=FORMER_UID, deleting=30)),
        [],
    ),
    "which it shows where no kubelet confirms that end": (
        State(home(), remote(of=FORMER_UID, deleting=30), eviction=0.0),
        [("status", None, "RemotePodTerminating")],
    ),
    "also a pod that is being deleted waits for it": (
        State(home(deleting=30), remote(of=FORMER_UID, deleting=30)),
        [],
    ),
    "a new pod is made": (State(home(), None), _CREATE),
    "one that can never fit has failed before it began": (
        State(home(asks="9"), None, offered={"cpu": 8000}),
        [("status", "Failed", "OutOfcpu")],
    ),
    "one that ran is not given up for its size": (
        State(home(asks="9", marked=True), None, confirmed=True, offered={"cpu": 8000}),
        _CREATE,
    ),
    "one that selects another node has failed before it began": (
        State(_selects(home(), "zone"), None, node=_NODE),
        [("status", "Failed", "NodeAffinity")],
    ),
    "not where it may have run": (
        State(_selects(home(marked=True), "zone"), None, node=_NODE, confirmed=True),
        _CREATE,
    ),
    "nor where it selects the node": (State(_selects(home(), "name"), None, node=_NODE), _CREATE),
    "one that ran is not Ready before it is created again": (
        State(home(phase="Running", ready=True), None, confirmed=True),
        [("status", "Pending", None), *_CREATE],
    ),
    "one that waits is looked at when its deadline passes": (
        State(home(refused=LATELY, deadline=600), None),
        [*_CREATE, Later(360)],
    ),
    "one that does not wait is not": (State(home(deadline=600), None), _CREATE),
    "a wait begins with the status that shows it": (
        State(home(deadline=200), remote(phase="Pending", waits=True, deadline=200)),
        [_STATUS, Later(200), Later(300)],
    ),
    "and has failed then": (
        State(home(refused=LATELY, deadline=200), None),
        [("status", "Failed", "DeadlineExceeded")],
    ),
    "also while the remote finds no node": (
        State(home(waits=LATELY, deadline=200), remote(phase="Pending", waits=True)),
        [("status", "Failed", "DeadlineExceeded"), Delete(REMOTE_UID, None)],
    ),
    "until which it is waited for": (
        State(home(waits=LATELY, deadline=250), remote(phase="Pending", waits=True, deadline=250)),
        [Later(10), Later(60)],
    ),
    "a deadline of a pod that is on a node is its kubelet's": (
        State(home(waits=LATELY, deadline=200), remote(deadline=200)),
        [_RUNNING],
    ),
    "one that must not run twice is marked before it is let go": (
        State(home(policy="Never"), remote(phase="Pending", held=True)),
        [LetGo(REMOTE_UID, marked=False, held=True)],
    ),
    "which is done again where it is not known to be done": (
        State(home(policy="Never", marked=True), remote(phase="Pending", held=True)),
        [LetGo(REMOTE_UID, marked=True, held=True)],
    ),
    "one that went before that is asked for": (
        State(home(policy="Never"), None, ended=remote(phase="Pending", held=True)),
        [Confirm()],
    ),
    "and made again, as it has not run": (
        State(home(policy="Never"), None, ended=remote(phase="Pending", held=True), confirmed=True),
        _CREATE,
    ),
    "not where it was marked": (
        State(
            home(policy="Never", marked=True),
            None,
            ended=remote(phase="Pending", held=True),
            confirmed=True,
        ),
        [("status", "Failed", "RemotePodLost")],
    ),
    "what was tried and may not have arrived is tried again": (
        State(home(policy="Never"), None, making=True),
        _CREATE,
    ),
    "a marked pod of an earlier process is asked for before it is made": (
        State(home(marked=True), None),
        [Confirm()],
    ),
    "one that is lost is made again": (State(home(marked=True), None, confirmed=True), _CREATE),
    "also while it was running": (
        State(home(phase="Running", policy="OnFailure"), None, confirmed=True),
        _CREATE,
    ),
    "but one that must not run twice has failed": (
        State(home(phase="Running", policy="Never"), None, confirmed=True),
        [("status", "Failed", "RemotePodLost")],
    ),
    "which is asked for before it is said": (
        State(home(marked=True, policy="Never"), None),
        [Confirm()],
    ),
    "a pod that ended by itself has its last status": (
        State(home(phase="Running", policy="Never"), None, ended=remote(phase="Succeeded")),
        [_SUCCEEDED],
    ),
    "an eviction by the remote's kubelet is an end too": (
        State(home(phase="Running"), None, ended=remote(phase="Failed")),
        [_FAILED],
    ),
    "a pod that was deleted while it ran is asked for": (
        State(home(phase="Running"), None, ended=remote(deleting=30)),
        [Confirm()],
    ),
    "and made again": (
        State(home(phase="Running"), None, ended=remote(deleting=30), confirmed=True),
        _CREATE,
    ),
    "and so is one that its kubelet called Failed on the way": (
        State(home(phase="Running"), None, ended=_DELETING, confirmed=True),
        _CREATE,
    ),
    "but not where one attempt is all": (
        State(home(phase="Running", policy="Never"), None, ended=_DELETING),
        [_FAILED],
    ),
    "nor where the work was done": (
        State(
            home(phase="Running", policy="OnFailure"),
            None,
            ended=remote(phase="Succeeded", deleting=30),
        ),
        [_SUCCEEDED],
    ),
    "a running pod is told": (State(home(marked=True), remote()), [_RUNNING]),
    "one whose image changed is updated": (
        State(home(image="busybox:2"), remote()),
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
        State(home(image="busybox:2"), remote(phase="Succeeded")),
        [_SUCCEEDED],
    ),
    "nor one that is being deleted": (
        State(home(image="busybox:2"), remote(deleting=30)),
        [("status", "Running", "RemotePodDeleted")],
    ),
    "an end on the way to another attempt is no end": (
        State(home(phase="Running"), _DELETING),
        [("status", None, "RemotePodDeleted")],
    ),
    "a lost node may come back and confirm the end": (
        State(home(phase="Running"), remote(deleting=30), eviction=12.0),
        [("status", None, "RemotePodDeleted"), Later(12.0)],
    ),
    "a pod on a node that stays lost is deleted at home": (
        State(home(phase="Running"), remote(deleting=30), eviction=0.0),
        [("status", None, "RemotePodDeleted"), Evict()],
    ),
    "which is done once": (
        State(home(phase="Running", deleting=30), remote(deleting=30), eviction=0.0),
        [_STATUS],
    ),
    "a pod that is being deleted is deleted with its grace": (
        State(home(phase="Running", deleting=25), remote()),
        [_STATUS, Delete(REMOTE_UID, 25)],
    ),
    "also at once": (
        State(home(phase="Running", deleting=0), remote()),
        [_STATUS, Delete(REMOTE_UID, 0)],
    ),
    "only once": (State(home(phase="Running", deleting=25), remote(deleting=25)), [_STATUS]),
    "again where the grace was shortened": (
        State(home(phase="Running", deleting=1), remote(deleting=25)),
        [_STATUS, Delete(REMOTE_UID, 1)],
    ),
    "not where the remote's is shorter": (
        State(home(phase="Running", deleting=25), remote(deleting=1)),
        [_STATUS],
    ),
    "its end is told while it is there": (
        State(home(phase="Running", deleting=25), remote(phase="Failed", deleting=25)),
        [_FAILED],
    ),
    "when it is gone its last status is told and the home pod goes": (
        State(home(phase="Running", deleting=25), None, ended=_DELETING),
        [_FAILED, RemoveHome()],
    ),
    "a pod that never started goes at once": (State(home(deleting=30), None), [RemoveHome()]),
    "one that a finalizer keeps is not called pending for ever": (
        State(home(deleting=30, kept=True), None),
        [_FAILED, RemoveHome()],
    ),
    "nor running when the remote's kubelet had no last word": (
        State(home(phase="Running", deleting=0, kept=True), None, ended=remote()),
        [_FAILED, RemoveHome()],
    ),
    "its last word counts": (
        State(home(phase="Running", deleting=30, kept=True), None, ended=remote(phase="Succeeded")),
        [_SUCCEEDED, RemoveHome()],
    ),
    "one that may have is asked for": (State(home(marked=True, deleting=30), None), [Confirm()]),
    "and goes": (State(home(marked=True, deleting=30), None, confirmed=True), [RemoveHome()]),
    "one that is perhaps being made is asked for": (
        State(home(deleting=30), None, making=True),
        [Confirm()],
    ),
    "also when an earlier one has ended": (
        State(home(marked=True, deleting=30), None, making=True, ended=remote()),
        [Confirm()],
    ),
    "a terminal pod that is deleted goes": (
        State(home(phase="Failed", deleting=0), None, confirmed=True),
        [RemoveHome()],
    ),
    "what of it is left is deleted first": (
        State(home(phase="Succeeded", deleting=30), remote(phase="Succeeded")),
        [Delete(REMOTE_UID, 30)],
    ),
    "a terminal pod does not run again": (
        State(home(phase="Failed"), remote()),
        [Delete(REMOTE_UID, None)],
    ),
    "a terminal pod that has ended is left": (
        State(home(phase="Failed"), remote(phase="Succeeded")),
        [],
    ),
    "a terminal pod that is gone is left": (State(home(phase="Succeeded"), None), []),
    "a DaemonSet's pod is skipped, and counts as available": (
        State(home(daemon=True), None),
        [("status", "Running", "DaemonSetSkipped")],
    ),
    "a DaemonSet's pod that is deleted goes": (
        State(home(daemon=True, deleting=30), None),
        [RemoveHome()],
    ),
}


@pytest.mark.parametrize(("state", "expected"), _TABLE.values(), ids=_TABLE.keys())
def test_plan(state: State, expected: list[Any]) -> None:
    assert [_told(action) for action in _plan(state)] == expected


def test_a_refusal_is_told_once() -> None:
    pod = home(daemon=True)
    pod["status"] |= {"reason": "DaemonSetSkipped"}
    first = _plan(State(pod, None))
    assert isinstance(first[0], WriteStatus)
    pod["status"] |= first[0].patch

    assert _plan(State(pod, None)) == []


def test_an_owner_that_does_not_control_is_no_daemon_set() -> None:
    pod = home()
    pod["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "log"}]

    assert not skipped(pod, POLICY)


def test_an_end_before_another_attempt_says_that_it_was_deleted() -> None:
    actions = _plan(State(home(phase="Running"), _DELETING))

    assert isinstance(actions[0], WriteStatus)
    assert actions[0].patch["reason"] == "RemotePodDeleted"
