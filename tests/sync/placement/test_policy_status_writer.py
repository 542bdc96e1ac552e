"""The status of PlacementPolicies at a fake home: content, and which writes there are."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from sync.kube.api_resources import PLACEMENT_POLICIES
from sync.kube.client import KubeClient
from sync.placement import policy_status_writer
from sync.placement.home_state import HomeState
from sync.placement.placer import Placer
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.client_config import client_config_for
from tests.sync.placement.placed_home import TIERS, Home
from translators.object_accessors import Object

ACTIVE = {"Ready": ("True", "Active")}


def status(home: Home) -> Object:
    found: Object = home.api.get(PLACEMENT_POLICIES, "p").get("status") or {}
    return found


def writes(api: FakeApi) -> int:
    """The writes of the policy's status."""
    return len(api.requests("PATCH", "*/placementpolicies/p/status"))


async def test_status_has_conditions_and_numbers(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    await home.api.until(lambda: home.conditions() == ACTIVE)
    assert status(home)["observedGeneration"] == 1
    assert (status(home)["placedPods"], status(home)["waitingPods"]) == (0, 0)
    assert "no virtual node has the labels of cheap" in status(home)["conditions"][0]["message"]


async def test_numbers_are_written_and_collected(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst costs one write when the time has come."""
    monkeypatch.setattr(policy_status_writer, "COUNT_SECONDS", 1.0)
    began = asyncio.get_running_loop().time()
    home.policy()
    home.node("worker", "3")
    await home.api.until(lambda: home.conditions() == ACTIVE)
    before = writes(home.api)
    for number in range(5):
        home.pod(f"p{number}")
    await home.api.until(
        lambda: (status(home)["placedPods"], status(home)["waitingPods"]) == (3, 2)
    )
    took = asyncio.get_running_loop().time() - began
    assert writes(home.api) - before <= 1 + took


async def test_invalid_policy_is_stalled_until_it_is_corrected(home: Home) -> None:
    home.policy(namespaces=[])
    invalid = {"Ready": ("False", "InvalidSpec"), "Stalled": ("True", "InvalidSpec")}
    await home.api.until(lambda: home.conditions() == invalid)
    assert "spec: one of namespaces" in status(home)["conditions"][1]["message"]
    home.policy()
    await home.api.until(lambda: home.conditions() == ACTIVE)
    assert status(home)["observedGeneration"] == 2


async def test_policy_waits_for_a_virtual_node(home: Home) -> None:
    home.policy(tiers=TIERS[1:2])
    await home.api.until(lambda: home.conditions() == {"Ready": ("False", "NoCandidate")})
    home.remote("c", 1000)
    await home.api.until(lambda: home.conditions() == ACTIVE)


async def test_nothing_is_written_while_nothing_changes(home: Home) -> None:
    """Neither for heartbeats of nodes, nor for changes by others that keep the placer's fields."""
    home.policy()
    home.node("worker", "1")
    await home.api.until(lambda: home.conditions() == ACTIVE)
    before = writes(home.api)
    home.api.update(PLACEMENT_POLICIES, "p", {"status": {"note": "of another controller"}})
    home.api.update(PLACEMENT_POLICIES, "p", {"metadata": {"labels": {"a": "b"}}})
    for minutes in range(3):
        home.node("worker", "1", minutes=minutes)
    home.pod("a")
    await home.placed(a="(home)")
    assert writes(home.api) == before


def test_write_of_the_status_decides_no_pod_again() -> None:
    """Otherwise each write would decide all waiting pods again."""
    state, changes = HomeState(), list[str]()
    state.on_change(lambda: changes.append("changed"))
    spec: Object = {"namespaces": ["default"], "tiers": TIERS}
    policy: Object = {"metadata": {"name": "p"}, "spec": spec}
    state.policy_changed(None, policy)
    state.policy_changed(policy, {**policy, "status": {"placedPods": 1}})
    assert len(changes) == 1
    state.policy_changed(policy, {**policy, "spec": {**spec, "priority": 1}})
    assert len(changes) == 2
    assert state.policies["p"].priority == 1


async def test_standby_writes_nothing(api: FakeApi) -> None:
    home = Home(api)
    async with KubeClient(client_config_for(api, "home")) as client:
        placer = Placer(client, now=lambda: home.now, identity="placer")
        watching = asyncio.create_task(placer.watch())
        await placer.synced()
        home.policy()
        await placer.policies.refresh()
        assert placer.state.policies
        assert len(placer.status.controller.queue) == 0
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert api.requests("PATCH") == []


async def test_rejected_write_delays_no_pod(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    """An account of an earlier version lacks the permission."""
    path = "*/placementpolicies/p/status"
    home.api.fail(Fault("PATCH", path, code=403, times=None))
    home.policy()
    home.node("worker", "2")
    await home.api.until(lambda: writes(home.api))
    for name in "ab":
        home.pod(name)
        await home.placed(**{name: "(home)"})
    warnings = [it for it in caplog.messages if re.search("placement-status /?p", it)]
    assert len(warnings) == 1, caplog.messages


async def test_status_of_a_stale_cache_is_not_overwritten(home: Home) -> None:
    """The precondition of each write is the version that the decision was made by."""
    home.policy()
    await home.api.until(lambda: home.conditions() == ACTIVE)
    [request, *_] = home.api.requests("PATCH", "*/placementpolicies/p/status")
    body: Any = request.body
    assert body["metadata"]["resourceVersion"]
    assert set(body) == {"metadata", "status"}
