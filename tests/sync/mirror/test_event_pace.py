"""A remote that floods a pod or a namespace with Events fills neither home nor a queue."""

from __future__ import annotations

import asyncio

import pytest

from sync.base import namespace_fair_cache
from sync.kube.api_resources import EVENTS
from sync.mirror import event_mirror
from sync.mirror.event_mirror import EventPace
from tests import objects
from tests.sync.engine_harness import EngineHarness


async def test_pod_has_a_burst_and_then_one_event_each_interval() -> None:
    pace = EventPace()
    assert [pace.take("a", "pod") for _ in range(60)].count(True) == event_mirror.BURST
    assert pace.take("a", "other")
    await asyncio.sleep(event_mirror.SECONDS_EACH)
    assert pace.take("a", "pod")
    assert not pace.take("a", "pod")
    await asyncio.sleep(10**6)
    assert [pace.take("a", "pod") for _ in range(60)].count(True) == event_mirror.BURST


async def test_namespace_is_delayed_beyond_its_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_mirror, "NAMESPACE_BURST", 10)
    pace = EventPace()
    for number in range(10):
        assert pace.delay("a") == 0
        assert pace.take("a", f"pod-{number}")
    delay = pace.delay("a")
    assert 0 < delay <= 1 / event_mirror.NAMESPACE_RATE
    assert pace.delay("b") == 0
    await asyncio.sleep(delay + 1e-6)
    assert pace.delay("a") == 0


def test_buckets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_fair_cache, "entries_limit", lambda: 20)
    pace = EventPace()
    while pace.take("a", "pod"):
        pass
    for number in range(100):
        pace.take("a", f"pod-{number}")
    # Its bucket was dropped, and counts as full.
    assert pace.take("a", "pod")


async def test_flood_of_one_pod_is_cut_and_others_are_mirrored(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod("loud")
    harness.pod("quiet", "other")
    await harness.settle()
    for number in range(3 * event_mirror.BURST):
        harness.remote.put(objects.event(harness.remote_pod("loud") or {}, f"Reason{number}"))
    quiet = harness.remote_pod("quiet", "other-h") or {}
    harness.remote.put(objects.event(quiet, "Started"))
    await harness.settle()
    by_namespace = [it["metadata"]["namespace"] for it in harness.home.objects(EVENTS)]
    assert by_namespace.count("default") == event_mirror.BURST
    assert by_namespace.count("other") == 1
    remote = harness.engine.remote_pods.client
    assert remote.limits.rejected["event-rate"] == 2 * event_mirror.BURST


async def test_repeated_event_without_news_takes_no_token(harness: EngineHarness) -> None:
    await harness.start()
    harness.pod()
    await harness.settle()
    pod = harness.remote_pod() or {}
    for _ in range(3 * event_mirror.BURST):
        made = harness.remote.put(objects.event(pod, "Started"))
        harness.remote.put({**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}})
    harness.remote.put(objects.event(pod, "Killing"))
    await harness.settle()
    reasons = {it["reason"] for it in harness.home.objects(EVENTS)}
    assert {"Started", "Killing"} <= reasons


async def test_delayed_events_are_written_later(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_mirror, "NAMESPACE_BURST", 5)
    await harness.start()
    harness.pod()
    await harness.settle()
    for number in range(20):
        harness.remote.put(objects.event(harness.remote_pod() or {}, f"Reason{number}"))
    await harness.home.until(lambda: len(harness.home.objects(EVENTS)) >= 20)
