"""Pods survive failures of requests, caches and clusters, and never run twice."""

from __future__ import annotations

import asyncio

import pytest

from sync.kube.api_resources import NAMESPACES, PODS, Object
from tests.fakeapi import Fault
from tests.objects import pod
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.ownership_labels import LABEL_HOME, origin_of
from translators.pods import restart_policy_never
from translators.virtual_node_identity import home_id_from_uid


def creates(harness: EngineHarness) -> int:
    """The number of create requests for remote pods, without dry runs."""
    posts = [entry for entry in harness.remote.writes("*/pods") if entry.method == "POST"]
    return len([entry for entry in posts if "dryRun" not in entry.query])


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
@pytest.mark.parametrize("drop", ["after", "before"], ids=["the answer", "the request"])
async def test_lost_create_request_creates_exactly_one_pod(
    harness: EngineHarness, policy: str, drop: str
) -> None:
    harness.remote.fail(Fault("POST", "*/pods", drop="after" if drop == "after" else "before"))
    await harness.start()
    harness.pod(restartPolicy=policy)
    await harness.settle()
    assert len(harness.remote.objects(PODS)) == 1
    harness.report_running()
    await harness.settle()
    assert harness.status()["phase"] == "Running"


async def test_create_with_a_server_error_is_retried(harness: EngineHarness) -> None:
    harness.remote.fail(Fault("POST", "*/pods", code=500, times=3))
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.settle()
    assert harness.remote_pod()
    assert "reason" not in harness.status(), "the server's trouble is not the pod's"


async def test_pod_with_unknown_create_outcome_that_is_absent_is_recreated(
    harness: EngineHarness,
) -> None:
    """The pod was created and deleted unobserved; its scheduling gate kept it from running."""
    await harness.start()
    harness.remote.mute_watches()
    harness.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = harness.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    harness.pod(restartPolicy="Never")
    await harness.remote.until(lambda: hidden.hits)
    assert restart_policy_never.is_gated(harness.remote_pod() or {})
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    harness.remote.heal()
    harness.remote.compact()
    harness.remote.expire_watches()
    harness.remote.unmute_watches()
    await harness.settle()
    assert not restart_policy_never.is_gated(harness.remote_pod() or {})
    harness.report_running()
    await harness.settle()
    assert harness.status()["phase"] == "Running"


@pytest.mark.parametrize("stays", [True, False])
async def test_gated_pod_of_a_killed_bridge_is_ungated_by_the_next(
    harness: EngineHarness, stays: bool
) -> None:
    fault = harness.home.fail(Fault("PATCH", "*/pods/a/status", drop="before", times=None))
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.home.until(lambda: fault.hits)
    await harness.stop()
    harness.home.heal()
    assert restart_policy_never.is_gated(harness.remote_pod() or {})
    if not stays:
        harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    harness.clear_logs()
    await harness.start()
    assert creates(harness) == (0 if stays else 1)
    harness.report_running()
    await harness.settle()
    assert harness.status()["phase"] == "Running"


@pytest.mark.parametrize("drop", ["after", "before"], ids=["the answer", "the request"])
async def test_pod_lost_after_possible_ungating_has_failed(
    harness: EngineHarness, drop: str
) -> None:
    """The pod may have run, and a pod with restartPolicy Never must not run twice."""
    fault = Fault("PATCH", "*/pods/a", drop="after" if drop == "after" else "before", times=None)
    harness.remote.fail(fault)
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.remote.until(lambda: fault.hits)
    await harness.stop()
    harness.remote.heal()
    assert harness.status()["startTime"] == harness.now
    assert restart_policy_never.is_gated(harness.remote_pod() or {}) == (drop == "before")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    harness.clear_logs()
    await harness.start()
    assert creates(harness) == 0
    assert (harness.status()["phase"], harness.status()["reason"]) == ("Failed", "RemotePodLost")
    assert await harness.events_with_reason("RemotePodLost")
    await harness.restart()
    assert harness.writes() == []


