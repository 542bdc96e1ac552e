"""Mirrored Events of remote pods: each is written once, kept current, and limited to managed
pods."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from sync.base.background_task import background_task
from sync.cache.informer import Informer
from sync.kube.api_resources import EVENTS, NAMESPACES, PODS, Object
from sync.mirror import event_mirror
from sync.mirror.event_mirror import EventMirror
from sync.namespaces import per_namespace_informers
from sync.pods.pod_controller import PodController
from tests import objects
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault, LoggedRequest
from tests.sync.engine_harness import ADDRESS, IDENTITY, NODE, REMOTE_NAMESPACE, EngineHarness
from tests.sync.single_controller import controller_context
from translators.mirror.event import home_event_name
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_UID,
    LABEL_NODE,
    remote_metadata,
)
from translators.translation_options import Policy

DEFAULT = HomeNamespace("default")


def emit_event(harness: EngineHarness, reason: str, name: str = "a", **about: Any) -> Object:
    """The remote's kubelet emits an Event of the remote pod, or repeats it."""
    pod = harness.remote_pod(name)
    assert pod is not None
    return harness.remote.put(objects.event(pod, reason, **about))


def mirrored_events(harness: EngineHarness, namespace: str = "default") -> dict[str, Object]:
    """The mirrored Events at home by reason; asserts one of each."""
    found = [it for it in harness.home.objects(EVENTS, namespace) if "labels" in it["metadata"]]
    reasons = {it["reason"]: it for it in found}
    assert len(reasons) == len(found)
    return reasons


def event_writes(harness: EngineHarness) -> list[str]:
    """The writes of Events at home."""
    entries: list[LoggedRequest] = harness.home.writes("*/events*")
    return [entry.method for entry in entries]


def followed_events(mirror: EventMirror) -> list[Informer]:
    """The informer of each followed namespace."""
    informers = mirror.declare().own_informers
    assert informers is not None
    return list(informers())


async def started(harness: EngineHarness) -> None:
    """An engine, and a pod that runs."""
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.report_running()
    await harness.settle()
    harness.clear_logs()


async def test_event_is_mirrored_to_the_home_pod_and_its_count_follows(
    harness: EngineHarness,
) -> None:
    await started(harness)
    emit_event(harness, "BackOff", message=f"{REMOTE_NAMESPACE}/a is waited for")
    await harness.settle()
    event = mirrored_events(harness)["BackOff"]
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "a",
        "uid": harness.home_pod()["metadata"]["uid"],
        "fieldPath": "spec.containers{main}",
    }
    assert event["metadata"]["labels"] == {LABEL_NODE: NODE}
    assert (event["count"], event["message"]) == (1, "default/a is waited for")
    assert event["source"]["component"] == "kubelet"
    for count in (2, 3):
        emit_event(harness, "BackOff", message=f"{REMOTE_NAMESPACE}/a is waited for", count=count)
        await harness.settle()
        event = mirrored_events(harness)["BackOff"]
        assert (event["count"], event["lastTimestamp"]) == (count, f"2030-01-01T00:00:0{count}Z")
    assert event_writes(harness) == ["POST", "PATCH", "PATCH"]
    assert harness.home.writes("*/events/*")[-1].body == {
        "count": 3,
        "lastTimestamp": "2030-01-01T00:00:03Z",
    }


async def test_restart_writes_only_new_events(harness: EngineHarness) -> None:
    await started(harness)
    for reason in ("Pulled", "Created", "Started"):
        emit_event(harness, reason)
    await harness.settle()
    assert len(mirrored_events(harness)) == 3
    await harness.restart()
    assert harness.writes() == []
    assert event_writes(harness) == []
    await harness.stop()
    emit_event(harness, "Started", count=2)
    emit_event(harness, "Killing")
    harness.clear_logs()
    await harness.start()
    assert sorted(event_writes(harness)) == ["PATCH", "POST"]
    assert mirrored_events(harness)["Started"]["count"] == 2


async def test_events_of_previous_pods_are_not_written_twice_after_a_restart(
    harness: EngineHarness,
) -> None:
    """The response to a create was lost."""
    await started(harness)
    harness.home.fail(Fault("POST", "*/events", drop="after", times=1))
    emit_event(harness, "Pulled")
    await harness.settle()
    assert len(mirrored_events(harness)) == 1
    assert event_writes(harness) == ["POST", "POST"]


