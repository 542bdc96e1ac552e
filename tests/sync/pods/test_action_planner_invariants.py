"""Invariants of the plan, checked in every combination of pod states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from sync.pods.action_planner import plan_actions, skip_reason
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
from tests.fakeapi.patching import strategic
from tests.sync.pod_states import (
    HOME_UID,
    LONG_AGO,
    NOW,
    POLICY,
    PREVIOUS_UID,
    RECENTLY,
    REMOTE_UID,
    VERSION,
    home,
    remote,
)
from translators.object_accessors import Object, RemoteUid, is_deleting, uid_of
from translators.ownership_labels import origin_of
from translators.pods import unschedulable_timeout
from translators.pods.pod_status import is_terminal
from translators.pods.restart_policy_never import is_gated, may_have_started

_POLICIES = ("Always", "OnFailure", "Never")


def _homes() -> Iterator[Object | None]:
    yield None
    for policy, phase, deleting in product(
        _POLICIES, ("Pending", "Running", "Succeeded", "Failed"), (None, 30, 5, 0)
    ):
        yield home(policy=policy, phase=phase, deleting=deleting)
        if phase == "Pending":
            yield home(policy=policy, marked=True, deleting=deleting)
            yield home(policy=policy, deleting=deleting, daemon=True)
            yield home(policy=policy, deleting=deleting, image="busybox:2")
    for policy, since in product(_POLICIES, (RECENTLY, LONG_AGO)):
        yield home(policy=policy, waits=since, marked=policy == "Never")
    yield home(waits=LONG_AGO, deleting=30)


def _remotes() -> Iterator[Object | None]:
    yield None
    yield {"metadata": {"uid": "remote-2"}}
    for phase, deleting, of in product(
        ("Pending", "Running", "Succeeded", "Failed"), (None, 30, 5), (HOME_UID, PREVIOUS_UID)
    ):
        yield remote(phase=phase, deleting=deleting, of=of)
    for deleting in (None, 0):
        yield remote(phase="Pending", deleting=deleting, waits=True)
        yield remote(phase="Pending", deleting=deleting, held=True)


def _ends() -> Iterator[Object | None]:
    yield None
    for phase, deleting in product(("Running", "Succeeded", "Failed"), (None, 30)):
        yield remote(phase=phase, deleting=deleting)
    yield remote(phase="Pending", waits=True)
    yield remote(phase="Pending", held=True)


def _states() -> Iterator[PodState]:
    booleans = (False, True)
    for found in product(_homes(), _remotes(), _ends(), booleans, booleans):
        yield PodState(
            found[0],
            found[1],
            last_remote=found[2],
            create_pending=found[3],
            absence_confirmed=found[4],
        )
    for pod, ended, confirmed in product(_homes(), _ends(), booleans):
        yield PodState(
            pod, None, last_remote=ended, absence_confirmed=confirmed, is_cache_complete=False
        )
    for pod, there, left in product(_homes(), _remotes(), (20.0, 0.0)):
        yield PodState(pod, there, eviction_seconds=left)


def _plan(state: PodState) -> list[Action]:
    return plan_actions(state, POLICY, now=NOW)


@cache
def _plans() -> list[tuple[PodState, list[Action]]]:
    return [(state, _plan(state)) for state in _states()]


def _with(action: type[Action]) -> Iterator[tuple[PodState, list[Action]]]:
    for state, actions in _plans():
        if any(isinstance(found, action) for found in actions):
            yield state, actions


def _home(state: PodState) -> Object:
    assert state.home is not None
    return state.home


@pytest.mark.timeout(
    60
)  # The first test computes all plans, which takes half a minute on a busy machine.
def test_plan_is_pure_and_deterministic() -> None:
    for state, actions in _plans():
        before = repr(state)
        assert _plan(state) == actions
        assert repr(state) == before


@pytest.mark.parametrize(
    "action", [ConfirmAbsence, DeleteOrphan, Create, Ungate], ids=lambda kind: kind.__name__
)
def test_confirmation_is_the_only_action(action: type[Action]) -> None:
    assert all(len(actions) == 1 for _, actions in _with(action))


def test_confirmed_absence_is_not_requested_again() -> None:
    assert not any(state.absence_confirmed for state, _ in _with(ConfirmAbsence))


def test_pod_is_created_only_if_it_may_run() -> None:
    for state, _ in _with(Create):
        pod = _home(state)
        assert state.remote is None
        assert not is_deleting(pod)
        assert not is_terminal(pod)
        assert not skip_reason(pod, POLICY)


def test_run_once_pod_is_created_once() -> None:
    for state, _ in _with(Create):
        pod = _home(state)
        if pod["spec"]["restartPolicy"] == "Never" and not state.create_pending:
            assert not may_have_started(pod)
            assert state.last_remote is None or is_gated(state.last_remote)


def test_run_once_pod_is_ungated_after_it_is_marked() -> None:
    for state, actions in _with(Ungate):
        pod, there = _home(state), state.remote
        assert there is not None
        assert pod["spec"]["restartPolicy"] == "Never"
        assert not any(is_deleting(it) or is_terminal(it) for it in (pod, there))
        marked, held = may_have_started(pod), is_gated(there)
        assert actions == [Ungate(REMOTE_UID, marked=marked, gated=held)]
        assert held or not marked


def test_pod_that_may_have_run_is_recreated_only_after_confirmed_absence() -> None:
    for state, _ in _with(Create):
        ran = state.last_remote is not None or may_have_started(_home(state))
        assert (
            state.absence_confirmed
            or not ran
            or (state.create_pending and state.last_remote is None)
        )


def test_home_pod_is_removed_last() -> None:
    for state, actions in _with(RemoveHomePod):
        assert is_deleting(_home(state))
        assert state.remote is None
        assert isinstance(actions[-1], RemoveHomePod)
        doubtful = state.create_pending or (
            (may_have_started(_home(state)) or not state.is_cache_complete)
            and state.last_remote is None
        )
        assert state.absence_confirmed or not doubtful


def test_deleting_home_pod_is_removed_or_waits() -> None:
    for state, actions in _plans():
        if state.home is not None and is_deleting(state.home) and state.remote is None:
            assert actions
            assert isinstance(actions[-1], RemoveHomePod | ConfirmAbsence)


def test_only_orphans_are_deleted_as_orphans() -> None:
    for state, actions in _with(DeleteOrphan):
        assert state.remote is not None
        known = origin_of(state.remote)
        assert known is None or state.home is None or known.uid != uid_of(state.home)
        assert not is_deleting(state.remote)
        uid = RemoteUid(uid_of(state.remote))
        assert actions == [DeleteOrphan(uid, known.uid if known else None)]


def test_remote_pod_is_deleted_only_when_home_is_done_with_it() -> None:
    for state, actions in _with(Delete):
        assert state.remote is not None
        assert is_deleting(_home(state)) or is_terminal(_home(state))
        deletes = [action for action in actions if isinstance(action, Delete)]
        assert [action.uid for action in deletes] == [uid_of(state.remote)]


def test_only_a_live_remote_pod_is_updated_for_a_live_home_pod() -> None:
    for state, _ in _with(Update):
        assert state.remote is not None
        for pod in (_home(state), state.remote):
            assert not is_deleting(pod)
            assert not is_terminal(pod)


def test_pod_is_deleted_if_unbound_only_at_the_seen_version_and_after_the_timeout() -> None:
    for state, actions in _with(DeleteIfUnbound):
        assert not is_deleting(_home(state))
        assert unschedulable_timeout.timeout_remaining(_home(state), POLICY, now=NOW) == 0
        assert state.remote is not None
        assert unschedulable_timeout.is_unschedulable(state.remote)
        assert actions[-1] == DeleteIfUnbound(REMOTE_UID, VERSION)


def test_unschedulable_pod_is_requeued_for_its_timeout() -> None:
    for state, actions in _plans():
        pod, there = state.home, state.remote
        if pod is None or there is None or not unschedulable_timeout.is_unschedulable(there):
            continue
        if any(isinstance(action, Ungate) for action in actions):
            continue  # The next plan handles it.
        live = not is_deleting(pod) and not is_terminal(pod)
        assert isinstance(actions[-1] if actions else None, DeleteIfUnbound | RequeueAfter) == live
    for _, actions in _with(RequeueAfter):
        waits = [action.seconds for action in actions if isinstance(action, RequeueAfter)]
        assert waits in ([60], [300], [20])


def test_home_pod_is_evicted_only_while_its_remote_pod_terminates() -> None:
    assert list(_with(EvictHomePod))
    for state, actions in _with(EvictHomePod):
        assert state.eviction_seconds == 0
        assert not is_deleting(_home(state))
        assert not is_terminal(_home(state))
        assert state.remote is not None
        assert is_deleting(state.remote)
        assert actions[-1] == EvictHomePod()


def test_terminal_status_is_not_written() -> None:
    for state, actions in _with(WriteStatus):
        assert not is_terminal(_home(state))
        assert all(action.patch for action in actions if isinstance(action, WriteStatus))


def test_written_status_is_not_written_again() -> None:
    for state, actions in _with(WriteStatus):
        pod = _home(state)
        for action in actions:
            if isinstance(action, WriteStatus):
                pod = {**pod, "status": strategic(pod["status"], action.patch)}
        again = _plan(replace(state, home=pod))
        assert not any(isinstance(action, WriteStatus) for action in again)


def test_pod_that_will_run_again_is_not_reported_as_terminal() -> None:
    """Otherwise a terminal phase would have to be taken back."""
    for state, actions in _with(WriteStatus):
        written = [
            action.patch.get("phase") for action in actions if isinstance(action, WriteStatus)
        ]
        if is_deleting(_home(state)) or written[0] not in ("Succeeded", "Failed"):
            continue
        seen = state.remote or state.last_remote
        if seen is not None and is_deleting(seen):
            assert _home(state)["spec"]["restartPolicy"] != "Always"
