"""Pods that the remote's scheduler, which is the test here, cannot place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.kube.resources import PODS, Object
from tests.fakeapi import Fault
from tests.sync.world import THERE, World

SAID = "0/1 nodes are available: 1 Insufficient cpu."
_MINUTE = "2030-01-01T00:{:02}:00Z"


@pytest.fixture
async def patient(world: World) -> World:
    """An engine that waits for three minutes."""
    world.policy = replace(world.policy, unschedulable_timeout=180.0)
    await world.start()
    return world


def finds_no_node(world: World, said: str = SAID) -> None:
    """The remote's scheduler has looked at the pod; its clock is years behind."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": said,
        "lastTransitionTime": "2020-01-01T00:00:00Z",
    }
    world.remote.update(PODS, "a", {"status": {"conditions": [condition]}}, THERE)


async def waiting(world: World, **spec: object) -> Object:
    """A home pod for which the remote has found no node."""
    pod = world.pod(**spec)  # type: ignore[arg-type]
    await world.settle()
    finds_no_node(world)
    await world.settle()
    return pod


async def minutes_pass(world: World, minutes: int) -> None:
    """The clock is later, and the wait's timer rings."""
    world.now = _MINUTE.format(minutes)
    for key in list(world.engine.pods.controller.queue._later):
        world.engine.pods.controller.queue.add(key)
    await world.settle()


def told(world: World) -> Object:
    """The condition at home."""
    found = {c["type"]: c for c in world.status()["conditions"]}
    condition: Object = found["cluster-bridge.io/RemoteScheduled"]
    return condition


async def test_message_of_the_remotes_scheduler_is_reported(patient: World) -> None:
    await waiting(patient)
    assert (told(patient)["status"], told(patient)["reason"]) == ("False", "Unschedulable")
    assert told(patient)["message"] == SAID
    assert told(patient)["lastTransitionTime"] == _MINUTE.format(0)
    patient.runs()
    await patient.settle()
    assert told(patient)["status"] == "True"
    assert patient.status()["phase"] == "Running"


@pytest.mark.parametrize("restart", ["Always", "OnFailure", "Never"])
async def test_pod_times_out_after_the_timeout_and_not_before(patient: World, restart: str) -> None:
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


async def test_pod_bound_at_the_timeout_stays(patient: World) -> None:
    """The withdrawal meets a newer version than it was decided on."""
    await waiting(patient)
    patient.remote.mute_watches()
    patient.remote.bind("a", "worker", THERE)
    patient.now = _MINUTE.format(9)
    for key in list(patient.engine.pods.controller.queue._later):
        patient.engine.pods.controller.queue.add(key)
    await patient.remote.until(lambda: patient.remote.writes("*/pods/a"))
    patient.remote.unmute_watches()
    await patient.settle()
    remote = patient.remote_pod()
    assert remote is not None
    assert "deletionTimestamp" not in remote["metadata"]
    patient.runs()
    await patient.settle()
    assert patient.status()["phase"] == "Running"


@pytest.mark.parametrize("withdrawn", [True, False], ids=["after", "before"])
async def test_kill_around_the_timeout_ends_in_the_same_status(
    patient: World, withdrawn: bool
) -> None:
    await waiting(patient)
    await patient.stop()
    if withdrawn:
        patient.remote.remove(PODS, "a", THERE)
    patient.now = _MINUTE.format(4)
    patient.clear_logs()
    await patient.start()
    assert patient.remote_pod() is None
    assert patient.status()["reason"] == "RemoteUnschedulable"
    assert not patient.remote.requests("POST", "*/pods"), "it was not made again"


async def test_failed_deletion_at_the_timeout_is_retried(patient: World) -> None:
    await waiting(patient)
    patient.remote.fail(Fault("DELETE", "*/pods/a", code=500, times=3))
    await minutes_pass(patient, 4)
    assert patient.remote_pod() is None
    assert patient.status()["phase"] == "Failed"


async def test_timed_out_pod_with_a_remote_finalizer_fails_after_its_deletion(
    patient: World,
) -> None:
    await waiting(patient)
    kept: Object = {"metadata": {"finalizers": ["example.com/look"]}}
    patient.remote.update(PODS, "a", kept, THERE)
    await minutes_pass(patient, 4)
    assert patient.remote_pod()
    assert patient.status()["phase"] == "Pending"
    assert "reason" not in patient.status(), "it is not made again, and so that is not said"
    patient.remote.remove(PODS, "a", THERE)
    await patient.settle()
    assert patient.status()["reason"] == "RemoteUnschedulable"


async def test_unschedulable_taint_survives_a_restart(patient: World) -> None:
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


async def test_without_a_timeout_it_waits_for_ever(world: World) -> None:
    await world.start()
    await waiting(world)
    assert world.engine.unschedulable_pods is None
    assert not world.engine.pods.controller.queue._later
    world.now = _MINUTE.format(59)
    finds_no_node(world, "still nothing")
    await world.settle()
    assert world.remote_pod()
    assert told(world)["message"] == "still nothing"
