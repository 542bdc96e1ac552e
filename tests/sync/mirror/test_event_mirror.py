"""Events of remote pods at home: each once, up to date, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sync.kube.resources import EVENTS, NAMESPACES, PODS, Object
from sync.mirror import event_mirror
from sync.mirror.event_mirror import EventMirror
from tests import objects
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault, LoggedRequest
from tests.sync.contexts import controller_context
from tests.sync.world import ADDRESS, IDENTITY, NODE, THERE, World
from translators.identity import ANNOTATION_ACCEPTS, LABEL_NODE, remote_metadata
from translators.objects import HomeNamespace
from translators.translation_options import Policy

DEFAULT = HomeNamespace("default")


def say(world: World, reason: str, name: str = "a", **about: Any) -> Object:
    """The remote's kubelet says something of the remote pod, or says it again."""
    pod = world.remote_pod(name)
    assert pod is not None
    return world.remote.put(objects.event(pod, reason, **about))


def heard(world: World, namespace: str = "default") -> dict[str, Object]:
    """The mirrored Events at home, by their reason; there is one of each."""
    found = [it for it in world.home.objects(EVENTS, namespace) if "labels" in it["metadata"]]
    reasons = {it["reason"]: it for it in found}
    assert len(reasons) == len(found)
    return reasons


def writes(world: World) -> list[str]:
    """What was written of Events at home."""
    entries: list[LoggedRequest] = world.home.writes("*/events*")
    return [entry.method for entry in entries]


async def started(world: World) -> None:
    """An engine, and a pod that runs."""
    await world.start()
    world.pod()
    await world.settle()
    world.runs()
    await world.settle()
    world.clear_logs()


async def test_event_is_mirrored_to_the_home_pod_and_its_count_follows(world: World) -> None:
    await started(world)
    say(world, "BackOff", message=f"{THERE}/a is waited for")
    await world.settle()
    told = heard(world)["BackOff"]
    assert told["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "a",
        "uid": world.home_pod()["metadata"]["uid"],
        "fieldPath": "spec.containers{main}",
    }
    assert told["metadata"]["labels"] == {LABEL_NODE: NODE}
    assert (told["count"], told["message"]) == (1, "default/a is waited for")
    assert told["source"]["component"] == "kubelet"
    for count in (2, 3):
        say(world, "BackOff", message=f"{THERE}/a is waited for", count=count)
        await world.settle()
        told = heard(world)["BackOff"]
        assert (told["count"], told["lastTimestamp"]) == (count, f"2030-01-01T00:00:0{count}Z")
    assert writes(world) == ["POST", "PATCH", "PATCH"]
    assert world.home.writes("*/events/*")[-1].body == {
        "count": 3,
        "lastTimestamp": "2030-01-01T00:00:03Z",
    }


async def test_restart_writes_only_new_events(world: World) -> None:
    await started(world)
    for reason in ("Pulled", "Created", "Started"):
        say(world, reason)
    await world.settle()
    assert len(heard(world)) == 3
    await world.restart()
    assert world.writes() == []
    assert writes(world) == []
    await world.stop()
    say(world, "Started", count=2)
    say(world, "Killing")
    world.clear_logs()
    await world.start()
    assert sorted(writes(world)) == ["PATCH", "POST"]
    assert heard(world)["Started"]["count"] == 2


async def test_events_of_previous_pods_are_not_written_twice_after_a_restart(world: World) -> None:
    """The answer to a create was lost."""
    await started(world)
    world.home.fail(Fault("POST", "*/events", drop="after", times=1))
    say(world, "Pulled")
    await world.settle()
    assert len(heard(world)) == 1
    assert writes(world) == ["POST", "POST"]


async def test_unmanaged_events_are_ignored(world: World) -> None:
    accepts = {ANNOTATION_ACCEPTS: "h"}
    meta = {"name": THERE, "annotations": accepts}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    foreign = world.remote.put(objects.pod("foreign", THERE))
    world.remote.put(objects.event(foreign, "Pulled"))
    await started(world)
    world.remote.put(objects.event(foreign, "Started"))
    former = {**foreign, "metadata": {**foreign["metadata"], "name": "a", "uid": "former"}}
    world.remote.put(objects.event(former, "Killing"))
    before = world.remote.objects(EVENTS)
    await world.settle()
    assert heard(world) == {}
    assert writes(world) == []
    assert world.remote.objects(EVENTS) == before
    assert world.remote.writes("*/events*") == []


