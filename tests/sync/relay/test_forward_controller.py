"""Home's Services lead to the bridge for pods that no network leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sync.cache.store import Key
from sync.kube.resources import ENDPOINT_SLICES, PODS, SERVICES, Object
from sync.relay import endpoint_slices
from sync.relay import forward_controller as forward_module
from sync.relay.forward_controller import OnLimited, PortUnavailableError
from tests.fakeapi import Fault
from tests.sync.world import ADDRESS, IDENTITY, World
from translators.relay import forward_plan
from translators.relay.forward_plan import EndpointPort, ForwardPlan

WEB = Key("default", "web")


class FakeListeners:
    """Fakes the listeners: allocates ports and records the plans."""

    def __init__(self) -> None:
        self.plans: dict[Key, ForwardPlan] = {}
        self.next = 4000
        self.full = False
        self.running = False
        self.limited: OnLimited = lambda _, __: None
        self._given: dict[tuple[Key, EndpointPort], int] = {}
        self.pod_listeners = None

    async def serve(
        self, key: Key, plan: ForwardPlan, previous_ports: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        if self.full and plan.endpoint_ports:
            raise PortUnavailableError("there is none left")
        self.plans[key] = plan
        for place in plan.endpoint_ports:
            if (key, place) not in self._given:
                self._given[key, place] = previous_ports.get(place) or self.next
                self.next += 1
        return {place: self._given[key, place] for place in plan.endpoint_ports}

    async def run(self, on_limited: OnLimited) -> None:
        self.limited = on_limited
        self.running = True
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.running = False

    def pods(self, key: Key = WEB) -> list[str]:
        """The names of the pods that connections of the Service go to."""
        plan = self.plans.get(key, forward_plan.NO_FORWARDING)
        return sorted({it.name for pods in plan.backends.values() for it in pods})


@pytest.fixture
def listeners(world: World, monkeypatch: pytest.MonkeyPatch) -> FakeListeners:
    """The world's bridge is a relay."""
    monkeypatch.setattr(forward_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 0.05)
    found = FakeListeners()
    world.listeners = found
    world.policy = replace(world.policy, network="relay", relay_address=ADDRESS)
    return found


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": "web"}, "ports": [{"port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


async def with_pods(world: World, *names: str) -> None:
    """A Service, and an engine with pods behind it that run."""
    world.home.put(service())
    await world.start()
    for name in names:
        world.pod(name, labels={"app": "web"})
    await world.settle()
    for name in names:
        world.runs(name)
    await world.settle()
    world.clear_logs()


def slices(world: World) -> list[Object]:
    return world.home.objects(ENDPOINT_SLICES)


def published(world: World) -> list[int]:
    """The ports that home's slices tell, all at the bridge's address."""
    found = slices(world)
    assert all(it["endpoints"][0]["addresses"] == [ADDRESS] for it in found)
    return sorted(port["port"] for it in found for port in it["ports"])


async def test_service_leads_to_the_bridge_while_pods_are_ready(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "a", "b")
    assert listeners.pods() == ["a", "b"]
    assert published(world) == [4000, 4001]
    assert "podIP" not in world.status("a"), "home must not publish an unreachable address"

    not_ready = [{"type": "Ready", "status": "False"}]
    world.runs("a", conditions=not_ready)
    await world.settle()
    assert listeners.pods() == ["b"]
    assert published(world) == [4000]

    world.home.delete(PODS, "b", "default")
    await world.settle()
    assert listeners.pods() == []
    assert slices(world) == []


async def test_irrelevant_change_causes_no_write(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "a")
    assert published(world) == [4000]
    world.runs("a", message="still here")
    await world.settle()
    assert [it for it in world.writes() if "endpointslices" in it] == []


async def test_service_creation_update_and_deletion_are_followed(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "a")
    world.home.delete(SERVICES, "web", "default")
    await world.settle()
    assert slices(world) == []
    world.home.put(service())
    await world.settle()
    assert len(published(world)) == 1
    world.home.update(SERVICES, "web", {"spec": {"selector": {"app": "other"}}}, "default")
    await world.settle()
    assert slices(world) == []


async def test_modified_slices_are_restored(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "a")
    (slice_,) = slices(world)
    name = slice_["metadata"]["name"]
    modified = {"addresses": ["203.0.113.9"], "conditions": {"ready": True}}
    world.home.update(ENDPOINT_SLICES, name, {"endpoints": [modified]}, "default")
    await world.settle()
    assert published(world) == [4000]
    world.home.delete(ENDPOINT_SLICES, name, "default")
    await world.settle()
    assert published(world) == [4000]


