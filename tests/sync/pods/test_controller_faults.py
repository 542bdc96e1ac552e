"""What a pod goes through when requests, caches or clusters fail, and what must not happen then."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.resources import NAMESPACES, PODS, Object
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.world import THERE, World
from translators.identity import LABEL_HOME, home_id_from_uid, origin_of
from translators.pods import restart_policy_never


def creates(world: World) -> int:
    """How many pods were asked for in the remote; a dry run makes none."""
    posts = [entry for entry in world.remote.writes("*/pods") if entry.method == "POST"]
    return len([entry for entry in posts if "dryRun" not in entry.query])


# -- made once -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
@pytest.mark.parametrize("drop", ["after", "before"], ids=["the answer", "the request"])
async def test_lost_create_request_creates_exactly_one_pod(
    world: World, policy: str, drop: str
) -> None:
    world.remote.fail(Fault("POST", "*/pods", drop="after" if drop == "after" else "before"))
    await world.start()
    world.pod(restartPolicy=policy)
    await world.settle()
    assert len(world.remote.objects(PODS)) == 1
    world.runs()
    await world.settle()
    assert world.status()["phase"] == "Running"


async def test_create_with_a_server_error_is_retried(world: World) -> None:
    world.remote.fail(Fault("POST", "*/pods", code=500, times=3))
    await world.start()
    world.pod(restartPolicy="Never")
    await world.settle()
    assert world.remote_pod()
    assert "reason" not in world.status(), "the server's trouble is not the pod's"


async def test_pod_with_unknown_create_outcome_that_is_absent_is_recreated(
    world: World,
) -> None:
    """It came and went while nobody looked: a gate kept it from running."""
    await world.start()
    world.remote.mute_watches()
    world.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = world.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    world.pod(restartPolicy="Never")
    await world.remote.until(lambda: hidden.hits)
    assert restart_policy_never.is_gated(world.remote_pod() or {})
    world.remote.remove(PODS, "a", THERE)
    world.remote.heal()
    world.remote.compact()
    world.remote.expire_watches()
    world.remote.unmute_watches()
    await world.settle()
    assert not restart_policy_never.is_gated(world.remote_pod() or {})
    world.runs()
    await world.settle()
    assert world.status()["phase"] == "Running"


@pytest.mark.parametrize("stays", [True, False])
async def test_gated_pod_of_a_killed_bridge_is_ungated_by_the_next(
    world: World, stays: bool
) -> None:
    fault = world.home.fail(Fault("PATCH", "*/pods/a/status", drop="before", times=None))
    await world.start()
    world.pod(restartPolicy="Never")
    await world.home.until(lambda: fault.hits)
    await world.stop()
    world.home.heal()
    assert restart_policy_never.is_gated(world.remote_pod() or {})
    if not stays:
        world.remote.remove(PODS, "a", THERE)
    world.clear_logs()
    await world.start()
    assert creates(world) == (0 if stays else 1)
    world.runs()
    await world.settle()
    assert world.status()["phase"] == "Running"


@pytest.mark.parametrize("drop", ["after", "before"], ids=["the answer", "the request"])
async def test_pod_lost_after_possible_ungating_has_failed(world: World, drop: str) -> None:
    """Nobody knows whether it has run: Never means never twice."""
    fault = Fault("PATCH", "*/pods/a", drop="after" if drop == "after" else "before", times=None)
    world.remote.fail(fault)
    await world.start()
    world.pod(restartPolicy="Never")
    await world.remote.until(lambda: fault.hits)
    await world.stop()
    world.remote.heal()
    assert world.status()["startTime"] == world.now
    assert restart_policy_never.is_gated(world.remote_pod() or {}) == (drop == "before")
    world.remote.remove(PODS, "a", THERE)
    world.clear_logs()
    await world.start()
    assert creates(world) == 0
    assert (world.status()["phase"], world.status()["reason"]) == ("Failed", "RemotePodLost")
    assert await world.events_with_reason("RemotePodLost")
    await world.restart()
    assert world.writes() == []


async def test_container_that_runs_once_is_not_started_again_with_a_lost_pod(
    world: World,
) -> None:
    await world.start()
    image = {"image": "busybox:1"}
    containers = [{"name": "main", **image}, {"name": "migrate", "restartPolicy": "Never", **image}]
    world.pod(containers=containers)
    await world.settle()
    assert not restart_policy_never.is_gated(world.remote_pod() or {})
    assert world.status()["startTime"] == world.now
    world.runs()
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.remote_pod() is None
    assert (world.status()["phase"], world.status()["reason"]) == ("Failed", "RemotePodLost")


async def test_a_conflict_about_a_status_loses_no_status(world: World) -> None:
    """Admission may say so, and the pod is the same."""
    await world.start()
    world.pod()
    await world.settle()
    conflict = world.home.fail(Fault("PATCH", "*/pods/a/status", code=409, times=1))
    world.runs()
    await world.settle()
    assert conflict.hits == 1
    assert world.status()["phase"] == "Running"


async def test_unmanaged_scheduling_gates_stay(world: World) -> None:
    """Such as a queue of the remote's own, which adds one when a pod is made."""

    def queued(obj: Object) -> None:
        if obj["kind"] == "Pod" and "resourceVersion" not in obj["metadata"]:
            gates = obj["spec"].setdefault("schedulingGates", [])
            gates.append({"name": "kueue.x-k8s.io/admission"})

    world.remote.store.webhook = queued
    await world.start()
    world.pod(restartPolicy="Never")
    await world.settle()
    gates = (world.remote_pod() or {})["spec"]["schedulingGates"]
    assert gates == [{"name": "kueue.x-k8s.io/admission"}]
    (condition,) = [c for c in world.status()["conditions"] if c["type"].startswith("cluster")]
    assert condition["reason"] == "SchedulingGated"