async def test_container_that_runs_once_is_not_started_again_with_a_lost_pod(
    harness: EngineHarness,
) -> None:
    await harness.start()
    image = {"image": "busybox:1"}
    containers = [{"name": "main", **image}, {"name": "migrate", "restartPolicy": "Never", **image}]
    harness.pod(containers=containers)
    await harness.settle()
    assert not restart_policy_never.is_gated(harness.remote_pod() or {})
    assert harness.status()["startTime"] == harness.now
    harness.report_running()
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod() is None
    assert (harness.status()["phase"], harness.status()["reason"]) == ("Failed", "RemotePodLost")


async def test_a_conflict_about_a_status_loses_no_status(harness: EngineHarness) -> None:
    """Admission may respond with a conflict although the pod has not changed."""
    await harness.start()
    harness.pod()
    await harness.settle()
    conflict = harness.home.fail(Fault("PATCH", "*/pods/a/status", code=409, times=1))
    harness.report_running()
    await harness.settle()
    assert conflict.hits == 1
    assert harness.status()["phase"] == "Running"


async def test_unmanaged_scheduling_gates_stay(harness: EngineHarness) -> None:
    """For example of a queueing controller in the remote, which adds a gate at creation."""

    def queued(obj: Object) -> None:
        if obj["kind"] == "Pod" and "resourceVersion" not in obj["metadata"]:
            gates = obj["spec"].setdefault("schedulingGates", [])
            gates.append({"name": "kueue.x-k8s.io/admission"})

    harness.remote.store.webhook = queued
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.settle()
    gates = (harness.remote_pod() or {})["spec"]["schedulingGates"]
    assert gates == [{"name": "kueue.x-k8s.io/admission"}]
    (condition,) = [c for c in harness.status()["conditions"] if c["type"].startswith("cluster")]
    assert condition["reason"] == "SchedulingGated"


async def test_pod_created_before_a_kill_is_found_again(harness: EngineHarness) -> None:
    fault = harness.remote.fail(Fault("POST", "*/pods", drop="after"))
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.remote.until(lambda: fault.hits)
    await harness.restart()
    assert creates(harness) == 0
    harness.report_terminated("Succeeded")
    await harness.settle()
    assert harness.status()["phase"] == "Succeeded"


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
@pytest.mark.parametrize("down", [False, True], ids=["while running", "while down"])
async def test_lost_pod_is_recreated(harness: EngineHarness, policy: str, down: bool) -> None:
    await harness.start_running(restartPolicy=policy)
    if down:
        await harness.stop()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    if down:
        await harness.start()
    await harness.settle()
    assert harness.remote_pod()
    harness.report_running(podIP="10.9.0.2", podIPs=[{"ip": "10.9.0.2"}])
    await harness.settle()
    assert harness.status()["podIPs"] == [{"ip": "10.9.0.2"}]


async def test_lost_run_once_pod_has_failed(harness: EngineHarness) -> None:
    await harness.start_running(restartPolicy="Never")
    harness.clear_logs()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    status = harness.status()
    assert (status["phase"], status["reason"]) == ("Failed", "RemotePodLost")
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert creates(harness) == 0


