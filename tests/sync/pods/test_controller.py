"""The life of a pod across both clusters, with the test as the remote's kubelet."""

from __future__ import annotations

import dataclasses

import pytest

from sync.kube.resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, SECRETS, SERVICES, Object
from sync.mirror.copy_controller import CopyController
from tests.fakeapi import Fault
from tests.objects import config_map, node, pod, secret
from tests.sync.world import ADDRESS, THERE, World
from translators.identity import origin_of


def service(name: str, **selector: str) -> Object:
    """A Service of one port."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector, "ports": [{"port": 80}]},
    }


# -- creation and status -------------------------------------------------------------------


async def test_pod_is_created_after_its_namespace_and_references(world: World) -> None:
    world.home.put(config_map("conf", data={"k": "v"}))
    world.home.put(secret("key", data={"k": "djE="}))
    world.home.put(service("web", app="web"))
    world.home.put(service("other", app="other"))
    world.home.put(config_map("unused"))
    await world.start()
    world.pod(uses=["cm/conf", "secret/key", "cm/missing"], labels={"app": "web"})
    await world.settle()
    paths = [entry.path for entry in world.remote.writes()]
    assert paths[0] == "/api/v1/namespaces"
    assert paths[-1] == f"/api/v1/namespaces/{THERE}/pods"
    assert {path.rpartition("/")[2] for path in paths[1:-1]} == {
        "configmaps",
        "secrets",
        "services",
    }
    assert len(paths) == 6, "the other Service of the namespace too, and nothing else"
    assert world.remote.get(CONFIG_MAPS, "conf", THERE)["data"] == {"k": "v"}
    assert world.remote.get(SECRETS, "key", THERE)["data"] == {"k": "djE="}
    assert world.remote.find(SERVICES, "web", THERE)
    assert world.remote_pod()


async def test_status_follows_with_the_address_of_the_bridge(world: World) -> None:
    await world.start_running()
    status = world.status()
    assert (status["phase"], status["podIP"], status["hostIP"]) == ("Running", "10.9.0.1", ADDRESS)
    assert status["containerStatuses"][0]["ready"] is True
    world.ends("Succeeded")
    await world.settle()
    assert world.status()["phase"] == "Succeeded"


async def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    world.home.put(config_map("conf"))
    world.home.put(service("web", app="web"))
    await world.start_running(uses=["cm/conf"], labels={"app": "web"})
    world.clear_logs()
    for queue in (
        world.engine.pods.controller.queue,
        world.engine.find(CopyController).controller.queue,
    ):
        assert not queue._later
    for home in world.home.objects(PODS):
        world.engine.pods.home_pod_changed(None, home)
        world.engine.find(CopyController).home_pod_changed(None, home)
    world.home.break_watches()
    world.remote.expire_watches()
    await world.settle()
    assert world.writes() == []
    assert world.home.writes() == []


async def test_one_status_change_is_one_write(world: World) -> None:
    await world.start()
    world.pod()
    await world.settle()
    world.clear_logs()
    world.runs()
    await world.settle()
    assert len(world.writes()) <= 2, "binding and status are two events of the remote"
    world.clear_logs()
    world.runs(message="something else")
    await world.settle()
    assert world.writes() == ["home PATCH /api/v1/namespaces/default/pods/a/status"]


async def test_a_restart_of_the_engine_with_running_pods_writes_nothing(world: World) -> None:
    world.home.put(config_map("conf"))
    world.home.put(secret("key"))
    await world.start()
    for name in "abc":
        world.pod(name, uses=["cm/conf", "secret/key"], restartPolicy="Never")
    await world.settle()
    for name in "ab":
        world.runs(name)
    world.ends("Failed", "c")
    await world.settle()
    await world.restart()
    assert world.writes() == []
    assert world.home.writes() == []


async def test_overwritten_status_is_restored(world: World) -> None:
    await world.start_running()
    world.home.update(PODS, "a", {"status": {"podIP": "1.2.3.4"}}, "default")
    await world.settle()
    assert world.status()["podIP"] == "10.9.0.1"


async def test_images_and_labels_follow(world: World) -> None:
    await world.start()
    world.pod()
    await world.settle()
    world.runs()
    change: Object = {
        "metadata": {"labels": {"tier": "front"}},
        "spec": {"containers": [{**world.home_pod()["spec"]["containers"][0], "image": "x:2"}]},
    }
    world.home.update(PODS, "a", change, "default")
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    assert remote["metadata"]["labels"]["tier"] == "front"
    assert remote["spec"]["containers"][0]["image"] == "x:2"
    world.clear_logs()
    world.runs()
    await world.settle()
    assert not [write for write in world.writes() if write.startswith("remote")]


# -- deletion ------------------------------------------------------------------------------


async def test_deletion_is_forwarded_with_its_grace_and_waits_for_the_remote(
    world: World,
) -> None:
    await world.start_running()
    world.home.delete(PODS, "a", "default", grace_seconds=17)
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionGracePeriodSeconds"] == 17
    assert world.home_pod()["metadata"]["deletionTimestamp"]
    world.home.delete(PODS, "a", "default", grace_seconds=3)
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionGracePeriodSeconds"] == 3
    world.ends("Failed")
    await world.settle()
    assert world.status()["phase"] == "Failed"
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.home.find(PODS, "a", "default") is None


async def test_pod_without_a_remote_pod_is_removed_at_once(world: World) -> None:
    world.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await world.start()
    world.pod()
    await world.events_with_reason("RemoteForbidden")
    world.home.delete(PODS, "a", "default")
    await world.settle()
    assert world.home.find(PODS, "a", "default") is None


async def test_deletion_confirms_absence_after_an_unknown_create_outcome(
    world: World,
) -> None:
    """The answer of the create was lost, and no watch has told of the pod yet."""
    world.remote.fail(Fault("POST", "*/pods", drop="after"))
    hidden = world.remote.fail(Fault("POST", "*/pods", drop="before", times=None))
    await world.start()
    world.remote.mute_watches()
    world.pod()
    await world.remote.until(lambda: hidden.hits)
    world.home.delete(PODS, "a", "default")
    await world.remote.until(lambda: world.remote.writes("*/pods/a"))
    assert world.home.find(PODS, "a", "default") is not None
    assert (world.remote_pod() or {}).get("metadata", {}).get("deletionTimestamp") is None
    world.remote.heal()
    world.remote.unmute_watches()
    await world.settle()
    assert world.remote_pod() is None
    assert world.home.find(PODS, "a", "default") is None


async def test_a_pod_recreated_under_its_name_is_another_pod(world: World) -> None:
    await world.start_running()
    first = world.remote_pod()
    world.home.delete(PODS, "a", "default", grace_seconds=0)
    second = world.pod()
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    assert first is not None
    assert remote["metadata"]["uid"] == first["metadata"]["uid"]
    assert remote["metadata"]["deletionTimestamp"], "the former one ends in its own time"
    assert world.status().get("podIP") is None
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    origin = origin_of(remote)
    assert origin is not None
    assert origin.uid == second["metadata"]["uid"]


@pytest.mark.parametrize("while_down", [True, False], ids=["while down", "while running"])
async def test_orphan_is_deleted_in_the_remote(world: World, while_down: bool) -> None:
    await world.start_running()
    if while_down:
        await world.stop()
    world.home.remove(PODS, "a", "default")
    if while_down:
        await world.start()
    await world.settle()
    remote = world.remote_pod()
    assert remote is not None
    assert remote["metadata"]["deletionTimestamp"]


async def test_orphan_is_deleted_only_after_home_confirmed_it(
    world: World,
) -> None:
    await world.start_running()
    refuse = world.home.fail(Fault("GET", "*/pods/a", code=500, times=None))
    world.home.remove(PODS, "a", "default")
    await world.home.until(lambda: refuse.hits >= 3)
    assert "deletionTimestamp" not in (world.remote_pod() or {})["metadata"]
    world.home.heal()
    await world.settle()
    assert "deletionTimestamp" in (world.remote_pod() or {})["metadata"]


async def test_unmanaged_pods_in_the_remote_are_left_alone(world: World) -> None:
    world.remote.put(pod("theirs", THERE))
    world.remote.put(pod("theirs", "default"))
    await world.start()
    world.pod("mine")
    await world.settle(waiting=True)
    world.home.remove(PODS, "mine", "default")
    await world.settle()
    for namespace in (THERE, "default"):
        assert "deletionTimestamp" not in world.remote.get(PODS, "theirs", namespace)["metadata"]


# -- refusals ------------------------------------------------------------------------------


async def test_a_pod_that_must_not_run_twice_waits_without_a_write(world: World) -> None:
    refused = world.remote.fail(Fault("POST", "*/pods", code=403, times=None))
    await world.start()
    world.pod(restartPolicy="Never")
    await world.events_with_reason("RemoteForbidden")
    (accepted,) = world.status()["conditions"]
    assert (accepted["type"], accepted["status"]) == ("cluster-bridge.io/Accepted", "False")
    assert accepted["reason"] == "RemoteForbidden"
    hits = refused.hits
    await world.remote.until(lambda: refused.hits > hits + 1)
    world.home.clear_log()
    hits = refused.hits
    await world.remote.until(lambda: refused.hits > hits + 3)
    assert world.home.writes() == []
    world.remote.heal()
    await world.settle()
    assert world.remote_pod()
    world.runs()
    await world.settle()
    assert "cluster-bridge.io/Accepted" not in {c["type"] for c in world.status()["conditions"]}


async def test_pod_deleted_in_the_remote_is_reported_and_recreated(world: World) -> None:
    await world.start_running()
    first = world.remote_pod()
    assert first is not None
    world.remote.delete(PODS, "a", THERE, grace_seconds=10)
    await world.settle()
    (event,) = await world.events_with_reason("RemotePodDeleted")
    assert event["involvedObject"]["name"] == "a"
    ready = next(c for c in world.status()["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    second = world.remote_pod()
    assert second is not None
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    world.runs()
    await world.settle()
    assert "reason" not in world.status()


# -- DaemonSets ----------------------------------------------------------------------------


def _daemon_pod(name: str = "agent", namespace: str = "default", **spec: object) -> Object:
    """A DaemonSet's pod on the node."""
    found = pod(name, namespace, node="virtual")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1"}
    found["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    found["spec"].update(spec)
    return found


async def test_a_pod_of_a_daemon_set_counts_as_available_and_nothing_is_watched_for_it(
    world: World,
) -> None:
    world.home.put(_daemon_pod("agent", "agents"))
    await world.start()
    (event,) = await world.events_with_reason("DaemonSetSkipped")
    assert (event["involvedObject"]["name"], event["type"]) == ("agent", "Normal")
    await world.settle()
    status = world.status("agent", "agents")
    assert (status["phase"], status["reason"]) == ("Running", "DaemonSetSkipped")
    said = {it["type"]: it["status"] for it in status["conditions"]}
    assert said == {
        "cluster-bridge.io/Accepted": "False",
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": "True",
        "Ready": "True",
    }
    assert not status.keys() & {"podIP", "podIPs", "startTime", "containerStatuses"}
    assert world.remote.objects(PODS) == []
    assert not world.remote.find(NAMESPACES, "agents-h")
    assert not world.home.requests("GET", "/api/v1/namespaces/agents/*")
    await world.restart()
    assert world.writes() == []
    world.home.delete(PODS, "agent", "agents")
    await world.settle()
    assert world.home.find(PODS, "agent", "agents") is None
    assert len(world.home.objects(EVENTS)) == 1
    # No remote pod was ever made, so that nobody is asked whether it is gone.
    assert not world.remote.requests("GET", "*/pods/agent")


async def test_a_skipped_pod_whose_node_was_not_ready_becomes_ready_again_without_an_event(
    world: World,
) -> None:
    world.home.put(_daemon_pod())
    await world.start()
    await world.events_with_reason("DaemonSetSkipped")
    await world.settle()
    world.now = "2030-01-01T01:00:00Z"
    # As the node lifecycle controller does (SetPodsNotReady).
    conditions = [
        {**it, "status": "False"} if it["type"] == "Ready" else it
        for it in world.status("agent")["conditions"]
    ]
    world.home.update(PODS, "agent", {"status": {"conditions": conditions}}, "default")
    await world.settle()
    since = {
        it["type"]: (it["status"], it["lastTransitionTime"])
        for it in world.status("agent")["conditions"]
    }
    assert since["Ready"] == ("True", "2030-01-01T01:00:00Z")
    assert since["ContainersReady"] == ("True", "2030-01-01T00:00:00Z")
    (event,) = await world.events_with_reason("DaemonSetSkipped")
    assert event["count"] == 1


async def test_pod_left_pending_by_an_older_bridge_becomes_available(world: World) -> None:
    message = "pods of DaemonSets are for home's own machines"
    accepted = {"type": "cluster-bridge.io/Accepted", "status": "False", "message": message}
    old = _daemon_pod()
    old["status"] = {
        "phase": "Pending",
        "reason": "DaemonSetSkipped",
        "message": message,
        "conditions": [{**accepted, "reason": "DaemonSetSkipped", "lastTransitionTime": world.now}],
    }
    world.home.put(old)
    await world.start()
    await world.settle()
    assert world.status("agent")["phase"] == "Running"
    assert {"type": "Ready", "status": "True"}.items() <= next(
        it for it in world.status("agent")["conditions"] if it["type"] == "Ready"
    ).items()


async def test_skipped_pod_is_created_once_daemonsets_run(
    world: World,
) -> None:
    world.home.put(_daemon_pod())
    await world.start()
    await world.stop()
    world.policy = dataclasses.replace(world.policy, daemonsets="run")
    await world.start()
    assert world.remote_pod("agent")
    conditions = {it["type"]: it["status"] for it in world.status("agent")["conditions"]}
    assert "cluster-bridge.io/Accepted" not in conditions
    assert conditions.get("Ready") != "True"
    assert world.status("agent")["phase"] == "Pending"


async def test_a_daemon_sets_pod_that_cannot_run_in_the_remote_does_not_stall_its_daemon_set(
    world: World,
) -> None:
    world.policy = dataclasses.replace(world.policy, daemonsets="run")
    world.home.put(_daemon_pod(hostNetwork=True))
    await world.start()
    (event,) = await world.events_with_reason("DaemonSetSkipped")
    assert event["type"] == "Warning"
    assert "hostNetwork" in event["message"]
    await world.settle()
    assert world.status("agent")["phase"] == "Running"
    assert not world.remote_pod("agent")


async def test_daemonset_pod_runs_with_daemonsets_run(world: World) -> None:
    world.policy = dataclasses.replace(world.policy, daemonsets="run")
    world.home.put(_daemon_pod())
    await world.start()
    assert world.remote_pod("agent")


async def test_pod_that_fits_no_node_has_failed_until_one_exists(
    world: World,
) -> None:
    world.remote.put(node("small") | {"status": {"allocatable": {"cpu": "4"}}})
    await world.start()
    asks = {"requests": {"cpu": "1000"}}
    world.pod("large", containers=[{"name": "main", "image": "busybox:1", "resources": asks}])
    await world.settle()
    assert (world.status("large")["phase"], world.status("large")["reason"]) == (
        "Failed",
        "OutOfcpu",
    )
    assert world.remote_pod("large") is None
    await world.events_with_reason("OutOfcpu")
    world.remote.put(node("giant") | {"status": {"allocatable": {"cpu": "2000"}}})
    await world.settle()
    world.pod("next", containers=[{"name": "main", "image": "busybox:1", "resources": asks}])
    await world.settle()
    assert world.remote_pod("next")


async def test_pod_kept_by_a_finalizer_is_reported_as_terminated(world: World) -> None:
    await world.start_running()
    world.home.update(PODS, "a", {"metadata": {"finalizers": ["example.com/look"]}}, "default")
    world.home.delete(PODS, "a", "default", grace_seconds=0)
    await world.settle()
    assert world.remote_pod() is None
    status = world.status()
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert [c["status"] for c in status["conditions"] if c["type"] == "Ready"] == ["False"]
    world.clear_logs()
    world.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await world.settle()
    assert not [write for write in world.writes() if "PATCH" in write]


# -- what a life costs ---------------------------------------------------------------------


async def test_the_life_of_a_pod_is_four_writes(world: World) -> None:
    await world.start()
    world.pod("first")
    await world.settle()
    world.clear_logs()
    world.pod()
    await world.settle()
    world.runs()
    await world.settle()
    world.home.delete(PODS, "a", "default", grace_seconds=30)
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()

    at_home, there = "/api/v1/namespaces/default/pods/a", f"/api/v1/namespaces/{THERE}/pods"
    assert world.writes() == [
        f"home PATCH {at_home}/status",
        f"home DELETE {at_home}",
        f"remote POST {there}",
        f"remote DELETE {there}/a",
    ]
    assert world.remote.requests("GET", "*/pods/a") == []


async def test_pod_kept_by_a_finalizer_is_removed_once(world: World) -> None:
    await world.start_running()
    world.home.update(PODS, "a", {"metadata": {"finalizers": ["example.com/look"]}}, "default")
    world.home.delete(PODS, "a", "default", grace_seconds=30)
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    world.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await world.settle()
    assert len([write for write in world.writes() if write.startswith("home DELETE")]) == 1


async def test_a_pod_that_ends_while_its_status_is_written_has_its_last_status(
    world: World,
) -> None:
    """What is known of its end is not forgotten with what was written meanwhile."""
    await world.start_running(restartPolicy="Never")
    slow = world.home.fail(Fault("PATCH", "*/pods/a/status", delay=0.3))
    world.runs(message="nearly done")
    await world.home.until(lambda: slow.hits)
    world.ends("Succeeded")
    world.remote.remove(PODS, "a", THERE)
    await world.caught_up()
    await world.settle()
    assert world.status()["phase"] == "Succeeded"


async def test_blocked_condition_is_cleared_when_the_pod_is_created(world: World) -> None:
    world.remote.fail(Fault("POST", "*/pods", code=403, times=1))
    await world.start()
    world.pod()
    await world.settle()
    assert await world.events_with_reason("RemoteForbidden")
    assert world.remote_pod()
    assert "reason" not in world.status()
