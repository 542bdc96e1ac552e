"""The placer's counters, for its metrics."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sync.kube.api_resources import PODS
from sync.placement import placement_counters
from sync.placement.placement_counters import NamedCounts, PlacementCounters
from tests.fakeapi import Fault
from tests.sync.placement.placed_home import TIERS, Home
from translators.placement.decision import HOME
from translators.timestamps import format_time, parse_time


async def test_placed_and_bound_pods_are_counted_and_timed(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    home.remote("c", 2000)
    home.pod("a")
    home.pod("b")
    counters = home.placer.counters
    await home.api.until(lambda: counters.placed.counts == {("p", HOME): 1, ("p", "c"): 1})
    assert {home.choice("a"), home.choice("b")} == {HOME, "c"}
    assert sum(counters.wait.counts) == 2
    assert sum(counters.binding.counts) == 0
    [at_home] = [it for it in "ab" if home.choice(it) == HOME]
    home.run(at_home)
    home.api.remove(PODS, "b" if at_home == "a" else "a", "default")
    await home.api.until(lambda: sum(counters.binding.counts) == 1)
    assert len(home.placer.waiting_pods) == 0


async def test_waiting_pods_have_reasons(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.pod("a")
    waiting = home.placer.waiting_pods
    await home.api.until(lambda: +waiting.by_reason == {"no-candidate": 1})
    home.joining("c")
    await home.api.until(lambda: +waiting.by_reason == {"room-unknown": 1})
    home.room("c", 500)
    await home.api.until(lambda: +waiting.by_reason == {"no-room": 1})
    assert waiting.of_policy("p") == 1
    home.room("c", 1500)
    await home.placed(a="c")
    await home.api.until(lambda: not +waiting.by_reason)
    assert waiting.of_policy("p") == 0


async def test_oldest_wait_follows_the_clock(home: Home) -> None:
    home.policy()
    assert home.placer.oldest_wait() == 0
    home.pod("a")
    await home.event("WaitingForPlacement")
    home.now = format_time(parse_time(home.now) + timedelta(minutes=3))
    assert home.placer.oldest_wait() == 180


async def test_undecided_pod_is_one_whose_decision_cannot_be_written(home: Home) -> None:
    home.api.fail(Fault("PATCH", "*/pods/a", code=403, times=None))
    home.policy()
    home.node("worker", "1")
    home.pod("a")
    await home.api.until(lambda: home.placer.controller.results["failure"])
    assert +home.placer.waiting_pods.by_reason == {"undecided": 1}
    assert not home.placer.counters.placed.counts


async def test_releases_are_counted(home: Home) -> None:
    home.pod("a")
    await home.api.until(lambda: home.placer.counters.released["no-policy"] == 1)
    home.policy(maxWait="1m")
    home.pod("b")
    await home.event("WaitingForPlacement")
    home.now = format_time(parse_time(home.now) + timedelta(minutes=2))
    home.remote("other", 0)  # A change decides again.
    await home.api.until(lambda: home.placer.counters.released["max-wait"] == 1)


async def test_refusals_are_counted_by_node(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.remote("c", 1000)
    home.pod("a", owner="job")
    await home.placed(a="c")
    failed = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no node"}
    home.api.update(PODS, "a", {"spec": {"nodeName": "c"}, "status": failed}, "default")
    await home.api.until(lambda: home.placer.counters.refused.counts == {"c": 1})
    home.api.update(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    home.pod("b", owner="job")
    await home.event("WaitingForPlacement")
    assert +home.placer.waiting_pods.by_reason == {"refused": 1}
    assert home.placer.counters.refused.counts == {"c": 1}


async def test_forged_placement_counts_as_no_refusal(home: Home) -> None:
    """A user's pod names any node in its annotation; a kubelet fails it there."""
    home.policy(tiers=TIERS[1:])
    home.node("worker", "9")
    home.remote("c", 3000)
    record = '{"policy": "p", "choice": "%s"}'
    failed = {"phase": "Failed", "reason": "OutOfcpu", "message": "no room"}
    for name, node in (("forged", "worker"), ("refused", "c")):
        home.pod(name, owner=name)
        await home.placed(**{name: "c"})
        note = {"annotations": {"cluster-bridge.io/placement": record % node}}
        change = {"metadata": note, "spec": {"nodeName": node}, "status": failed}
        home.api.update(PODS, name, change, "default")
    await home.api.until(lambda: home.placer.counters.refused.counts)
    assert home.placer.counters.refused.counts == {"c": 1}


async def test_annotations_of_pods_leave_nothing_behind(home: Home) -> None:
    """Users who create pods can annotate them with any policy."""
    home.policy()
    home.node("worker", "9")
    home.pod("a")
    await home.placed(a=HOME)
    annotation = '{"policy": "%s", "choice": "x"}'
    key = "cluster-bridge.io/placement"
    for number in range(3):
        change = {"metadata": {"annotations": {key: annotation % f"forged{number}"}}}
        home.api.update(PODS, "a", change, "default")
    home.api.remove(PODS, "a", "default")
    await home.api.until(lambda: not home.placer.state.counts_by_policy())


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_counters, "MAX_NAMED", 2)
    counts = NamedCounts("other")
    for name in "abcda":
        counts.add(name)
    assert counts.counts == {"a": 2, "b": 1, "other": 2}


def test_timed_pods_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_counters, "MAX_TIMED", 1)
    counters = PlacementCounters()
    for uid in "ab":
        counters.pod_placed(uid, "p", HOME, waited=-1.0, at=0.0)
    for uid in "ab":
        counters.pod_changed(uid, is_bound=True, is_gone=False, at=2.0)
    assert sum(counters.binding.counts) == 1
    assert counters.wait.total == 0
