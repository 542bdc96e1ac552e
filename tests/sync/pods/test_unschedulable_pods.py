"""Pods for which the remote's scheduler, simulated by the test, finds no node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sync.cache.store import Key
from sync.kube.api_resources import PODS, Object
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness

SCHEDULER_MESSAGE = "0/1 nodes are available: 1 Insufficient cpu."
_MINUTE = "2030-01-01T00:{:02}:00Z"


@pytest.fixture
async def patient(harness: EngineHarness) -> EngineHarness:
    """An engine that waits for three minutes."""
    harness.policy = replace(harness.policy, unschedulable_timeout=180.0)
    await harness.start()
    return harness


def finds_no_node(harness: EngineHarness, message: str = SCHEDULER_MESSAGE) -> None:
    """The remote's scheduler reports the pod as unschedulable; its clock is years behind."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    harness.remote.update(PODS, "a", {"status": {"conditions": [condition]}}, REMOTE_NAMESPACE)


async def waiting(harness: EngineHarness, **spec: Any) -> Object:
    """A home pod for which the remote has found no node."""
    pod = harness.pod(**spec)
    await harness.settle()
    finds_no_node(harness)
    await harness.settle()
    return pod


async def advance_minutes(harness: EngineHarness, minutes: int) -> None:
    """Advances the clock and reconciles the pod, as its timer would."""
    harness.now = _MINUTE.format(minutes)
    reconcile_delayed(harness)
    await harness.settle()


def reconcile_delayed(harness: EngineHarness) -> None:
    queue = harness.engine.pods.controller.queue
    assert queue.delayed == 1, "the pod has a timer"
    queue.add(Key("default", "a"))


def condition_at_home(harness: EngineHarness) -> Object:
    """The condition at home."""
    found = {c["type"]: c for c in harness.status()["conditions"]}
    condition: Object = found["cluster-bridge.io/RemoteScheduled"]
    return condition


async def test_message_of_the_remotes_scheduler_is_reported(patient: EngineHarness) -> None:
    await waiting(patient)
    assert (condition_at_home(patient)["status"], condition_at_home(patient)["reason"]) == (
        "False",
        "Unschedulable",
    )
    assert condition_at_home(patient)["message"] == SCHEDULER_MESSAGE
    assert condition_at_home(patient)["lastTransitionTime"] == _MINUTE.format(0)
    patient.report_running()
    await patient.settle()
    assert condition_at_home(patient)["status"] == "True"
    assert patient.status()["phase"] == "Running"


@pytest.mark.parametrize("restart", ["Always", "OnFailure", "Never"])
async def test_pod_times_out_after_the_timeout_and_not_before(
    patient: EngineHarness, restart: str
) -> None:
    await waiting(patient, restartPolicy=restart)
    finds_no_node(patient, "0/2 nodes are available: 2 Insufficient cpu.")
    await advance_minutes(patient, 2)
    assert patient.remote_pod()
    await advance_minutes(patient, 3)
    assert patient.remote_pod() is None
    status = patient.status()
    assert (status["phase"], status["reason"]) == ("Failed", "RemoteUnschedulable")
    assert status["message"].endswith(
        "found no node for 180 s: 0/2 nodes are available: 2 Insufficient cpu."
    )
    disrupted = next(c for c in status["conditions"] if c["type"] == "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", "RemoteUnschedulable")
    await patient.events_with_reason("RemoteUnschedulable")
    await patient.restart()
    assert patient.writes() == []
    assert patient.remote_pod() is None


async def test_pod_bound_at_the_timeout_stays(patient: EngineHarness) -> None:
    """The deletion requires an older version than the current one."""
    await waiting(patient)
    patient.remote.mute_watches()
    patient.remote.bind("a", "worker", REMOTE_NAMESPACE)
    patient.now = _MINUTE.format(9)
    reconcile_delayed(patient)
    await patient.remote.until(lambda: patient.remote.writes("*/pods/a"))
    patient.remote.unmute_watches()
    await patient.settle()
    remote = patient.remote_pod()
    assert remote is not None
    assert "deletionTimestamp" not in remote["metadata"]
    patient.report_running()
    await patient.settle()
    assert patient.status()["phase"] == "Running"


@pytest.mark.parametrize("withdrawn", [True, False], ids=["after", "before"])
async def test_kill_around_the_timeout_ends_in_the_same_status(
    patient: EngineHarness, withdrawn: bool
) -> None:
    await waiting(patient)
    if withdrawn:
        patient.home.fail(
            Fault(
                "PATCH",
                "*/pods/a/status",
                when=lambda request: "Failed" in str(request.body),
                code=500,
                times=None,
            )
        )
        patient.now = _MINUTE.format(4)
        reconcile_delayed(patient)
        await patient.remote.until(lambda: patient.remote_pod() is None)
    await patient.stop()
    patient.home.heal()
    patient.now = _MINUTE.format(4)
    patient.clear_logs()
    await patient.start()
    assert patient.remote_pod() is None
    assert patient.status()["reason"] == "RemoteUnschedulable"
    assert not patient.remote.requests("POST", "*/pods"), "it was not made again"


async def test_pod_that_ran_while_no_bridge_did_is_not_called_unschedulable(
    patient: EngineHarness,
) -> None:
    """It was scheduled after the bridge had stopped, and lost with its node."""
    await waiting(patient)
    await patient.stop()
    patient.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    patient.now = _MINUTE.format(4)
    await patient.start()
    assert patient.remote_pod(), "its restart policy is Always"
    assert patient.status()["phase"] == "Pending"


async def test_failed_deletion_at_the_timeout_is_retried(patient: EngineHarness) -> None:
    await waiting(patient)
    patient.remote.fail(Fault("DELETE", "*/pods/a", code=500, times=3))
    await advance_minutes(patient, 4)
    assert patient.remote_pod() is None
    assert patient.status()["phase"] == "Failed"


async def test_timed_out_pod_with_a_remote_finalizer_fails_after_its_deletion(
    patient: EngineHarness,
) -> None:
    await waiting(patient)
    kept: Object = {"metadata": {"finalizers": ["example.com/look"]}}
    patient.remote.update(PODS, "a", kept, REMOTE_NAMESPACE)
    await advance_minutes(patient, 4)
    assert patient.remote_pod()
    assert patient.status()["phase"] == "Pending"
    assert "reason" not in patient.status(), "the pod is not re-created, so no reason announces it"
    patient.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await patient.settle()
    assert patient.status()["reason"] == "RemoteUnschedulable"


async def test_unschedulable_taint_survives_a_restart(patient: EngineHarness) -> None:
    await waiting(patient)
    unplaced = patient.engine.unschedulable_pods
    assert unplaced is not None
    crowded, again = unplaced.waiting()
    assert not crowded
    assert again is not None
    await patient.restart()
    unplaced = patient.engine.unschedulable_pods
    assert unplaced is not None
    assert unplaced.waiting() == (True, None)


async def test_without_a_timeout_it_waits_for_ever(harness: EngineHarness) -> None:
    await harness.start()
    await waiting(harness)
    assert harness.engine.unschedulable_pods is None
    assert not harness.engine.pods.controller.queue.delayed
    harness.now = _MINUTE.format(59)
    finds_no_node(harness, "still nothing")
    await harness.settle()
    assert harness.remote_pod()
    assert condition_at_home(harness)["message"] == "still nothing"
