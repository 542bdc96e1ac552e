"""The placer at a fake home; the test plays home's scheduler, bridges and users."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from sync.engine.engine import utc_now
from sync.kube.api_resources import (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PLACEMENT_POLICIES,
    PODS,
)
from sync.kube.client import KubeClient
from sync.placement import failback
from sync.placement import placer as placer_module
from sync.placement.placer import Placer
from tests import objects
from tests.fakeapi import FakeApi
from tests.fakeapi.client_config import client_config_for
from tests.fakeapi.resource_registry import Kind
from translators.fit import published_room
from translators.fit.node_groups import NodeGroup
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_VIRTUAL
from translators.placement import placed_pod
from translators.placement.decision import HOME
from translators.timestamps import format_time, parse_time

TIERS: list[Object] = [
    {"name": "home", "home": True},
    {"name": "cheap", "remotes": {"matchLabels": {"class": "cheap"}}},
    {"name": "expensive", "remotes": {"matchLabels": {"class": "expensive"}}},
]


class Home:
    """A fake home with helpers."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.now = utc_now()
        api.api.clock = lambda: self.now
        api.store.registry.add(Kind(PLACEMENT_POLICIES))
        api.put(NAMESPACES.manifest({"name": published_room.NAMESPACE}))

    def policy(self, **spec: Any) -> None:
        """The policy of namespace ``default``."""
        spec = {"namespaces": ["default"], "tiers": TIERS, **spec}
        self.api.put(PLACEMENT_POLICIES.manifest({"name": "p"}, spec=spec))

    def node(self, name: str, cpu: str, **labels: str) -> None:
        """A ready node with 100 pods of room."""
        for _ in range(2):  # A creation ignores the status.
            self.api.put(
                objects.node(name)
                | {
                    "metadata": {"name": name, "labels": labels},
                    "status": {
                        "allocatable": {"cpu": cpu, "pods": "100"},
                        "conditions": [{"type": "Ready", "status": "True"}],
                    },
                }
            )

    def remote(self, name: str, *cpus: int, cls: str = "cheap", version: int = 0) -> None:
        """A virtual node whose remote has one real node with each of these free millicores."""
        labels = {LABEL_VIRTUAL: "true", "class": cls, "kubernetes.io/hostname": name}
        self.node(name, "1000", **labels)
        self.room(name, *cpus, version=version)

    def room(self, name: str, *cpus: int, version: int = 0) -> None:
        """Publishes the remote's room."""
        groups = [NodeGroup(free={"cpu": it}, pods=100) for it in cpus]
        node = self.api.get(NODES, name)
        self.api.put(published_room.room_config_map(node, groups, version))

    def run(self, name: str) -> None:
        """The pod is bound to its place, and has been ready for ten minutes."""
        choice = self.choice(name)
        since = format_time(parse_time(self.now) - timedelta(minutes=10))
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": since}
        node = "worker" if choice == HOME else choice
        change = {
            "spec": {"nodeName": node},
            "status": {"phase": "Running", "conditions": [ready]},
        }
        self.api.update(PODS, name, change, "default")

    def pod(
        self, name: str, cpu: str = "1", *, owner: str = "", kind: str = "Job", **spec: Any
    ) -> None:
        """A new pod, as admission changes it."""
        pod = objects.pod(name)
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        pod["spec"].update(spec)
        if owner:
            reference = {"kind": kind, "name": owner, "uid": owner, "controller": True}
            pod["metadata"]["ownerReferences"] = [reference]
        self.api.put(placed_pod.gated(pod))

    def ends(self, name: str) -> bool:
        """Whether the pod is being deleted."""
        return "deletionTimestamp" in self.api.get(PODS, name, "default")["metadata"]

    def choice(self, name: str) -> str | None:
        """Where the pod was placed."""
        record = placed_pod.read_record(self.api.get(PODS, name, "default"))
        return record[1] if record else None

    async def placed(self, **choices: str) -> None:
        """Waits until the pods are placed there."""
        await self.api.until(lambda: {it: self.choice(it) for it in choices} == choices)

    async def event(self, reason: str) -> str:
        """The message of the first Event with this reason."""

        def found() -> list[str]:
            return [it["message"] for it in self.api.objects(EVENTS) if it["reason"] == reason]

        await self.api.until(found)
        return found()[0]