async def test_last_events_of_a_deleted_pod_are_mirrored_until_a_restart(
    world: World,
) -> None:
    await started(world)
    pod = world.remote_pod()
    assert pod is not None
    uid = world.home_pod()["metadata"]["uid"]
    world.home.delete(PODS, "a", "default")
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert world.home.find(PODS, "a", "default") is None
    world.remote.put(objects.event(pod, "Killing"))
    await world.settle()
    assert heard(world)["Killing"]["involvedObject"]["uid"] == uid
    await world.stop()
    world.remote.put(objects.event(pod, "Late"))
    world.pod()  # another, by the same name
    await world.start()
    say(world, "Started")
    await world.settle()
    assert set(heard(world)) == {"Killing", "Started"}
    assert heard(world)["Started"]["involvedObject"]["uid"] != uid


async def test_event_seen_before_its_pod_is_mirrored(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor
) -> None:
    clients = await client_for(home_api, "home"), await client_for(remote_api, "remote")
    context = controller_context(*clients, Policy(IDENTITY, ADDRESS))
    mirror = EventMirror(context, in_burst=lambda: False)
    home = home_api.put(objects.pod("a"))
    remote = remote_api.put(
        {**objects.pod("a", THERE), "metadata": remote_metadata(home, IDENTITY)}
    )
    remote_api.put(objects.event(remote, "Scheduled"))
    tasks = [
        asyncio.create_task(mirror.follow(DEFAULT)),
        asyncio.create_task(mirror.controller.run()),
    ]
    try:
        await home_api.until(lambda: home_api.requests("GET", "*/events"))
        await home_api.until(lambda: not mirror.controller.queue.working)
        assert home_api.objects(EVENTS) == []
        mirror.remote_pod_changed(None, remote)
        await home_api.until(lambda: home_api.objects(EVENTS))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert mirror._namespaces == {}


@pytest.mark.parametrize("for_ever", [False, True], ids=["for a while", "for ever"])
async def test_event_waits_in_a_burst_with_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch, for_ever: bool
) -> None:
    looks = 0

    def in_burst() -> bool:
        nonlocal looks
        looks += 1
        assert writes(world) == []
        return for_ever or looks < 5

    monkeypatch.setattr(event_mirror, "BURST_POLL", 0.01)
    monkeypatch.setattr(event_mirror, "BURST_WAIT_MAX", 0.04)
    await started(world)
    monkeypatch.setattr(world.engine.find(EventMirror), "_in_burst", in_burst)
    say(world, "Pulled")
    await world.settle()
    assert looks == 5
    assert set(heard(world)) == {"Pulled"}


async def test_many_events_wait_less_in_a_burst(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_mirror, "BURST_WAIT_MAX", 3600.0)
    monkeypatch.setattr(event_mirror, "LATE", 0.1)
    await started(world)
    monkeypatch.setattr(world.engine.find(EventMirror), "_in_burst", lambda: True)
    for number in range(100):
        say(world, f"Event{number}")
    await world.home.until(lambda: len(heard(world)) == 100)


async def test_relist_writes_only_new_events(
    world: World,
) -> None:
    await started(world)
    say(world, "Pulled")
    kept = say(world, "Created")
    await world.settle()
    world.clear_logs()
    world.remote.mute_watches()
    say(world, "Started")
    world.remote.remove(EVENTS, kept["metadata"]["name"], THERE)
    world.remote.compact()
    world.remote.expire_watches(EVENTS)
    world.remote.unmute_watches()
    await world.settle()
    assert world.remote.requests("GET", "*/events")
    assert set(heard(world)) == {"Pulled", "Created", "Started"}
    assert writes(world) == ["POST"]
    followed = world.engine.find(EventMirror)._namespaces[DEFAULT]
    assert len(followed.written or {}) == 2, "what the remote forgets, we forget"