async def test_unmanaged_events_are_ignored(harness: EngineHarness) -> None:
    accepts = {ANNOTATION_ACCEPTS: "h"}
    meta = {"name": REMOTE_NAMESPACE, "annotations": accepts}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    foreign = harness.remote.put(objects.pod("foreign", REMOTE_NAMESPACE))
    harness.remote.put(objects.event(foreign, "Pulled"))
    await started(harness)
    harness.remote.put(objects.event(foreign, "Started"))
    stale = {**foreign, "metadata": {**foreign["metadata"], "name": "a", "uid": "stale"}}
    harness.remote.put(objects.event(stale, "Killing"))
    before = harness.remote.objects(EVENTS)
    await harness.settle()
    assert mirrored_events(harness) == {}
    assert event_writes(harness) == []
    assert harness.remote.objects(EVENTS) == before
    assert harness.remote.writes("*/events*") == []


async def test_last_events_of_a_deleted_pod_are_mirrored_until_a_restart(
    harness: EngineHarness,
) -> None:
    await started(harness)
    pod = harness.remote_pod()
    assert pod is not None
    uid = harness.home_pod()["metadata"]["uid"]
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.home.find(PODS, "a", "default") is None
    harness.remote.put(objects.event(pod, "Killing"))
    await harness.settle()
    assert mirrored_events(harness)["Killing"]["involvedObject"]["uid"] == uid
    await harness.stop()
    harness.remote.put(objects.event(pod, "Late"))
    harness.pod()  # another pod of the same name
    await harness.start()
    emit_event(harness, "Started")
    await harness.settle()
    assert set(mirrored_events(harness)) == {"Killing", "Started"}
    assert mirrored_events(harness)["Started"]["involvedObject"]["uid"] != uid