async def test_pod_created_before_a_kill_is_found_again(world: World) -> None:
    fault = world.remote.fail(Fault("POST", "*/pods", drop="after"))
    await world.start()
    world.pod(restartPolicy="Never")
    await world.remote.until(lambda: fault.hits)
    await world.restart()
    assert creates(world) == 0
    world.ends("Succeeded")
    await world.settle()
    assert world.status()["phase"] == "Succeeded"


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
@pytest.mark.parametrize("down", [False, True], ids=["while running", "while down"])
async def test_lost_pod_is_recreated(world: World, policy: str, down: bool) -> None:
    await world.start_running(restartPolicy=policy)
    if down:
        await world.stop()
    world.remote.remove(PODS, "a", THERE)
    if down:
        await world.start()
    await world.settle()
    assert world.remote_pod()
    world.runs(podIP="10.9.0.2", podIPs=[{"ip": "10.9.0.2"}])
    await world.settle()
    assert world.status()["podIPs"] == [{"ip": "10.9.0.2"}]


async def test_lost_run_once_pod_has_failed(world: World) -> None:
    await world.start_running(restartPolicy="Never")
    world.clear_logs()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    status = world.status()
    assert (status["phase"], status["reason"]) == ("Failed", "RemotePodLost")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert creates(world) == 0


async def test_terminal_pod_deleted_in_the_remote_is_not_run_again(
    world: World,
) -> None:
    await world.start()
    world.pod(restartPolicy="OnFailure")
    await world.settle()
    world.clear_logs()
    world.remote.mute_watches()
    world.ends("Succeeded")
    world.remote.remove(PODS, "a", THERE)
    world.remote.unmute_watches()
    await world.settle()
    assert world.status()["phase"] == "Succeeded"
    assert creates(world) == 0


async def test_pod_deleted_only_in_the_remote_is_recreated_without_a_terminal_status(
    world: World,
) -> None:
    await world.start_running()
    world.remote.delete(PODS, "a", THERE)
    world.ends("Failed")
    await world.settle()
    assert world.status()["phase"] == "Running"
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert "deletionTimestamp" not in (world.remote_pod() or {})["metadata"]


async def test_a_terminal_pod_is_never_touched_again(world: World) -> None:
    await world.start()
    world.pod(restartPolicy="Never")
    await world.settle()
    world.ends("Succeeded")
    await world.settle()
    world.clear_logs()
    world.runs()
    await world.settle()
    assert [write for write in world.writes() if write.startswith("home")] == []
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert creates(world) == 0
    assert world.status()["phase"] == "Succeeded"


# -- caches that lag -----------------------------------------------------------------------


async def test_stale_remote_cache_neither_starts_a_pod_twice_nor_reports_it_lost(
    world: World,
) -> None:
    await world.start()
    world.remote.mute_watches()
    for policy in ("Always", "Never"):
        world.pod(policy.lower(), restartPolicy=policy)
    await world.remote.until(lambda: len(world.remote.objects(PODS)) == 2)
    for name in ("always", "never"):
        world.home.update(PODS, name, {"metadata": {"labels": {"x": "y"}}}, "default")
    await asyncio.sleep(0.05)
    assert creates(world) == 2
    world.remote.unmute_watches()
    await world.settle()
    assert creates(world) == 2
    assert {status.get("reason") for status in map(world.status, ("always", "never"))} == {None}


async def test_stale_home_cache_does_not_create_a_pod_for_a_deleted_one(
    world: World,
) -> None:
    """The mark that it may run cannot be written any more: then it does not run."""
    await world.start()
    world.pod("first", restartPolicy="Never")
    await world.settle()
    hold = world.remote.fail(Fault("POST", "*/configmaps", delay=0.1))
    world.home.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    world.pod("late", restartPolicy="Never", uses=["cm/c"])
    await world.remote.until(lambda: hold.hits)
    world.home.mute_watches()
    world.home.remove(PODS, "late", "default")
    await world.home.until(lambda: world.home.writes("*/late/status"))
    await asyncio.sleep(0.03)
    assert restart_policy_never.is_gated(world.remote_pod("late") or {})
    world.home.unmute_watches()
    await world.settle()
    assert world.remote_pod("late") is None
    assert creates(world) == 2