async def test_written_event_is_compacted_and_still_updated(world: World) -> None:
    await started(world)
    said = say(world, "BackOff", message="x" * 1000)
    await world.settle()
    followed = world.engine.find(EventMirror)._namespaces[DEFAULT]
    (kept,) = followed.events.store
    assert kept == {
        "metadata": {
            k: said["metadata"][k] for k in ("namespace", "name", "uid", "resourceVersion")
        },
        "pod": said["involvedObject"]["uid"],
    }
    assert not followed.events.store.has("pod", kept["pod"])
    world.home.remove(EVENTS, heard(world)["BackOff"]["metadata"]["name"], "default")
    say(world, "BackOff", message="x" * 1000, count=2)
    await world.settle()
    assert heard(world)["BackOff"]["reason"] == "BackOff"
    assert heard(world)["BackOff"]["count"] == 2


async def test_namespaces_come_and_go_with_their_pods(world: World) -> None:
    await started(world)
    (watch,) = world.remote.open_watches(EVENTS)
    assert watch.namespace == THERE
    assert watch.query["fieldSelector"] == "involvedObject.kind=Pod"
    world.engine._home_watches._linger = 0.02
    world.pod(namespace="other")
    await world.settle()
    world.remote.put(objects.event(world.remote.get(PODS, "a", "other-h"), "Pulled"))
    await world.settle()
    assert set(heard(world, "other")) == {"Pulled"}
    world.home.delete(PODS, "a", "other", grace_seconds=0)
    await world.remote.until(lambda: len(world.remote.open_watches(EVENTS)) == 1)
    world.clear_logs()
    world.pod(namespace="other")
    await world.settle()
    assert writes(world) == [], "what it was told before is listed again, not written"
    assert len(world.remote.open_watches(EVENTS)) == 2


@pytest.mark.parametrize("code", [403, 404, 422])
async def test_rejected_event_is_dropped_until_it_changes(world: World, code: int) -> None:
    await started(world)
    fault = world.home.fail(Fault("POST", "*/events", code=code, message="terminating"))
    say(world, "Killing")
    await world.settle()
    await asyncio.sleep(0.1)
    assert writes(world) == ["POST"]
    world.home.heal(fault)
    say(world, "Killing", count=2)
    await world.settle()
    assert heard(world)["Killing"]["count"] == 2


async def test_failed_writes_and_lists_are_retried(world: World) -> None:
    await world.start()
    listed = world.home.fail(Fault("GET", "*/events", code=500, times=2))
    world.pod()
    await world.settle(waiting=True)
    written = world.home.fail(Fault("POST", "*/events", code=500, times=2))
    say(world, "Pulled")
    await world.settle()
    await world.home.until(lambda: heard(world))
    assert (listed.hits, written.hits) == (2, 2)


async def test_event_deleted_at_home_is_recreated_when_it_changes(world: World) -> None:
    await started(world)
    say(world, "BackOff")
    await world.settle()
    world.home.remove(EVENTS, heard(world)["BackOff"]["metadata"]["name"], "default")
    say(world, "BackOff", count=2)
    await world.settle()
    assert heard(world)["BackOff"]["count"] == 2


async def test_forbidden_events_of_a_namespace_do_not_block_its_pods(world: World) -> None:
    world.remote.fail(Fault("GET", "*/events", code=403))
    await world.start(settle=False)
    world.pod()
    await world.remote.until(world.remote_pod)
    assert world.remote.find(NAMESPACES, THERE)


async def test_a_burst_costs_one_request_for_each_event(world: World) -> None:
    await started(world)
    names = [f"p{number}" for number in range(40)]
    for name in names:
        world.pod(name)
    await world.settle()
    world.clear_logs()
    for reason in ("Scheduled", "Pulled", "Created", "Started", "Killing"):
        for name in names:
            say(world, reason, name)
    await world.settle()
    assert writes(world) == ["POST"] * 200
    assert len(world.home.requests(path="*/events*")) == 200
    assert world.remote.requests(path="*/events*") == []