async def test_terminal_pod_deleted_in_the_remote_is_not_run_again(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(restartPolicy="OnFailure")
    await harness.settle()
    harness.clear_logs()
    harness.remote.mute_watches()
    harness.report_terminated("Succeeded")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    harness.remote.unmute_watches()
    await harness.settle()
    assert harness.status()["phase"] == "Succeeded"
    assert creates(harness) == 0


async def test_pod_deleted_only_in_the_remote_is_recreated_without_a_terminal_status(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    harness.remote.delete(PODS, "a", REMOTE_NAMESPACE)
    harness.report_terminated("Failed")
    await harness.settle()
    assert harness.status()["phase"] == "Running"
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert "deletionTimestamp" not in (harness.remote_pod() or {})["metadata"]


async def test_a_terminal_pod_is_never_touched_again(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.settle()
    harness.report_terminated("Succeeded")
    await harness.settle()
    harness.clear_logs()
    harness.report_running()
    await harness.settle()
    assert [write for write in harness.writes() if write.startswith("home")] == []
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert creates(harness) == 0
    assert harness.status()["phase"] == "Succeeded"


async def test_stale_remote_cache_neither_starts_a_pod_twice_nor_reports_it_lost(
    harness: EngineHarness,
) -> None:
    await harness.start()
    harness.remote.mute_watches()
    for policy in ("Always", "Never"):
        harness.pod(policy.lower(), restartPolicy=policy)
    await harness.remote.until(lambda: len(harness.remote.objects(PODS)) == 2)
    for name in ("always", "never"):
        harness.home.update(PODS, name, {"metadata": {"labels": {"x": "y"}}}, "default")
    await asyncio.sleep(0.05)
    assert creates(harness) == 2
    harness.remote.unmute_watches()
    await harness.settle()
    assert creates(harness) == 2
    assert {status.get("reason") for status in map(harness.status, ("always", "never"))} == {None}


async def test_stale_home_cache_does_not_create_a_pod_for_a_deleted_one(
    harness: EngineHarness,
) -> None:
    """The bridge cannot mark the deleted home pod as ungated, so it does not ungate the remote
    pod."""
    await harness.start()
    harness.pod("first", restartPolicy="Never")
    await harness.settle()
    hold = harness.remote.fail(Fault("POST", "*/configmaps", delay=0.1))
    harness.home.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    harness.pod("late", restartPolicy="Never", uses=["cm/c"])
    await harness.remote.until(lambda: hold.hits)
    harness.home.mute_watches()
    harness.home.remove(PODS, "late", "default")
    await harness.home.until(lambda: harness.home.writes("*/late/status"))
    await asyncio.sleep(0.03)
    assert restart_policy_never.is_gated(harness.remote_pod("late") or {})
    harness.home.unmute_watches()
    await harness.settle()
    assert harness.remote_pod("late") is None
    assert creates(harness) == 2


async def test_pod_waiting_for_a_previous_pod_of_its_name_is_not_reported_lost(
    harness: EngineHarness,
) -> None:
    """The remote cache lacks the previous pod, so the create fails with a conflict."""
    await harness.start()
    harness.remote.mute_watches()
    harness.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = harness.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    harness.pod(restartPolicy="Never")
    await harness.remote.until(lambda: hidden.hits)
    harness.home.remove(PODS, "a", "default")
    second = harness.pod(restartPolicy="Never")
    tries = creates(harness)
    harness.remote.heal()
    await harness.remote.until(lambda: creates(harness) > tries)
    await asyncio.sleep(0.03)
    harness.remote.unmute_watches()
    await harness.settle()
    assert harness.status().get("reason") is None
    origin = origin_of(harness.remote_pod() or {})
    assert origin is not None
    assert origin.uid == second["metadata"]["uid"]


@pytest.mark.parametrize(
    ("code", "reason"), [(403, "RemoteForbidden"), (422, "RemoteInvalid"), (400, "RemoteRefused")]
)
@pytest.mark.parametrize("policy", ["Always", "Never"])
async def test_rejection_by_the_remote_is_reported_once_and_retried(
    harness: EngineHarness, code: int, reason: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    fault = harness.remote.fail(
        Fault("POST", "*/pods", code=code, message="exceeded quota: too much", times=None)
    )
    await harness.start()
    harness.pod(restartPolicy=policy)
    await harness.remote.until(lambda: fault.hits >= 4)
    status = harness.status()
    assert (status["phase"], status["reason"]) == ("Pending", reason)
    assert "exceeded quota: too much" in status["message"]
    (event,) = await harness.events_with_reason(reason)
    assert event["involvedObject"]["uid"] == harness.home_pod()["metadata"]["uid"]
    assert event["type"] == "Warning"
    harness.remote.heal()
    await harness.settle()
    assert len(await harness.events_with_reason(reason)) == 1
    harness.report_running()
    await harness.settle()
    status = harness.status()
    assert status["phase"] == "Running"
    assert "reason" not in status
    assert "message" not in status


async def test_rejected_pod_of_a_killed_bridge_is_created_by_the_next(
    harness: EngineHarness,
) -> None:
    fault = harness.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.events_with_reason("RemoteForbidden")
    await harness.remote.until(lambda: fault.hits >= 2)
    await harness.settle(waiting=True)
    assert "startTime" not in harness.status()
    await harness.stop()
    harness.remote.heal()
    await harness.start()
    assert harness.remote_pod()


async def test_unmanaged_pod_of_that_name_is_left_alone_and_reported(
    harness: EngineHarness,
) -> None:
    harness.remote.put(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": _ours(REMOTE_NAMESPACE)}
    )
    theirs = harness.remote.put(pod("a", REMOTE_NAMESPACE))
    await harness.start()
    harness.pod()
    await harness.events_with_reason("RemoteClash")
    await harness.settle(waiting=True)
    assert harness.status()["reason"] == "RemoteClash"
    assert f"remote: pod {REMOTE_NAMESPACE}/a exists" in harness.status()["message"]
    assert harness.remote_pod() == theirs
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod()
    assert len(await harness.events_with_reason("RemoteClash")) == 1
    assert (await harness.events_with_reason("RemoteClash"))[0].get("count") == 1


async def test_update_that_the_remote_rejects_is_reported_once(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.report_running()
    fault = harness.remote.fail(Fault("PATCH", "*/pods/a", code=422, message="no", times=None))
    harness.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await harness.remote.until(lambda: fault.hits >= 3)
    (event,) = await harness.events_with_reason("UpdateRefused")
    await harness.settle(waiting=True)
    harness.remote.heal()
    await harness.settle()
    assert len(harness.home.writes("*/events*")) == 1, event
    assert (harness.remote_pod() or {})["metadata"]["labels"]["x"] == "y"


async def test_pod_waits_for_a_terminating_remote_namespace(harness: EngineHarness) -> None:
    await harness.start_running()
    harness.remote.delete(NAMESPACES, REMOTE_NAMESPACE)
    await harness.settle()
    harness.pod("late")
    await harness.events_with_reason("RemoteNamespaceTerminating")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.remote.until(lambda: harness.remote_pod("late") and harness.remote_pod("a"))
    await harness.settle()
    assert "deletionTimestamp" not in harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]


def _ours(name: str) -> Object:
    return {"name": name, "labels": {LABEL_HOME: home_id_from_uid("some uid")}}


async def test_deletion_answered_with_a_conflict_is_retried(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.report_running()
    await harness.settle()
    denied = 'admission webhook "guard.test" denied the request: still in use'
    fault = harness.remote.fail(Fault("DELETE", "*/pods/a", code=409, message=denied, times=3))
    harness.home.delete(PODS, "a", "default")
    await harness.remote.until(lambda: fault.hits == 3)
    await harness.settle()
    there = harness.remote_pod()
    assert there is None or there["metadata"].get("deletionTimestamp")


async def test_deletion_that_a_restored_remote_does_not_have_is_sent_again(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    harness.home.delete(PODS, "a", "default", grace_seconds=30)
    await harness.settle()
    assert "deletionTimestamp" in (harness.remote_pod() or {})["metadata"]
    harness.clear_logs()
    earlier: Object = {"deletionTimestamp": None, "deletionGracePeriodSeconds": None}
    harness.remote.update(PODS, "a", {"metadata": earlier}, REMOTE_NAMESPACE)
    await harness.settle()
    await harness.remote.until(
        lambda: "deletionTimestamp" in (harness.remote_pod() or {})["metadata"]
    )


async def test_status_that_a_webhook_rejects_with_404_is_written_later(
    harness: EngineHarness,
) -> None:
    """The 404 is no statement about the home pod: the scheduling gate must not stay."""
    denied = 'admission webhook "guard.test" denied the request: not found'
    await harness.start()
    fault = harness.home.fail(Fault("PATCH", "*/pods/a/status", code=404, message=denied, times=2))
    harness.pod(restartPolicy="Never")
    await harness.home.until(lambda: fault.hits == 2)
    await harness.settle()
    assert not (harness.remote_pod() or {})["spec"].get("schedulingGates")