async def test_pod_waiting_for_a_previous_pod_of_its_name_is_not_reported_lost(
    world: World,
) -> None:
    """The remote cache does not show the former pod, so that the create meets it."""
    await world.start()
    world.remote.mute_watches()
    world.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = world.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    world.pod(restartPolicy="Never")
    await world.remote.until(lambda: hidden.hits)
    world.home.remove(PODS, "a", "default")
    second = world.pod(restartPolicy="Never")
    tries = creates(world)
    world.remote.heal()
    await world.remote.until(lambda: creates(world) > tries)
    await asyncio.sleep(0.03)
    world.remote.unmute_watches()
    await world.settle()
    assert world.status().get("reason") is None
    origin = origin_of(world.remote_pod() or {})
    assert origin is not None
    assert origin.uid == second["metadata"]["uid"]


# -- refusals and clashes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"), [(403, "RemoteForbidden"), (422, "RemoteInvalid"), (400, "RemoteRefused")]
)
@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_rejection_by_the_remote_is_reported_once_and_retried(
    world: World, code: int, reason: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    fault = world.remote.fail(
        Fault("POST", "*/pods", code=code, message="exceeded quota: too much", times=None)
    )
    await world.start()
    world.pod(restartPolicy=policy)
    await world.remote.until(lambda: fault.hits >= 4)
    status = world.status()
    assert (status["phase"], status["reason"]) == ("Pending", reason)
    assert "exceeded quota: too much" in status["message"]
    (event,) = await world.events_with_reason(reason)
    assert event["involvedObject"]["uid"] == world.home_pod()["metadata"]["uid"]
    assert event["type"] == "Warning"
    world.remote.heal()
    await world.settle()
    assert len(await world.events_with_reason(reason)) == 1
    world.runs()
    await world.settle()
    status = world.status()
    assert status["phase"] == "Running"
    assert "reason" not in status
    assert "message" not in status


async def test_rejected_pod_of_a_killed_bridge_is_created_by_the_next(world: World) -> None:
    fault = world.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await world.start()
    world.pod(restartPolicy="Never")
    await world.events_with_reason("RemoteForbidden")
    await world.remote.until(lambda: fault.hits >= 2)
    await world.settle(waiting=True)
    assert "startTime" not in world.status()
    await world.stop()
    world.remote.heal()
    await world.start()
    assert world.remote_pod()


async def test_unmanaged_pod_of_that_name_is_left_alone_and_reported(world: World) -> None:
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": _ours(THERE)})
    theirs = world.remote.put(pod("a", THERE))
    await world.start()
    world.pod()
    await world.events_with_reason("RemoteClash")
    await world.settle(waiting=True)
    assert world.status()["reason"] == "RemoteClash"
    assert f"remote: pod {THERE}/a exists" in world.status()["message"]
    assert world.remote_pod() == theirs
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.remote_pod()
    assert len(await world.events_with_reason("RemoteClash")) == 1
    assert (await world.events_with_reason("RemoteClash"))[0].get("count") == 1


async def test_update_that_the_remote_rejects_is_reported_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await world.start()
    world.pod()
    await world.settle()
    world.runs()
    fault = world.remote.fail(Fault("PATCH", "*/pods/a", code=422, message="no", times=None))
    world.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await world.remote.until(lambda: fault.hits >= 3)
    (event,) = await world.events_with_reason("UpdateRefused")
    await world.settle(waiting=True)
    world.remote.heal()
    await world.settle()
    assert len(world.home.writes("*/events*")) == 1, event
    assert (world.remote_pod() or {})["metadata"]["labels"]["x"] == "y"


async def test_pod_waits_for_a_terminating_remote_namespace(
    world: World,
) -> None:
    await world.start_running()
    world.remote.delete(NAMESPACES, THERE)
    await world.settle()
    world.pod("late")
    await world.events_with_reason("RemoteNamespaceTerminating")
    world.remote.remove(PODS, "a", THERE)
    await world.remote.until(lambda: world.remote_pod("late") and world.remote_pod("a"))
    await world.settle()
    assert "deletionTimestamp" not in world.remote.get(NAMESPACES, THERE)["metadata"]


def _ours(name: str) -> Object:
    return {"name": name, "labels": {LABEL_HOME: home_id_from_uid("some uid")}}


# -- deletions that are refused ------------------------------------------------------------


async def test_deletion_answered_with_a_conflict_is_retried(
    world: World,
) -> None:
    await world.start()
    world.pod()
    await world.settle()
    world.runs()
    await world.settle()
    denied = 'admission webhook "guard.test" denied the request: still in use'
    fault = world.remote.fail(Fault("DELETE", "*/pods/a", code=409, message=denied, times=3))
    world.home.delete(PODS, "a", "default")
    await world.remote.until(lambda: fault.hits == 3)
    await world.settle()
    there = world.remote_pod()
    assert there is None or there["metadata"].get("deletionTimestamp")
