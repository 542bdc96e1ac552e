"""Events of home's objects: recorded in the background, counted, never blocking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sync.kube.api_resources import EVENTS, Object
from sync.kube.client import KubeClient
from sync.runtime import event_recorder as events_module
from sync.runtime.event_recorder import EventRecorder
from tests.fakeapi import FakeApi, Fault
from tests.objects import node, pod
from translators.mirror.event import MESSAGE_MAX

NOW = "2030-01-01T00:00:00Z"


@pytest.fixture
def recorder(client: KubeClient) -> EventRecorder:
    """For the node ``virtual``."""
    return EventRecorder(client, node="virtual", now=lambda: NOW)


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    task = asyncio.create_task(recorder.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def recorded(api: FakeApi, count: int = 1) -> list[Object]:
    """Waits for this number of Events; returns them."""
    await api.until(lambda: len(api.objects(EVENTS)) >= count)
    return api.objects(EVENTS)


async def test_event_names_object_source_and_time(api: FakeApi, recorder: EventRecorder) -> None:
    about = api.put(pod("a"))
    async with running(recorder):
        recorder.warn(about, "RemoteClash", "move it")
        (event,) = await recorded(api)
    assert event["involvedObject"]["uid"] == about["metadata"]["uid"]
    assert event["involvedObject"]["kind"] == "Pod"
    assert (event["type"], event["reason"], event["message"]) == (
        "Warning",
        "RemoteClash",
        "move it",
    )
    assert event["source"] == {"component": "cluster-bridge", "host": "virtual"}
    assert (event["firstTimestamp"], event["count"]) == (NOW, 1)


async def test_repeated_event_is_counted(api: FakeApi, recorder: EventRecorder) -> None:
    about = api.put(pod("a"))
    async with running(recorder):
        for _ in range(3):
            recorder.warn(about, "RemoteClash", "move it")
        recorder.normal(about, "RemoteClash", "move it")
        events = await recorded(api, 2)
    assert sorted((event["type"], event["count"]) for event in events) == [
        ("Normal", 1),
        ("Warning", 3),
    ]


async def test_event_about_a_cluster_scoped_object_is_in_default(
    api: FakeApi, recorder: EventRecorder
) -> None:
    about = api.put(node("n"))
    async with running(recorder):
        recorder.normal(about, "Joined", "welcome")
        (event,) = await recorded(api)
    assert event["metadata"]["namespace"] == "default"


@pytest.mark.parametrize("ending", ["-", ".", "b"], ids=["at a dash", "at a dot", "in a word"])
async def test_long_event_name_is_cut(api: FakeApi, recorder: EventRecorder, ending: str) -> None:
    about = api.put(pod("a" * 199 + ending + "b" * 50))
    async with running(recorder):
        recorder.warn(about, "Long", "x" * 5000)
        (event,) = await recorded(api)
    assert len(event["message"]) == MESSAGE_MAX
    stem, _, digest = event["metadata"]["name"].rpartition(".")
    assert stem[-1].isalnum()
    assert len(digest) == 16


async def test_event_that_cannot_be_written_is_logged_and_skipped(
    api: FakeApi, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail(Fault("POST", "*/events", code=403, message="no events for you"))
    about = api.put(pod("a"))
    async with running(recorder):
        recorder.warn(about, "First", "lost")
        recorder.warn(about, "Second", "written")
        (event,) = await recorded(api)
    assert event["reason"] == "Second"
    assert "no events for you" in caplog.text


async def test_events_beyond_the_backlog_are_dropped_and_logged(
    api: FakeApi,
    client: KubeClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "BACKLOG", 2)
    recorder = EventRecorder(client, node="virtual", now=lambda: NOW)
    about = api.put(pod("a"))
    for number in range(4):
        recorder.warn(about, f"Number{number}", "x")
    async with running(recorder):
        events = await recorded(api, 2)
        await api.until(lambda: "too many waited: 2" in caplog.text)
    assert {event["reason"] for event in events} == {"Number0", "Number1"}
    assert "dropped: Number2" in caplog.text
    assert "Number3" not in caplog.text, "one line for all that are dropped"


async def test_events_of_one_namespace_leave_places_and_turns_to_others(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "BACKLOG", 8)
    recorder = EventRecorder(client, node="virtual", now=lambda: NOW)
    many, one = api.put(pod("a", namespace="many")), api.put(pod("a", namespace="one"))
    for number in range(20):
        recorder.warn(many, f"Number{number}", "x")
    recorder.warn(one, "Only", "x")
    async with running(recorder):
        await recorded(api, 7)
    written = [request.path.split("/")[4] for request in api.requests("POST", "*/events")]
    assert sorted(written[:2]) == ["many", "one"]


async def test_webhook_that_hangs_for_one_namespace_delays_no_other(
    api: FakeApi, recorder: EventRecorder
) -> None:
    api.fail(Fault("POST", "*/namespaces/slow/events", delay=5, times=None))
    slow, fast = api.put(pod("a", namespace="slow")), api.put(pod("a", namespace="fast"))
    reasons = [f"Number{number}" for number in range(5)]
    for reason in reasons:
        recorder.warn(slow, reason, "x")
        recorder.warn(fast, reason, "x")
    started = asyncio.get_running_loop().time()
    async with running(recorder):
        await recorded(api, 5)
        assert asyncio.get_running_loop().time() - started < 1
        await recorded(api, 10)
    for namespace in ("slow", "fast"):
        requests = api.requests("POST", f"*/namespaces/{namespace}/events")
        bodies = [request.body or {} for request in requests]
        assert [body["reason"] for body in bodies] == reasons, "one after the other, in order"


async def test_event_that_is_throttled_again_and_again_is_dropped(
    api: FakeApi, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    fault = api.fail(Fault("POST", "*/events", code=429, retry_after=30, times=None))
    about = api.put(pod("a"))
    started = asyncio.get_running_loop().time()
    async with running(recorder):
        recorder.warn(about, "First", "lost")
        await api.until(lambda: "not written in 60 s" in caplog.text)
        assert asyncio.get_running_loop().time() - started < 65
        api.heal(fault)
        recorder.warn(about, "Second", "written")
        (event,) = await recorded(api)
    assert event["reason"] == "Second"
