"""Home's Services lead to the bridge for pods that no network leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sync.base.background_task import background_task
from sync.cache.store import Key
from sync.kube.api_resources import ENDPOINT_SLICES, PODS, SERVICES, Object
from sync.relay import endpoint_slices
from sync.relay import forward_controller as forward_module
from sync.relay.forward_controller import OnLimited, PortUnavailableError
from tests.fakeapi import Fault
from tests.sync.engine_harness import ADDRESS, IDENTITY, EngineHarness
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
def listeners(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> FakeListeners:
    """Enables relay networking, with fake listeners."""
    monkeypatch.setattr(forward_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 0.05)
    found = FakeListeners()
    harness.listeners = found
    harness.policy = replace(harness.policy, network="relay", relay_address=ADDRESS)
    return found


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": "web"}, "ports": [{"port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


async def with_pods(harness: EngineHarness, *names: str) -> None:
    """A Service, and an engine with pods behind it that run."""
    harness.home.put(service())
    await harness.start()
    for name in names:
        harness.pod(name, labels={"app": "web"})
    await harness.settle()
    for name in names:
        harness.report_running(name)
    await harness.settle()
    harness.clear_logs()


def slices(harness: EngineHarness) -> list[Object]:
    return harness.home.objects(ENDPOINT_SLICES)


def published(harness: EngineHarness) -> list[int]:
    """The ports that home's slices tell, all at the bridge's address."""
    found = slices(harness)
    assert all(it["endpoints"][0]["addresses"] == [ADDRESS] for it in found)
    return sorted(port["port"] for it in found for port in it["ports"])


async def test_service_leads_to_the_bridge_while_pods_are_ready(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a", "b")
    assert listeners.pods() == ["a", "b"]
    assert published(harness) == [4000, 4001]
    assert "podIP" not in harness.status("a"), "home must not publish an unreachable address"

    not_ready = [{"type": "Ready", "status": "False"}]
    harness.report_running("a", conditions=not_ready)
    await harness.settle()
    assert listeners.pods() == ["b"]
    assert published(harness) == [4000]

    harness.home.delete(PODS, "b", "default")
    await harness.settle()
    assert listeners.pods() == []
    assert slices(harness) == []


async def test_irrelevant_change_causes_no_write(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    assert published(harness) == [4000]
    harness.report_running("a", message="still here")
    await harness.settle()
    assert [it for it in harness.writes() if "endpointslices" in it] == []


async def test_service_creation_update_and_deletion_are_followed(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    harness.home.delete(SERVICES, "web", "default")
    await harness.settle()
    assert slices(harness) == []
    harness.home.put(service())
    await harness.settle()
    assert len(published(harness)) == 1
    harness.home.update(SERVICES, "web", {"spec": {"selector": {"app": "other"}}}, "default")
    await harness.settle()
    assert slices(harness) == []


async def test_modified_slices_are_restored(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    (slice_,) = slices(harness)
    name = slice_["metadata"]["name"]
    modified = {"addresses": ["203.0.113.9"], "conditions": {"ready": True}}
    harness.home.update(ENDPOINT_SLICES, name, {"endpoints": [modified]}, "default")
    await harness.settle()
    assert published(harness) == [4000]
    harness.home.delete(ENDPOINT_SLICES, name, "default")
    await harness.settle()
    assert published(harness) == [4000]


async def test_unmanaged_slices_are_left_alone(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
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
    harness.home.put(theirs)
    await with_pods(harness, "a")
    harness.home.delete(SERVICES, "web", "default")
    await harness.settle()
    assert [it["metadata"]["name"] for it in slices(harness)] == ["web-xyz"]


async def test_ports_are_restored_after_a_crash(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a", "b")
    left = slices(harness)
    assert len(left) == 2
    harness.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await harness.stop()
    harness.home.heal()
    assert len(slices(harness)) == 2, "it did not take them back"
    harness.listeners = again = FakeListeners()
    again.next = 7000
    harness.clear_logs()
    await harness.start()
    assert published(harness) == [4000, 4001]
    assert [it for it in harness.writes() if "endpointslices" in it] == []


@pytest.mark.parametrize("finalized", [False, True])
async def test_port_that_another_service_claims_as_well_is_not_restored(
    harness: EngineHarness, listeners: FakeListeners, *, finalized: bool
) -> None:
    """Clients may still connect to it for the other one. A slice that a user keeps by a
    finalizer does not count."""
    await with_pods(harness, "a")
    (own,) = slices(harness)
    harness.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await harness.stop()
    harness.home.heal()
    meta = {
        "name": forward_plan.forward_slice_name("evil", 0, IDENTITY),
        "namespace": "a",
        "labels": {**own["metadata"]["labels"], "kubernetes.io/service-name": "evil"},
        "finalizers": ["example.com/never"],
    }
    forged = harness.home.put({**own, "metadata": meta})
    if finalized:
        harness.home.delete(ENDPOINT_SLICES, forged["metadata"]["name"], "a")
    harness.listeners = again = FakeListeners()
    again.next = 5000
    await harness.start()
    (found,) = [each for each in slices(harness) if each["metadata"]["namespace"] == "default"]
    assert found["ports"][0]["port"] == (4000 if finalized else 5000)


async def test_stopping_bridge_withdraws_its_slices(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    assert listeners.running
    await harness.stop()
    assert slices(harness) == []
    assert not listeners.running


async def test_stopping_bridge_withdraws_a_slice_being_created(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    """Of what it wrote last neither an answer nor an event has come."""
    await with_pods(harness, "a")
    harness.home.fail(Fault(path="*/endpointslices", watch=True, times=None, code=503))
    harness.home.break_watches(ENDPOINT_SLICES)
    written = forward_plan.forward_slices(
        harness.home.put(service("other")), {EndpointPort("", 0): 4001}, IDENTITY, address=ADDRESS
    )
    harness.home.put(written[0])
    await harness.stop()
    assert slices(harness) == []


async def test_slices_without_pods_are_deleted(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    """An earlier bridge was killed, and its pods went meanwhile."""
    old = forward_plan.forward_slices(
        harness.home.put(service()), {EndpointPort("", 0): 4000}, IDENTITY, address=ADDRESS
    )
    harness.home.put(old[0])
    await harness.start()
    assert slices(harness) == []


async def test_unreachable_remote_removes_its_pods_from_services(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    assert len(slices(harness)) == 1
    harness.remote.fail(Fault("GET", "*/pods", times=None, code=503))
    harness.remote.break_watches(PODS)
    await harness.home.until(lambda: not slices(harness))
    assert listeners.pods() == []
    harness.remote.heal()
    await harness.home.until(lambda: slices(harness))
    assert listeners.pods() == ["a"]


async def test_short_watch_interruption_removes_nothing(
    harness: EngineHarness, listeners: FakeListeners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 1.0)
    await with_pods(harness, "a")
    harness.remote.fail(Fault("GET", "*/pods", code=503))
    harness.remote.break_watches(PODS)
    await harness.settle()
    assert published(harness) == [4000]
    assert [it for it in harness.writes() if "endpointslices" in it] == []


async def test_unsupported_service_is_reported_once(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    harness.home.put(service("headless", clusterIP="None"))
    await with_pods(harness, "a")
    (event,) = await harness.events_with_reason("RelayLeftOut")
    assert event["involvedObject"]["name"] == "headless"
    harness.report_running("a", conditions=[{"type": "Ready", "status": "False"}])
    harness.report_running("a")
    await harness.settle()
    (event,) = await harness.events_with_reason("RelayLeftOut")
    assert event["count"] == 1


async def test_unavailable_port_is_reported_and_retried(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    listeners.full = True
    harness.home.put(service())
    await harness.start()
    harness.pod("a", labels={"app": "web"})
    await harness.settle(waiting=True)
    harness.report_running("a")
    await harness.settle(waiting=True)
    (event,) = await harness.events_with_reason("RelayNoPort")
    assert event["involvedObject"]["name"] == "web"
    listeners.full = False
    harness.engine.retry_now()
    await harness.settle()
    assert len(published(harness)) == 1


async def test_rejected_connections_are_reported_once_per_interval(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "a")
    for _ in range(1000):
        listeners.limited(WEB, "it has 1000 open")
    listeners.limited(Key("default", "without-listener"), "it has 1000 open")
    await harness.settle()
    (event,) = await harness.events_with_reason("RelayLimited")
    assert event["involvedObject"]["name"] == "web"
    assert event["message"].endswith("are rejected: it has 1000 open")
    assert event["count"] == 1


@pytest.mark.parametrize("change", ["endpoints", "deletion"])
async def test_slice_that_another_client_sets_back_is_written_at_growing_intervals(
    harness: EngineHarness, listeners: FakeListeners, change: str
) -> None:
    await with_pods(harness, "a")
    (made,) = slices(harness)
    name = made["metadata"]["name"]

    async def set_back() -> None:
        while True:
            await asyncio.sleep(0.1)
            found = harness.home.find(ENDPOINT_SLICES, name, "default")
            if found is not None and found["endpoints"]:
                if change == "deletion":
                    harness.home.remove(ENDPOINT_SLICES, name, "default")
                else:
                    harness.home.update(ENDPOINT_SLICES, name, {"endpoints": []}, "default")

    async with background_task(set_back(), name="set-back"):
        await asyncio.sleep(60)
    assert 3 <= len(harness.home.writes("*/endpointslices*")) <= 10
    await asyncio.sleep(60)
    assert published(harness) == [4000]