async def test_event_seen_before_its_pod_is_mirrored(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor
) -> None:
    clients = await client_for(home_api, "home"), await client_for(remote_api, "remote")
    context = controller_context(*clients, Policy(IDENTITY, ADDRESS))
    mirror = EventMirror(context, in_burst=lambda: False)
    home = home_api.put(objects.pod("a"))
    remote = remote_api.put(
        {**objects.pod("a", REMOTE_NAMESPACE), "metadata": remote_metadata(home, IDENTITY)}
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
    assert followed_events(mirror) == []


@pytest.mark.parametrize(("length", "mirrored"), [(253, True), (254, False)])
async def test_long_names_of_deleted_pods_are_not_kept(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor, length: int, mirrored: bool
) -> None:
    clients = await client_for(home_api, "home"), await client_for(remote_api, "remote")
    mirror = EventMirror(
        controller_context(*clients, Policy(IDENTITY, ADDRESS)), in_burst=lambda: False
    )
    home = home_api.put(objects.pod("a"))
    remote = {**objects.pod("a", REMOTE_NAMESPACE), "metadata": remote_metadata(home, IDENTITY)}
    remote["metadata"]["uid"] = "remote"
    remote["metadata"]["annotations"][ANNOTATION_HOME_UID] = "u" * length
    mirror.remote_pod_changed(None, remote)
    mirror.remote_pod_changed(remote, None)
    remote_api.put(objects.event(remote, "Killing"))
    async with (
        background_task(mirror.follow(DEFAULT), name="follow"),
        background_task(mirror.controller.run(), name="run"),
    ):
        await home_api.until(lambda: home_api.requests("GET", "*/events"))
        await asyncio.sleep(1)
        await home_api.until(lambda: not mirror.controller.queue.working)
    assert bool(home_api.requests("POST", "*/events")) == mirrored


async def test_long_messages_of_home_events_are_not_kept(
    home_api: FakeApi, remote_api: FakeApi, client_for: ClientFor
) -> None:
    clients = await client_for(home_api, "home"), await client_for(remote_api, "remote")
    mirror = EventMirror(
        controller_context(*clients, Policy(IDENTITY, ADDRESS)), in_burst=lambda: False
    )
    remote = remote_api.put(objects.pod("a", REMOTE_NAMESPACE))
    home = home_api.put(objects.pod("a"))
    for number in range(20):
        event = remote_api.put(objects.event(remote, f"Scheduled{number}"))
        mirrored = objects.event(home, "Scheduled", message="x" * 100_000)
        mirrored["metadata"] |= {
            "name": home_event_name(event),
            "labels": {LABEL_NODE: IDENTITY.node_label},
        }
        home_api.put(mirrored)
    tracemalloc.start()
    try:
        async with (
            background_task(mirror.follow(DEFAULT), name="follow"),
            background_task(mirror.controller.run(), name="run"),
        ):
            await home_api.until(lambda: home_api.requests("GET", "*/events"))
            await home_api.until(lambda: not mirror.controller.queue.working)
            gc.collect()
            kept = tracemalloc.take_snapshot().filter_traces(
                [tracemalloc.Filter(True, event_mirror.__file__)]
            )
    finally:
        tracemalloc.stop()
    assert sum(trace.size for trace in kept.traces) < 20 * 3_000


@pytest.mark.parametrize("for_ever", [False, True], ids=["for a while", "for ever"])
async def test_event_waits_in_a_burst_with_a_limit(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, for_ever: bool
) -> None:
    looks = 0

    def in_burst() -> bool:
        nonlocal looks
        looks += 1
        assert event_writes(harness) == []
        return for_ever or looks < 5

    monkeypatch.setattr(event_mirror, "BURST_POLL", 0.01)
    monkeypatch.setattr(event_mirror, "BURST_WAIT_MAX", 0.04)
    monkeypatch.setattr(PodController, "in_burst", lambda _: in_burst())
    await started(harness)
    emit_event(harness, "Pulled")
    await harness.settle()
    assert looks == 5
    assert set(mirrored_events(harness)) == {"Pulled"}


async def test_many_events_wait_less_in_a_burst(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_mirror, "BURST_WAIT_MAX", 3600.0)
    monkeypatch.setattr(event_mirror, "LATE", 0.1)
    monkeypatch.setattr(event_mirror, "BURST", 1000)
    monkeypatch.setattr(PodController, "in_burst", lambda _: True)
    await started(harness)
    for number in range(100):
        emit_event(harness, f"Event{number}")
    await harness.home.until(lambda: len(mirrored_events(harness)) == 100)


async def restore(harness: EngineHarness, event: Object) -> None:
    """Puts the Event back with its previous UID, as a remote that is restored from a backup."""
    harness.remote.mute_watches()
    harness.remote.put(event)
    uid = {"metadata": {"uid": event["metadata"]["uid"]}}
    harness.remote.update(EVENTS, event["metadata"]["name"], uid, REMOTE_NAMESPACE)
    harness.remote.compact()
    harness.remote.expire_watches(EVENTS)
    harness.remote.unmute_watches()
    await harness.settle()


async def test_relist_writes_only_new_events(harness: EngineHarness) -> None:
    await started(harness)
    emit_event(harness, "Pulled")
    kept = emit_event(harness, "Created")
    await harness.settle()
    harness.clear_logs()
    harness.remote.mute_watches()
    emit_event(harness, "Started")
    harness.remote.remove(EVENTS, kept["metadata"]["name"], REMOTE_NAMESPACE)
    harness.remote.compact()
    harness.remote.expire_watches(EVENTS)
    harness.remote.unmute_watches()
    await harness.settle()
    assert harness.remote.requests("GET", "*/events")
    assert set(mirrored_events(harness)) == {"Pulled", "Created", "Started"}
    assert event_writes(harness) == ["POST"]
    harness.clear_logs()
    await restore(harness, kept)
    assert event_writes(harness) == ["POST"], "what the remote forgets, we forget"


async def test_event_that_is_deleted_during_its_write_is_forgotten(harness: EngineHarness) -> None:
    await started(harness)
    slow = harness.home.fail(Fault("POST", "*/events", delay=1))
    event = emit_event(harness, "Pulled")
    await harness.remote.until(lambda: slow.hits)
    harness.remote.remove(EVENTS, event["metadata"]["name"], REMOTE_NAMESPACE)
    await harness.settle()
    assert set(mirrored_events(harness)) == {"Pulled"}
    harness.clear_logs()
    await restore(harness, event)
    assert event_writes(harness) == ["POST"]


async def test_written_event_is_compacted_and_still_updated(harness: EngineHarness) -> None:
    await started(harness)
    event = emit_event(harness, "BackOff", message="x" * 1000)
    await harness.settle()
    (events,) = followed_events(harness.engine.find(EventMirror))
    (kept,) = events.store
    assert kept == {
        "metadata": {
            k: event["metadata"][k] for k in ("namespace", "name", "uid", "resourceVersion")
        },
        "pod": event["involvedObject"]["uid"],
    }
    assert not events.store.has("pod", kept["pod"])
    harness.home.remove(EVENTS, mirrored_events(harness)["BackOff"]["metadata"]["name"], "default")
    emit_event(harness, "BackOff", message="x" * 1000, count=2)
    await harness.settle()
    assert mirrored_events(harness)["BackOff"]["reason"] == "BackOff"
    assert mirrored_events(harness)["BackOff"]["count"] == 2


async def test_namespaces_come_and_go_with_their_pods(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(per_namespace_informers, "LINGER", 0.02)
    await started(harness)
    (watch,) = harness.remote.open_watches(EVENTS)
    assert watch.namespace == REMOTE_NAMESPACE
    assert watch.query["fieldSelector"] == "involvedObject.kind=Pod"
    harness.pod(namespace="other")
    await harness.settle()
    harness.remote.put(objects.event(harness.remote.get(PODS, "a", "other-h"), "Pulled"))
    await harness.settle()
    assert set(mirrored_events(harness, "other")) == {"Pulled"}
    harness.home.delete(PODS, "a", "other", grace_seconds=0)
    await harness.remote.until(lambda: len(harness.remote.open_watches(EVENTS)) == 1)
    harness.clear_logs()
    harness.pod(namespace="other")
    await harness.settle()
    assert event_writes(harness) == [], "Events that were mirrored before are listed, not written"
    assert len(harness.remote.open_watches(EVENTS)) == 2


@pytest.mark.parametrize("code", [403, 404, 422])
async def test_rejected_event_is_dropped_until_it_changes(
    harness: EngineHarness, code: int
) -> None:
    await started(harness)
    fault = harness.home.fail(Fault("POST", "*/events", code=code, message="terminating"))
    emit_event(harness, "Killing")
    await harness.settle()
    await asyncio.sleep(0.1)
    assert event_writes(harness) == ["POST"]
    harness.home.heal(fault)
    emit_event(harness, "Killing", count=2)
    await harness.settle()
    assert mirrored_events(harness)["Killing"]["count"] == 2


async def test_failed_writes_and_lists_are_retried(harness: EngineHarness) -> None:
    await harness.start()
    listed = harness.home.fail(Fault("GET", "*/events", code=500, times=2))
    harness.pod()
    await harness.settle(waiting=True)
    written = harness.home.fail(Fault("POST", "*/events", code=500, times=2))
    emit_event(harness, "Pulled")
    await harness.settle()
    await harness.home.until(lambda: mirrored_events(harness))
    assert (listed.hits, written.hits) == (2, 2)


async def test_event_deleted_at_home_is_recreated_when_it_changes(harness: EngineHarness) -> None:
    await started(harness)
    emit_event(harness, "BackOff")
    await harness.settle()
    harness.home.remove(EVENTS, mirrored_events(harness)["BackOff"]["metadata"]["name"], "default")
    emit_event(harness, "BackOff", count=2)
    await harness.settle()
    assert mirrored_events(harness)["BackOff"]["count"] == 2


async def test_forbidden_events_of_a_namespace_do_not_block_its_pods(
    harness: EngineHarness,
) -> None:
    harness.remote.fail(Fault("GET", "*/events", code=403))
    await harness.start(settle=False)
    harness.pod()
    await harness.remote.until(harness.remote_pod)
    assert harness.remote.find(NAMESPACES, REMOTE_NAMESPACE)


async def test_a_burst_costs_one_request_for_each_event(harness: EngineHarness) -> None:
    await started(harness)
    names = [f"p{number}" for number in range(40)]
    for name in names:
        harness.pod(name)
    await harness.settle()
    harness.clear_logs()
    for reason in ("Scheduled", "Pulled", "Created", "Started", "Killing"):
        for name in names:
            emit_event(harness, reason, name)
    await harness.settle()
    assert event_writes(harness) == ["POST"] * 200
    assert len(harness.home.requests(path="*/events*")) == 200
    assert harness.remote.requests(path="*/events*") == []
