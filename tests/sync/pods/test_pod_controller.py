"""The life of a pod across both clusters, with the test as the remote's kubelet."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from sync.base.background_task import background_task
from sync.kube.api_resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, SERVICES, Object
from sync.mirror.copy_controller import CopyController
from tests.fakeapi import Fault
from tests.objects import config_map, node, pod, secret
from tests.sync.engine_harness import ADDRESS, REMOTE_NAMESPACE, EngineHarness
from translators.capacity.node_capacity import OfferLimits
from translators.ownership_labels import origin_of


def service(name: str, **selector: str) -> Object:
    """A Service of one port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector, "ports": [{"port": 80}]},
    }


async def test_pod_is_created_after_its_namespace_and_references(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", data={"k": "v"}))
    harness.home.put(secret("key", data={"k": "djE="}))
    harness.home.put(service("web", app="web"))
    harness.home.put(service("other", app="other"))
    harness.home.put(config_map("unused"))
    await harness.start()
    harness.pod(uses=["cm/conf", "secret/key", "cm/missing"], labels={"app": "web"})
    await harness.settle()
    paths = [entry.path for entry in harness.remote.writes()]
    assert paths[0] == "/api/v1/namespaces"
    assert paths[-1] == f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods"
    assert {path.rpartition("/")[2] for path in paths[1:-1]} == {
        "configmaps",
        "secrets",
        "services",
    }
    assert len(paths) == 6, "the other Service of the namespace too, and nothing else"
    assert harness.remote.get(CONFIG_MAPS, "conf", REMOTE_NAMESPACE)["data"] == {"k": "v"}
    assert harness.remote.get(SECRETS, "key", REMOTE_NAMESPACE)["data"] == {"k": "djE="}
    assert harness.remote.find(SERVICES, "web", REMOTE_NAMESPACE)
    assert harness.remote_pod()


async def test_status_follows_with_the_address_of_the_bridge(harness: EngineHarness) -> None:
    await harness.start_running()
    status = harness.status()
    assert (status["phase"], status["podIP"], status["hostIP"]) == ("Running", "10.9.0.1", ADDRESS)
    assert status["containerStatuses"][0]["ready"] is True
    harness.report_terminated("Succeeded")
    await harness.settle()
    assert harness.status()["phase"] == "Succeeded"


async def test_nothing_is_written_when_nothing_changes(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf"))
    harness.home.put(service("web", app="web"))
    await harness.start_running(uses=["cm/conf"], labels={"app": "web"})
    harness.clear_logs()
    for queue in (
        harness.engine.pods.controller.queue,
        harness.engine.find(CopyController).controller.queue,
    ):
        assert not queue.delayed
    for home in harness.home.objects(PODS):
        harness.engine.pods.home_pod_changed(None, home)
        harness.engine.find(CopyController).home_pod_changed(None, home)
    harness.home.break_watches()
    harness.remote.expire_watches()
    await harness.settle()
    assert harness.writes() == []
    assert harness.home.writes() == []


async def test_one_status_change_is_one_write(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.clear_logs()
    harness.report_running()
    await harness.settle()
    assert len(harness.writes()) <= 2, "binding and status are two events of the remote"
    harness.clear_logs()
    harness.report_running(message="something else")
    await harness.settle()
    assert harness.writes() == ["home PATCH /api/v1/namespaces/default/pods/a/status"]


async def test_a_restart_of_the_engine_with_running_pods_writes_nothing(
    harness: EngineHarness,
) -> None:
    harness.home.put(config_map("conf"))
    harness.home.put(secret("key"))
    await harness.start()
    for name in "abc":
        harness.pod(name, uses=["cm/conf", "secret/key"], restartPolicy="Never")
    await harness.settle()
    for name in "ab":
        harness.report_running(name)
    harness.report_terminated("Failed", "c")
    await harness.settle()
    await harness.restart()
    assert harness.writes() == []
    assert harness.home.writes() == []


async def test_overwritten_status_is_restored(harness: EngineHarness) -> None:
    await harness.start_running()
    harness.home.update(PODS, "a", {"status": {"podIP": "1.2.3.4"}}, "default")
    await harness.settle()
    assert harness.status()["podIP"] == "10.9.0.1"


async def test_images_and_labels_follow(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.report_running()
    change: Object = {
        "metadata": {"labels": {"tier": "front"}},
        "spec": {"containers": [{**harness.home_pod()["spec"]["containers"][0], "image": "x:2"}]},
    }
    harness.home.update(PODS, "a", change, "default")
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    assert remote["metadata"]["labels"]["tier"] == "front"
    assert remote["spec"]["containers"][0]["image"] == "x:2"
    harness.clear_logs()
    harness.report_running()
    await harness.settle()
    assert not [write for write in harness.writes() if write.startswith("remote")]


async def test_deletion_is_forwarded_with_its_grace_and_waits_for_the_remote(
    harness: EngineHarness,
) -> None:
    await harness.start_running()
    harness.home.delete(PODS, "a", "default", grace_seconds=17)
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionGracePeriodSeconds"] == 17
    assert harness.home_pod()["metadata"]["deletionTimestamp"]
    harness.home.delete(PODS, "a", "default", grace_seconds=3)
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionGracePeriodSeconds"] == 3
    harness.report_terminated("Failed")
    await harness.settle()
    assert harness.status()["phase"] == "Failed"
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.home.find(PODS, "a", "default") is None


async def test_pod_without_a_remote_pod_is_removed_at_once(harness: EngineHarness) -> None:
    harness.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await harness.start()
    harness.pod()
    await harness.events_with_reason("RemoteForbidden")
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    assert harness.home.find(PODS, "a", "default") is None


async def test_deletion_confirms_absence_after_an_unknown_create_outcome(
    harness: EngineHarness,
) -> None:
    """The response to the create was lost, and no watch has reported the pod yet."""
    harness.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = harness.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    await harness.start()
    harness.remote.mute_watches()
    harness.pod()
    await harness.remote.until(lambda: hidden.hits)
    harness.home.delete(PODS, "a", "default")
    await harness.remote.until(lambda: harness.remote.writes("*/pods/a"))
    assert harness.home.find(PODS, "a", "default") is not None
    assert (harness.remote_pod() or {}).get("metadata", {}).get("deletionTimestamp") is None
    harness.remote.heal()
    harness.remote.unmute_watches()
    await harness.settle()
    assert harness.remote_pod() is None
    assert harness.home.find(PODS, "a", "default") is None


async def test_forced_deletion_of_a_pod_with_a_finalizer_keeps_its_grace(
    harness: EngineHarness,
) -> None:
    """With ``podReplacementPolicy: Failed`` a Job creates the next pod when this one has ended."""
    await harness.start_running(terminationGracePeriodSeconds=40)
    finalizers = {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
    harness.home.update(PODS, "a", finalizers, "default")
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    meta = (harness.remote_pod() or {})["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 40
    assert harness.status()["phase"] == "Running", "its containers still run"
    harness.report_terminated("Failed")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.status()["phase"] == "Failed"


async def test_a_pod_recreated_under_its_name_is_another_pod(harness: EngineHarness) -> None:
    await harness.start_running()
    first = harness.remote_pod()
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    second = harness.pod()
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    assert first is not None
    assert remote["metadata"]["uid"] == first["metadata"]["uid"]
    assert remote["metadata"]["deletionTimestamp"], "the previous pod terminates gracefully"
    assert harness.status().get("podIP") is None
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    origin = origin_of(remote)
    assert origin is not None
    assert origin.uid == second["metadata"]["uid"]


@pytest.mark.parametrize("while_down", [True, False], ids=["while down", "while running"])
async def test_orphan_is_deleted_in_the_remote(harness: EngineHarness, while_down: bool) -> None:
    await harness.start_running()
    if while_down:
        await harness.stop()
    harness.home.remove(PODS, "a", "default")
    if while_down:
        await harness.start()
    await harness.settle()
    remote = harness.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionTimestamp"]


async def test_orphan_is_deleted_only_after_home_confirmed_it(harness: EngineHarness) -> None:
    await harness.start_running()
    lists = Fault("GET", "*/namespaces/default/pods", code=500, times=None)
    refuse = harness.home.fail(lists)
    harness.home.remove(PODS, "a", "default")
    await harness.home.until(lambda: refuse.hits >= 3)
    assert "deletionTimestamp" not in (harness.remote_pod() or {})["metadata"]
    harness.home.heal()
    await harness.settle()
    assert "deletionTimestamp" in (harness.remote_pod() or {})["metadata"]


async def test_unmanaged_pods_in_the_remote_are_left_alone(harness: EngineHarness) -> None:
    harness.remote.put(pod("theirs", REMOTE_NAMESPACE))
    harness.remote.put(pod("theirs", "default"))
    await harness.start()
    harness.pod("mine")
    await harness.settle(waiting=True)
    harness.home.remove(PODS, "mine", "default")
    await harness.settle()
    for namespace in (REMOTE_NAMESPACE, "default"):
        assert "deletionTimestamp" not in harness.remote.get(PODS, "theirs", namespace)["metadata"]


async def test_a_pod_that_must_not_run_twice_waits_without_a_write(harness: EngineHarness) -> None:
    refused = harness.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await harness.start()
    harness.pod(restartPolicy="Never")
    await harness.events_with_reason("RemoteForbidden")
    (accepted,) = harness.status()["conditions"]
    assert (accepted["type"], accepted["status"]) == ("cluster-bridge.io/Accepted", "False")
    assert accepted["reason"] == "RemoteForbidden"
    hits = refused.hits
    await harness.remote.until(lambda: refused.hits > hits + 1)
    harness.home.clear_log()
    hits = refused.hits
    await harness.remote.until(lambda: refused.hits > hits + 3)
    assert harness.home.writes() == []
    harness.remote.heal()
    await harness.settle()
    assert harness.remote_pod()
    harness.report_running()
    await harness.settle()
    assert "cluster-bridge.io/Accepted" not in {c["type"] for c in harness.status()["conditions"]}


async def test_pod_deleted_in_the_remote_is_reported_and_recreated(harness: EngineHarness) -> None:
    await harness.start_running()
    first = harness.remote_pod()
    assert first is not None
    harness.remote.delete(PODS, "a", REMOTE_NAMESPACE, grace_seconds=10)
    await harness.settle()
    (event,) = await harness.events_with_reason("RemotePodDeleted")
    assert event["involvedObject"]["name"] == "a"
    ready = next(c for c in harness.status()["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    second = harness.remote_pod()
    assert second is not None
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    harness.report_running()
    await harness.settle()
    assert "reason" not in harness.status()


async def test_pod_that_another_client_deletes_is_created_at_growing_intervals(
    harness: EngineHarness,
) -> None:
    await harness.start_running()

    async def delete() -> None:
        while True:
            await asyncio.sleep(0.1)
            if harness.remote_pod() is not None:
                harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)

    harness.clear_logs()
    async with background_task(delete(), name="delete"):
        await asyncio.sleep(60)
    sent = harness.remote.requests("POST", "*/pods")
    assert 3 <= len([request for request in sent if "dryRun" not in request.query]) <= 10
    assert len(await harness.events_with_reason("RemoteOverwrites")) == 1
    await asyncio.sleep(60)
    assert harness.remote_pod() is not None


def _daemon_pod(name: str = "agent", namespace: str = "default", **spec: object) -> Object:
    """A DaemonSet's pod on the node."""
    found = pod(name, namespace, node="virtual")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1"}
    found["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    found["spec"].update(spec)
    return found


async def test_a_pod_of_a_daemon_set_counts_as_available_and_nothing_is_watched_for_it(
    harness: EngineHarness,
) -> None:
    harness.home.put(_daemon_pod("agent", "agents"))
    await harness.start()
    (event,) = await harness.events_with_reason("DaemonSetSkipped")
    assert (event["involvedObject"]["name"], event["type"]) == ("agent", "Normal")
    await harness.settle()
    status = harness.status("agent", "agents")
    assert (status["phase"], status["reason"]) == ("Running", "DaemonSetSkipped")
    conditions = {it["type"]: it["status"] for it in status["conditions"]}
    assert conditions == {
        "cluster-bridge.io/Accepted": "False",
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    assert not status.keys() & {"podIP", "podIPs", "startTime", "containerStatuses"}
    assert harness.remote.objects(PODS) == []
    assert not harness.remote.find(NAMESPACES, "agents-h")
    assert not harness.home.requests("GET", "/api/v1/namespaces/agents/*")
    await harness.restart()
    assert harness.writes() == []
    harness.home.delete(PODS, "agent", "agents")
    await harness.settle()
    assert harness.home.find(PODS, "agent", "agents") is None
    assert len(harness.home.objects(EVENTS)) == 1
    # No remote pod was created, so the bridge does not confirm its absence.
    assert not harness.remote.requests("GET", "*/pods/agent")


async def test_a_skipped_pod_whose_node_was_not_ready_becomes_ready_again_without_an_event(
    harness: EngineHarness,
) -> None:
    harness.home.put(_daemon_pod())
    await harness.start()
    await harness.events_with_reason("DaemonSetSkipped")
    await harness.settle()
    harness.now = "2030-01-01T01:00:00Z"
    # As the node lifecycle controller does (MarkPodsNotReady).
    conditions = [
        {**it, "status": "False"} if it["type"] == "Ready" else it
        for it in harness.status("agent")["conditions"]
    ]
    harness.home.update(PODS, "agent", {"status": {"conditions": conditions}}, "default")
    await harness.settle()
    since = {
        it["type"]: (it["status"], it["lastTransitionTime"])
        for it in harness.status("agent")["conditions"]
    }
    assert since["Ready"] == ("True", "2030-01-01T01:00:00Z")
    assert since["ContainersReady"] == ("True", "2030-01-01T00:00:00Z")
    (event,) = await harness.events_with_reason("DaemonSetSkipped")
    assert event["count"] == 1


async def test_pod_left_pending_by_an_older_bridge_becomes_available(
    harness: EngineHarness,
) -> None:
    message = "pods of DaemonSets are for home's own machines"
    accepted = {"type": "cluster-bridge.io/Accepted", "status": "False", "message": message}
    old = _daemon_pod()
    old["status"] = {
        "phase": "Pending",
        "reason": "DaemonSetSkipped",
        "message": message,
        "conditions": [
            {**accepted, "reason": "DaemonSetSkipped", "lastTransitionTime": harness.now}
        ],
    }
    harness.home.put(old)
    await harness.start()
    await harness.settle()
    assert harness.status("agent")["phase"] == "Running"
    assert {"type": "Ready", "status": "True"}.items() <= next(
        it for it in harness.status("agent")["conditions"] if it["type"] == "Ready"
    ).items()


async def test_skipped_pod_is_created_once_daemonsets_run(harness: EngineHarness) -> None:
    harness.home.put(_daemon_pod())
    await harness.start()
    await harness.stop()
    harness.policy = dataclasses.replace(harness.policy, daemonsets="run")
    await harness.start()
    assert harness.remote_pod("agent")
    conditions = {it["type"]: it["status"] for it in harness.status("agent")["conditions"]}
    assert "cluster-bridge.io/Accepted" not in conditions
    assert conditions.get("Ready") != "True"
    assert harness.status("agent")["phase"] == "Pending"


async def test_a_daemon_sets_pod_that_cannot_run_in_the_remote_does_not_stall_its_daemon_set(
    harness: EngineHarness,
) -> None:
    harness.policy = dataclasses.replace(harness.policy, daemonsets="run")
    harness.home.put(_daemon_pod(hostNetwork=True))
    await harness.start()
    (event,) = await harness.events_with_reason("DaemonSetSkipped")
    assert event["type"] == "Warning"
    assert "hostNetwork" in event["message"]
    await harness.settle()
    assert harness.status("agent")["phase"] == "Running"
    assert not harness.remote_pod("agent")


async def test_daemonset_pod_runs_with_daemonsets_run(harness: EngineHarness) -> None:
    harness.policy = dataclasses.replace(harness.policy, daemonsets="run")
    harness.home.put(_daemon_pod())
    await harness.start()
    assert harness.remote_pod("agent")


async def test_pod_for_a_node_that_the_remote_adds_is_not_rejected(harness: EngineHarness) -> None:
    harness.limits = OfferLimits(elastic={"example.com/gpu": 1})
    harness.remote.put(node("small") | {"status": {"allocatable": {"cpu": "4"}}})
    await harness.start()
    for name, gpus in (("one", "1"), ("two", "2")):
        asks = {"requests": {"example.com/gpu": gpus}, "limits": {"example.com/gpu": gpus}}
        harness.pod(name, containers=[{"name": "main", "image": "busybox:1", "resources": asks}])
    await harness.settle()
    assert harness.remote_pod("one")
    assert harness.status("two")["reason"] == "OutOfexample.com/gpu"


async def test_pod_that_fits_no_node_has_failed_until_one_exists(harness: EngineHarness) -> None:
    harness.remote.put(node("small") | {"status": {"allocatable": {"cpu": "4"}}})
    await harness.start()
    asks = {"requests": {"cpu": "1000"}}
    harness.pod("large", containers=[{"name": "main", "image": "busybox:1", "resources": asks}])
    await harness.settle()
    assert (harness.status("large")["phase"], harness.status("large")["reason"]) == (
        "Failed",
        "OutOfcpu",
    )
    assert harness.remote_pod("large") is None
    await harness.events_with_reason("OutOfcpu")
    harness.remote.put(node("giant") | {"status": {"allocatable": {"cpu": "2000"}}})
    await harness.settle()
    harness.pod("next", containers=[{"name": "main", "image": "busybox:1", "resources": asks}])
    await harness.settle()
    assert harness.remote_pod("next")


async def test_pod_kept_by_a_finalizer_is_reported_as_terminated(harness: EngineHarness) -> None:
    await harness.start_running()
    harness.home.update(PODS, "a", {"metadata": {"finalizers": ["example.com/look"]}}, "default")
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    status = harness.status()
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["False"]
    harness.clear_logs()
    harness.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await harness.settle()
    assert not [write for write in harness.writes() if "PATCH" in write]


async def test_the_life_of_a_pod_is_four_writes(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod("first")
    await harness.settle()
    harness.clear_logs()
    harness.pod()
    await harness.settle()
    harness.report_running()
    await harness.settle()
    harness.home.delete(PODS, "a", "default", grace_seconds=30)
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()

    at_home, there = (
        "/api/v1/namespaces/default/pods/a",
        f"/api/v1/namespaces/{REMOTE_NAMESPACE}/pods",
    )
    assert harness.writes() == [
        f"home PATCH {at_home}/status",
        f"home DELETE {at_home}",
        f"remote POST {there}",
        f"remote DELETE {there}/a",
    ]
    assert harness.remote.requests("GET", "*/pods/a") == []


async def test_pod_kept_by_a_finalizer_is_removed_once(harness: EngineHarness) -> None:
    await harness.start_running()
    harness.home.update(PODS, "a", {"metadata": {"finalizers": ["example.com/look"]}}, "default")
    harness.home.delete(PODS, "a", "default", grace_seconds=30)
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    harness.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await harness.settle()
    assert len([write for write in harness.writes() if write.startswith("home DELETE")]) == 1


async def test_a_pod_that_ends_while_its_status_is_written_has_its_last_status(
    harness: EngineHarness,
) -> None:
    """The write in flight does not discard the final status."""
    await harness.start_running(restartPolicy="Never")
    slow = harness.home.fail(Fault("PATCH", "*/pods/a/status", delay=0.3))
    harness.report_running(message="nearly done")
    await harness.home.until(lambda: slow.hits)
    harness.report_terminated("Succeeded")
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.caught_up()
    await harness.settle()
    assert harness.status()["phase"] == "Succeeded"


async def test_blocked_condition_is_cleared_when_the_pod_is_created(harness: EngineHarness) -> None:
    harness.remote.fail(Fault("POST", "*/pods", code=403, times=1))
    await harness.start()
    harness.pod()
    await harness.settle()
    assert await harness.events_with_reason("RemoteForbidden")
    assert harness.remote_pod()
    assert "reason" not in harness.status()