@pytest.fixture
async def home(home_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home with a running placer."""
    monkeypatch.setattr(placer_module, "COLLECT_SECONDS", 0.01)
    monkeypatch.setattr(failback, "LOOK_SECONDS", 0.02)
    world = Home(home_api)
    async with KubeClient(client_config_for(home_api, "home")) as client:
        placer = Placer(client, now=lambda: world.now, identity="placer")

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(placer.watch())
                group.create_task(placer.work())

        task = asyncio.create_task(run())
        await placer.synced()
        yield world
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_tiers_are_filled_in_order(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    home.remote("c", 2000)
    home.remote("e", 1000, cls="expensive")
    for name, choice in {"a": HOME, "b": "c", "d": "c", "e": "e"}.items():
        home.pod(name)
        await home.placed(**{name: choice})


async def test_burst_never_gets_more_room_than_there_is(home: Home) -> None:
    home.policy(tiers=TIERS[1:])
    home.remote("c", 2000, 1500)
    home.remote("e", 1000, cls="expensive")
    for number in range(8):
        home.pod(f"p{number}")
    await home.api.until(
        lambda: sorted(filter(None, (home.choice(f"p{it}") for it in range(8)))) == [*"ccce"]
    )
    assert "no node of the remote fits" in await home.event("WaitingForPlacement")


async def test_pod_that_fits_no_single_node_waits_for_room(home: Home) -> None:
    home.policy()
    home.remote("c", 2000, 2000, 2000)
    home.pod("big", "3")
    await home.event("WaitingForPlacement")
    assert home.choice("big") is None
    home.room("c", 2000, 4000)
    await home.placed(big="c")


async def test_unplaceable_pods_do_not_delay_a_small_one(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    for number in range(50):
        home.pod(f"big{number}", "64")
    home.pod("small")
    await home.placed(small="c")


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


async def test_waiting_pods_cost_no_requests(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    home.pod("big", "64")
    await home.event("WaitingForPlacement")
    home.api.clear_log()
    home.room("c", 1000)
    home.pod("small", "1")
    await home.placed(small="c")
    assert not [it for it in home.api.writes() if "/pods/big" in it.path]


async def test_refused_pod_goes_to_the_next_remote(home: Home) -> None:
    home.policy()
    home.remote("c", 4000)
    home.remote("e", 4000, cls="expensive")
    home.pod("a", owner="job")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    refused = {"phase": "Failed", "reason": "RemoteUnschedulable", "message": "no GPU"}
    home.api.update(PODS, "a", {"status": refused}, "default")
    home.pod("b", owner="job")
    await home.placed(b="e")
    home.pod("other", owner="other")
    await home.placed(other="c")


async def test_ended_pod_gives_its_room_back(home: Home) -> None:
    home.policy()
    home.node("worker", "1")
    home.pod("a")
    await home.placed(a=HOME)
    home.api.bind("a", "worker", "default")
    home.pod("b")
    await home.event("WaitingForPlacement")
    home.api.update(PODS, "a", {"status": {"phase": "Succeeded"}}, "default")
    await home.placed(b=HOME)


async def test_max_wait_hands_the_pod_to_the_scheduler(home: Home) -> None:
    home.policy(maxWait="1m")
    home.remote("c", 1000)
    home.pod("big", "64")
    await home.event("WaitingForPlacement")
    home.now = format_time(parse_time(home.now) + timedelta(minutes=2))
    home.room("c", 1500)
    assert "maxWait" in await home.event("PlacementTimedOut")
    await home.api.until(lambda: not placed_pod.has_gate(home.api.get(PODS, "big", "default")))


async def test_pod_without_policy_is_released(home: Home) -> None:
    home.pod("a")
    await home.api.until(lambda: not placed_pod.has_gate(home.api.get(PODS, "a", "default")))


async def test_invalid_policy_and_room_are_ignored(home: Home) -> None:
    home.policy()
    home.api.put(PLACEMENT_POLICIES.manifest({"name": "bad"}, spec={"priority": 9}))
    home.remote("c", 4000)
    home.remote("x", 4000)
    room = home.api.get(CONFIG_MAPS, "room-x", published_room.NAMESPACE)
    home.api.put({**room, "data": {"room": "[{}]"}})
    home.pod("a")
    await home.placed(a="c")


async def test_room_that_accounts_for_a_pod_is_not_reduced_twice(home: Home) -> None:
    home.policy()
    home.remote("c", 2000)
    home.pod("a")
    await home.placed(a="c")
    home.api.bind("a", "c", "default")
    version = int(home.api.get(PODS, "a", "default")["metadata"]["resourceVersion"])
    home.pod("b", "2")
    await home.event("WaitingForPlacement")
    home.room("c", 2000, version=version)
    await home.placed(b="c")
