"""Pods that the remote's scheduler, which is the test here, cannot place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.resources import PODS, Object
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness

SAID = "0/1 nodes are available: 1 Insufficient cpu."
_MINUTE = "2030-01-01T00:{:02}:00Z"


@pytest.fixture
async def patient(harness: EngineHarness) -> EngineHarness:
    """An engine that waits for three minutes."""
    harness.policy = replace(harness.policy, unschedulable_timeout=180.0)
    await harness.start()
    return harness


def finds_no_node(harness: EngineHarness, said: str = SAID) -> None:
    """The remote's scheduler has looked at the pod; its clock is years behind."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": said,
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    harness.remote.update(PODS, "a", {"status": {"conditions": [condition]}}, REMOTE_NAMESPACE)


async def waiting(harness: EngineHarness, **spec: object) -> Object:
    """A home pod for which the remote has found no node."""
    pod = harness.pod(**spec)  # type: ignore[arg-type]
    await harness.settle()
    finds_no_node(harness)
    await harness.settle()
    return pod


async def minutes_pass(harness: EngineHarness, minutes: int) -> None:
    """The clock is later, and the wait's timer rings."""
    harness.now = _MINUTE.format(minutes)
    for key in list(harness.engine.pods.controller.queue._later):
        harness.engine.pods.controller.queue.add(key)
    await harness.settle()


def told(harness: EngineHarness) -> Object:
    """The condition at home."""
    found = {c["type"]: c for c in harness.status()["conditions"]}
    condition: Object = found["cluster-bridge.io/RemoteScheduled"]
    return condition


async def test_message_of_the_remotes_scheduler_is_reported(patient: EngineHarness) -> None:
    await waiting(patient)
    assert (told(patient)["status"], told(patient)["reason"]) == ("False", "Unschedulable")
    assert told(patient)["message"] == SAID
    assert told(patient)["lastTransitionTime"] == _MINUTE.format(0)
    patient.report_running()
    await patient.settle()
    assert told(patient)["status"] == "True"
    assert patient.status()["phase"] == "Running"


@pytest.mark.parametrize("restart", ["Always", "OnFailure", "Never"])
async def test_pod_times_out_after_the_timeout_and_not_before(
    patient: EngineHarness, restart: str
) -> None:
    await waiting(patient, restartPolicy=restart)
    finds_no_node(patient, "0/2 nodes are available: 2 Insufficient cpu.")
    await minutes_pass(patient, 2)
    assert patient.remote_pod()
    await minutes_pass(patient, 3)
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
    """The withdrawal meets a newer version than it was decided on."""
    await waiting(patient)
    patient.remote.mute_watches()
    patient.remote.bind("a", "worker", REMOTE_NAMESPACE)
    patient.now = _MINUTE.format(9)
    for key in list(patient.engine.pods.controller.queue._later):
        patient.engine.pods.controller.queue.add(key)
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
    await patient.stop()
    if withdrawn:
        patient.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    patient.now = _MINUTE.format(4)
    patient.clear_logs()
    await patient.start()
    assert patient.remote_pod() is None
    assert patient.status()["reason"] == "RemoteUnschedulable"
    assert not patient.remote.requests("POST", "*/pods"), "it was not made again"


async def test_failed_deletion_at_the_timeout_is_retried(patient: EngineHarness) -> None:
    await waiting(patient)
    patient.remote.fail(Fault("DELETE", "*/pods/a", code=500, times=3))
    await minutes_pass(patient, 4)
    assert patient.remote_pod() is None
    assert patient.status()["phase"] == "Failed"


async def test_timed_out_pod_with_a_remote_finalizer_fails_after_its_deletion(
    patient: EngineHarness,
) -> None:
    await waiting(patient)
    kept: Object = {"metadata": {"finalizers": ["example.com/look"]}}
    patient.remote.update(PODS, "a", kept, REMOTE_NAMESPACE)
    await minutes_pass(patient, 4)
    assert patient.remote_pod()
    assert patient.status()["phase"] == "Pending"
    assert "reason" not in patient.status(), "it is not made again, and so that is not said"
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
    assert told(harness)["message"] == "still nothing"
