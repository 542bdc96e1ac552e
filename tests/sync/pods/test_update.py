"""Changes of a running pod on their three paths, and what the remote may answer."""

from __future__ import annotations

import pytest

from sync.kube.resources import EVENTS, PODS, PRIORITY_CLASSES, Object
from tests.fakeapi import Fault
from tests.objects import config_map
from tests.sync.world import THERE, World

_DEBUGGER = {
    "name": "debugger",
    "image": "busybox:1",
    "envFrom": [{"configMapRef": {"name": "tools"}}],
}


async def _running(world: World, **spec: object) -> None:
    await world.start()
    world.pod(**spec)  # type: ignore[arg-type]
    await world.settle()
    world.runs()
    await world.settle()
    world.clear_logs()


def _change(world: World, **container: object) -> None:
    before = world.home_pod()["spec"]["containers"][0]
    world.home.update(PODS, "a", {"spec": {"containers": [{**before, **container}]}}, "default")


def _remote_writes(world: World) -> list[str]:
    return [write for write in world.writes() if write.startswith("remote")]


# -- ephemeral containers ------------------------------------------------------------------


async def test_ephemeral_container_is_added_after_its_references(world: World) -> None:
    world.home.put(config_map("tools"))
    await _running(world)
    world.home.update(PODS, "a", {"spec": {"ephemeralContainers": [_DEBUGGER]}}, "default")
    await world.settle()
    pods = f"remote PATCH /api/v1/namespaces/{THERE}/pods/a"
    assert _remote_writes(world) == [
        f"remote POST /api/v1/namespaces/{THERE}/configmaps",
        f"{pods}/ephemeralcontainers",
    ]
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["ephemeralContainers"][0]["name"] == "debugger"
    await world.restart()
    assert world.writes() == []


async def test_fields_of_an_ephemeral_container_that_the_remote_drops_are_an_event(
    world: World,
) -> None:
    await _running(world)

    def drop(obj: Object) -> None:
        for container in obj.get("spec", {}).get("ephemeralContainers") or ():
            container.pop("securityContext", None)

    world.remote.store.webhook = drop
    debugger = {"name": "debugger", "image": "busybox:1", "securityContext": {"runAsUser": 7}}
    world.home.update(PODS, "a", {"spec": {"ephemeralContainers": [debugger]}}, "default")
    (event,) = await world.events_with_reason("FieldDropped")
    assert "spec.ephemeralContainers[debugger].securityContext" in event["message"]


async def test_recreated_pod_gets_its_ephemeral_container(world: World) -> None:
    world.pod()
    world.home.update(PODS, "a", {"spec": {"ephemeralContainers": [_DEBUGGER]}}, "default")
    await world.start()
    remote = world.remote_pod()
    assert remote
    assert [it["name"] for it in remote["spec"]["ephemeralContainers"]] == ["debugger"]


# -- resize --------------------------------------------------------------------------------


async def test_resize_uses_its_subresource_and_keeps_remote_defaults(world: World) -> None:
    def limit_ranger(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["resources"].setdefault("limits", {"memory": "1Gi"})

    world.remote.store.webhook = limit_ranger
    await _running(world)
    _change(world, resources={"requests": {"cpu": "2"}})
    await world.settle()
    pods = f"remote PATCH /api/v1/namespaces/{THERE}/pods/a"
    assert _remote_writes(world) == [f"{pods}/resize", pods], "which is recorded"
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"memory": "1Gi"},
    }


def _resizes(world: World) -> list[str]:
    return [write for write in _remote_writes(world) if write.endswith("/resize")]


async def test_requests_that_the_remotes_admission_changes_are_not_resized_back(
    world: World,
) -> None:
    """Neither after a restart, nor where the QoS class differs; home's own resize follows."""

    def guaranteed(obj: Object) -> None:
        if obj["kind"] == "Pod":
            amounts = {"cpu": "1", "memory": "1Gi"}
            obj["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}

    world.remote.store.webhook = guaranteed
    await world.start()
    resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}
    world.pod(containers=[{"name": "main", "image": "busybox:1", "resources": resources}])
    await world.settle()
    world.remote.store.webhook = None
    world.runs()
    await world.settle()
    await world.restart()
    assert _remote_writes(world) == []
    assert not [it for it in world.home.objects(EVENTS) if it["reason"] == "UpdateRefused"]
    status = world.status()
    assert status["observedGeneration"] == world.home_pod()["metadata"]["generation"]
    _change(world, resources={"requests": {"cpu": "500m"}, "limits": {"cpu": "200m"}})
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "1", "memory": "1Gi"},
    }
    assert len(_resizes(world)) == 1
    await world.restart()
    assert world.writes() == []


