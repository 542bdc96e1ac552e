"""Pods return to an earlier tier of their policy by evictions, at a fake home."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sync.kube.api_resources import PODS
from sync.placement import failback
from tests.sync.placement.placed_home import TIERS, Home
from translators.object_accessors import name_of
from translators.placement.decision import HOME
from translators.timestamps import format_time, parse_time

#: A pace without noticeable waits.
AT_ONCE = {"podsPerMinute": 1000}


async def _overflow(home: Home, *names: str, kind: str = "ReplicaSet", owner: str = "web") -> None:
    """These pods run in the remote, because home has no room."""
    for name in names:
        home.pod(name, owner=owner, kind=kind)
        await home.placed(**{name: "c"})
        home.run(name)


async def test_pods_return_to_an_earlier_tier_at_the_policys_pace(home: Home) -> None:
    home.policy(failback={"podsPerMinute": 1})
    home.node("worker", "1")
    home.remote("c", 4000)
    places = {"a": HOME, "b": "c", "d": "c"}
    for name, choice in places.items():
        home.pod(name, owner="web", kind="ReplicaSet")
        await home.placed(**{name: choice})
    protected = {"b"}
    home.api.api.budget = lambda pod: "budget" if pod["metadata"]["name"] in protected else ""
    for name in places:
        home.run(name)
    home.node("worker", "9")
    await home.api.until(lambda: home.ends("d"))
    assert "tier home of policy p has room again" in await home.event("ReturnsToEarlierTier")
    protected.clear()
    await asyncio.sleep(0.1)
    assert not home.ends("b"), "the next returns after a minute"
    assert not home.ends("a"), "it is in the first tier"


async def test_each_minute_has_as_many_returns_as_the_policy_permits(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside many pods that a PodDisruptionBudget protects."""
    home.policy(failback=AT_ONCE)
    home.remote("c", 90000)
    protected, others = [f"a{it}" for it in range(4)], [f"b{it}" for it in range(4)]
    home.api.api.budget = lambda pod: "budget" if name_of(pod) in protected else ""
    monkeypatch.setattr(failback, "LOOK_SECONDS", 1.5)
    await _overflow(home, *protected, owner="protected")
    await _overflow(home, *others)
    home.node("worker", "99")
    async with asyncio.timeout(1.5 * (len(others) + len(protected)) / 2):
        await home.api.until(lambda: all(map(home.ends, others)))
    assert not any(map(home.ends, protected))


async def test_pod_does_not_return_to_a_tier_that_offloading_excludes(home: Home) -> None:
    home.policy(failback=AT_ONCE)
    home.remote("c", 4000)
    await _overflow(home, "a")
    home.offload("remote-only")
    home.node("worker", "9")
    await asyncio.sleep(0.2)
    assert not home.ends("a")
    home.offload("burst")
    await home.api.until(lambda: home.ends("a"))


async def test_room_of_an_evicted_pod_is_kept_for_its_successor(home: Home) -> None:
    """A StatefulSet creates it only after the end of the evicted pod."""
    home.policy(failback=AT_ONCE)
    home.remote("c", 4000)
    await _overflow(home, "b", "d", kind="StatefulSet")
    home.node("worker", "1")
    await home.api.until(lambda: home.ends("b"))
    await asyncio.sleep(0.3)
    assert not home.ends("d"), "home has room for one"
    home.api.remove(PODS, "b", "default")
    await asyncio.sleep(0.2)
    assert not home.ends("d"), "the successor will be there soon"
    home.pod("b", owner="web", kind="StatefulSet")
    await home.placed(b=HOME)
    await asyncio.sleep(0.2)
    assert not home.ends("d")


async def test_room_of_an_evicted_pod_without_successor_is_free_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failback, "SUCCESSOR_SECONDS", 0.1)
    home.policy(failback=AT_ONCE)
    home.remote("c", 4000)
    await _overflow(home, "b", "d")
    home.node("worker", "1")
    await home.api.until(lambda: home.ends("b"))
    home.api.remove(PODS, "b", "default")
    await home.api.until(lambda: home.ends("d"))


async def test_pod_does_not_return_to_a_remote_that_refused_its_workload(home: Home) -> None:
    home.policy(tiers=TIERS[1:], failback=AT_ONCE)
    home.remote("c", 4000)
    home.remote("e", 4000, cls="expensive")
    home.pod("a", owner="web", kind="ReplicaSet")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    refused = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no GPU"}
    home.api.update(PODS, "a", {"status": refused}, "default")
    home.pod("b", owner="web", kind="ReplicaSet")
    await home.placed(b="e")
    home.run("b")
    home.room("c", 0)
    home.pod("other", owner="other", kind="ReplicaSet")
    await home.placed(other="e")
    home.run("other")
    home.room("c", 4000)
    await home.api.until(lambda: home.ends("other"))
    await asyncio.sleep(0.1)
    assert not home.ends("b")


async def test_pods_stay_until_a_returned_remote_has_been_ready_for_long(home: Home) -> None:
    home.policy(tiers=TIERS[1:], failback=AT_ONCE)
    home.remote("e", 4000, cls="expensive")
    home.pod("a", owner="web", kind="ReplicaSet")
    await home.placed(a="e")
    home.run("a")
    home.remote("c", 4000, minutes=1)
    home.pod("b", owner="web", kind="ReplicaSet")
    await home.placed(b="c")
    await asyncio.sleep(0.1)
    assert not home.ends("a")
    home.now = format_time(parse_time(home.now) + timedelta(minutes=4))
    await home.api.until(lambda: home.ends("a"))