async def test_unmanaged_slices_are_left_alone(world: World, listeners: FakeListeners) -> None:
    theirs = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "web-xyz",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    }
    world.home.put(theirs)
    await with_pods(world, "a")
    world.home.delete(SERVICES, "web", "default")
    await world.settle()
    assert [it["metadata"]["name"] for it in slices(world)] == ["web-xyz"]


async def test_ports_are_restored_after_a_crash(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "a", "b")
    left = slices(world)
    assert len(left) == 2
    world.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await world.stop()
    world.home.heal()
    assert len(slices(world)) == 2, "it did not take them back"
    world.listeners = again = FakeListeners()
    again.next = 7000
    world.clear_logs()
    await world.start()
    assert published(world) == [4000, 4001]
    assert [it for it in world.writes() if "endpointslices" in it] == []


async def test_stopping_bridge_withdraws_its_slices(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "a")
    assert listeners.running
    await world.stop()
    assert slices(world) == []
    assert not listeners.running


async def test_stopping_bridge_withdraws_a_slice_being_created(
    world: World, listeners: FakeListeners
) -> None:
    """Of what it wrote last neither an answer nor an event has come."""
    await with_pods(world, "a")
    world.home.fail(Fault(path="*/endpointslices", watch=True, times=None, code=503))
    world.home.break_watches(ENDPOINT_SLICES)
    written = forward_plan.forward_slices(
        world.home.put(service("other")), {EndpointPort("", 0): 4001}, IDENTITY, address=ADDRESS
    )
    world.home.put(written[0])
    await world.stop()
    assert slices(world) == []


async def test_slices_without_pods_are_deleted(world: World, listeners: FakeListeners) -> None:
    """An earlier bridge was killed, and its pods went meanwhile."""
    old = forward_plan.forward_slices(
        world.home.put(service()), {EndpointPort("", 0): 4000}, IDENTITY, address=ADDRESS
    )
    world.home.put(old[0])
    await world.start()
    assert slices(world) == []


async def test_unreachable_remote_removes_its_pods_from_services(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "a")
    assert len(slices(world)) == 1
    world.remote.fail(Fault("GET", "*/pods", times=None, code=503))
    world.remote.break_watches(PODS)
    await world.home.until(lambda: not slices(world))
    assert listeners.pods() == []
    world.remote.heal()
    await world.home.until(lambda: slices(world))
    assert listeners.pods() == ["a"]


async def test_short_watch_interruption_removes_nothing(
    world: World, listeners: FakeListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 1.0)
    await with_pods(world, "a")
    world.remote.fail(Fault("GET", "*/pods", code=503))
    world.remote.break_watches(PODS)
    await world.settle()
    assert published(world) == [4000]
    assert [it for it in world.writes() if "endpointslices" in it] == []


async def test_unsupported_service_is_reported_once(world: World, listeners: FakeListeners) -> None:
    world.home.put(service("headless", clusterIP="None"))
    await with_pods(world, "a")
    (event,) = await world.events_with_reason("RelayLeftOut")
    assert event["involvedObject"]["name"] == "headless"
    world.runs("a", conditions=[{"type": "Ready", "status": "False"}])
    world.runs("a")
    await world.settle()
    (event,) = await world.events_with_reason("RelayLeftOut")
    assert event["count"] == 1


async def test_unavailable_port_is_reported_and_retried(
    world: World, listeners: FakeListeners
) -> None:
    listeners.full = True
    world.home.put(service())
    await world.start()
    world.pod("a", labels={"app": "web"})
    await world.settle(waiting=True)
    world.runs("a")
    await world.settle(waiting=True)
    (event,) = await world.events_with_reason("RelayNoPort")
    assert event["involvedObject"]["name"] == "web"
    listeners.full = False
    world.engine.retry_now()
    await world.settle()
    assert len(published(world)) == 1


async def test_rejected_connections_are_reported_once_per_interval(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "a")
    for _ in range(1000):
        listeners.limited(WEB, "it has 1000 open")
    listeners.limited(Key("default", "of nobody"), "it has 1000 open")
    await world.settle()
    (event,) = await world.events_with_reason("RelayLimited")
    assert event["involvedObject"]["name"] == "web"
    assert event["message"].endswith("are rejected: it has 1000 open")
    assert event["count"] == 1