async def test_reverted_update_counts_as_observed(world: World) -> None:
    await _running(world)

    def relabelled(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["metadata"].setdefault("labels", {})["team"] = "theirs"

    world.remote.store.webhook = relabelled
    world.home.update(PODS, "a", {"metadata": {"labels": {"team": "ours"}}}, "default")
    _change(world, image="busybox:2")
    await world.settle()
    world.runs()
    await world.settle()
    assert world.status()["observedGeneration"] == world.home_pod()["metadata"]["generation"]


def _pending(world: World) -> Object | None:
    found = [it for it in world.status()["conditions"] if it["type"] == "PodResizePending"]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("spec.containers[0]: node has 4 cpu allocatable", "Infeasible"),
        ('pods "a" is forbidden: exceeded quota: small', "Deferred"),
    ],
)
async def test_rejected_resize_sets_the_condition_of_a_kubelet(
    world: World, monkeypatch: pytest.MonkeyPatch, words: str, reason: str
) -> None:
    """Until home asks for something else that is taken, across a restart too."""
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(world)
    fault = world.remote.fail(
        Fault("PATCH", "*/pods/a/resize", code=403, message=words, times=None)
    )
    _change(world, resources={"requests": {"cpu": "2000"}})
    await world.home.until(lambda: _pending(world))
    told = _pending(world)
    assert told
    assert (told["status"], told["reason"]) == ("True", reason)
    assert words in told["message"]
    assert told["lastTransitionTime"]
    hits = fault.hits
    await world.remote.until(lambda: fault.hits > hits + 2)
    assert _pending(world) == told, "it does not flap"
    await world.stop()
    world.clear_logs()
    await world.start(settle=False)
    hits = fault.hits
    await world.remote.until(lambda: fault.hits > hits)
    assert _pending(world) == told
    assert not [it for it in world.home.writes() if it.path.endswith("/status")], "nor then"
    _change(world, resources={"requests": {"cpu": "1"}})
    hits = fault.hits
    await world.remote.until(lambda: fault.hits > hits + 1)
    assert _pending(world), "another that is refused"
    world.remote.heal()
    await world.settle()
    assert _pending(world) is None
    assert len(await world.events_with_reason("UpdateRefused")) == 1


async def test_reverted_resize_is_no_longer_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(world)
    before = world.home_pod()["spec"]["containers"][0].get("resources") or {}
    world.remote.fail(Fault("PATCH", "*/pods/a/resize", code=422, message="no", times=None))
    _change(world, resources={"requests": {"cpu": "2000"}})
    await world.home.until(lambda: _pending(world))
    _change(world, resources=before)
    await world.home.until(lambda: _pending(world) is None)


# -- refusals and webhooks -----------------------------------------------------------------


async def test_an_image_that_a_webhook_chose_stays_until_home_changes_its_own(
    world: World,
) -> None:
    def mirrored(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["image"] = "mirror/busybox:1"

    world.remote.store.webhook = mirrored
    await world.start()
    world.pod()
    await world.settle()
    world.remote.store.webhook = None
    world.runs()
    await world.settle()
    await world.restart()
    assert _remote_writes(world) == []
    _change(world, image="busybox:2")
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["image"] == "busybox:2"


async def test_update_reverted_by_a_webhook_is_not_repeated(world: World) -> None:
    await _running(world)

    def small(obj: Object) -> None:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}

    world.remote.store.webhook = small
    _change(world, resources={"requests": {"cpu": "2"}})
    await world.settle()
    for number in range(3):
        world.runs(message=f"status {number}")
        await world.settle()
    assert len(_resizes(world)) == 1
    _change(world, resources={"requests": {"cpu": "3"}})
    await world.settle()
    assert len(_resizes(world)) == 2, "another change is another try"
    world.clear_logs()
    world.remote.store.webhook = None
    world.home.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["metadata"]["labels"]["x"] == "y"
    assert len(_remote_writes(world)) == 1, "what is futile keeps nothing else back"


async def test_rejected_update_does_not_hold_up_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.runtime.workqueue.RETRY_CAP", 0.2)
    await _running(world)
    fault = world.remote.fail(Fault("PATCH", "*/pods/a", code=422, message="no", times=None))
    _change(world, image="busybox:2", resources={"requests": {"cpu": "2"}})
    await world.events_with_reason("UpdateRefused")
    await world.remote.until(lambda: fault.hits >= 2)
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["containers"][0]["resources"] == {"requests": {"cpu": "2"}}
    world.remote.heal()
    await world.settle()
    assert len(await world.events_with_reason("UpdateRefused")) == 1


# -- what is dropped or refused ------------------------------------------------------------


async def test_dropped_fields_are_reported_in_one_event(world: World) -> None:
    await world.start()
    world.pod(schedulerName="mine", priorityClassName="urgent")
    (event,) = await world.events_with_reason("FieldDropped")
    await world.settle()
    assert "spec.schedulerName: names a scheduler of home" in event["message"]
    assert "; spec.priorityClassName: urgent is not a PriorityClass" in event["message"]
    assert len(world.home.objects(EVENTS)) == 1


async def test_priority_class_that_the_remote_has_is_kept(world: World) -> None:
    meta = {"name": "urgent"}
    world.remote.put({**_CLASS, "metadata": meta})
    await world.start()
    world.pod(priorityClassName="urgent", priority=7)
    await world.settle()
    remote = world.remote_pod()
    assert remote
    assert remote["spec"]["priorityClassName"] == "urgent"
    assert world.home.objects(EVENTS) == []


_CLASS = {"apiVersion": PRIORITY_CLASSES.api_version, "kind": "PriorityClass", "value": 7}


async def test_rejected_pod_is_reported_once_and_nothing_is_copied_for_it(world: World) -> None:
    world.home.put(config_map("conf"))
    await world.start()
    world.pod(uses=["cm/conf"], hostNetwork=True)
    await world.events_with_reason("FieldRefused")
    await world.settle()
    assert world.status()["reason"] == "FieldRefused"
    assert world.status()["message"].startswith("spec.hostNetwork: ")
    assert world.remote.writes() == []
    assert not world.home.requests("GET", "/api/v1/namespaces/default/*")
    await world.restart()
    assert world.writes() == []
    world.home.delete(PODS, "a", "default")
    await world.settle()
    assert world.home.find(PODS, "a", "default") is None
    assert len(world.home.objects(EVENTS)) == 1
