"""Pods behind headless Services have addresses at home, and names by them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sync.cache.store import Key
from sync.kube.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.relay import endpoint_slices
from sync.relay import forward_controller as forward_module
from sync.relay.forward_controller import OnLimited, PortUnavailableError
from tests.fakeapi import Fault
from tests.sync.relay.test_forward_controller import service, slices
from tests.sync.world import ADDRESS, THERE, World
from translators.relay.forward_plan import Backend, EndpointPort, ForwardPlan
from translators.relay.headless_forward_plan import ListenAddress

WEB = Key("default", "web")
CIDR = "10.77.0.0/29"
ROOM = 6


class FakeListeners:
    """Fakes the listeners: records what they listen on, and checks that no address is
    two pods'."""

    def __init__(self) -> None:
        self.opened: dict[Key, Mapping[ListenAddress, Backend]] = {}
        self.refuses = ""

    @property
    def pod_listeners(self) -> FakeListeners:
        return self

    async def listen(self, key: Key, addresses: Mapping[ListenAddress, Backend]) -> None:
        if self.refuses and addresses:
            raise PortUnavailableError(self.refuses)
        await asyncio.sleep(0)
        self.opened[key] = dict(addresses)
        whose: dict[str, str] = {}
        for known in self.opened.values():
            for at, backend in known.items():
                assert whose.setdefault(at.address, backend.name) == backend.name

    async def serve(
        self, key: Key, plan: ForwardPlan, previous_ports: Mapping[EndpointPort, int]
    ) -> dict[EndpointPort, int]:
        return {place: 4000 + place.ordinal for place in plan.endpoint_ports}

    async def run(self, on_limited: OnLimited) -> None:
        await asyncio.get_running_loop().create_future()

    def pods(self, key: Key = WEB) -> dict[str, str]:
        """What is listened at for each pod."""
        return {it.name: at.address for at, it in self.opened.get(key, {}).items()}


@pytest.fixture
def listeners(world: World, monkeypatch: pytest.MonkeyPatch) -> FakeListeners:
    """The world's bridge has a range."""
    monkeypatch.setattr(forward_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 0.05)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    world.listeners = found = FakeListeners()
    world.policy = replace(world.policy, network="relay", relay_address=ADDRESS, relay_cidr=CIDR)
    return found


async def with_pods(world: World, *names: str) -> None:
    """A headless Service, and pods behind it that run."""
    world.home.put(service(clusterIP="None"))
    await world.start()
    await more_pods(world, *names)
    world.clear_logs()


async def more_pods(world: World, *names: str) -> None:
    for name in names:
        world.pod(name, labels={"app": "web"}, hostname=name, subdomain="web")
    await world.settle()
    for name in names:
        world.runs(name)
    await world.settle()


def published(world: World) -> dict[str, str]:
    """The address of each pod that home's slices tell."""
    ends = [end for it in slices(world) for end in it["endpoints"] if "targetRef" in end]
    found = {end["targetRef"]["name"]: end["addresses"][0] for end in ends}
    assert len(found) == len(ends) == len(set(found.values()))
    return found


def ready(world: World) -> set[str]:
    """The pods with a ready endpoint."""
    ends = [end for it in slices(world) for end in it["endpoints"]]
    return {it["targetRef"]["name"] for it in ends if "targetRef" in it and _is_ready(it)}


def _is_ready(end: Object) -> bool:
    return bool(end["conditions"]["ready"])


async def test_each_pod_has_an_address_and_its_hostname(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "web-0", "web-1")
    found = published(world)
    assert set(found) == {"web-0", "web-1"}
    assert listeners.pods() == found
    assert {it["endpoints"][0]["hostname"] for it in slices(world)} == {"web-0", "web-1"}
    assert "podIP" not in world.status("web-0"), "home's own controller has nothing to publish"
    assert "RelayLeftOut" not in {it["reason"] for it in world.home.objects(EVENTS)}


async def test_unready_pod_keeps_its_address_and_is_not_ready(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "web-0")
    before = published(world)
    world.runs("web-0", conditions=[{"type": "Ready", "status": "False"}])
    await world.settle()
    assert published(world) == listeners.pods() == before
    (endpoint,) = slices(world)[0]["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": False, "terminating": False}


async def test_deleted_pod_releases_its_address(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, *(f"web-{n}" for n in range(ROOM + 1)))
    lacking = {f"web-{n}" for n in range(ROOM + 1)} - set(published(world))
    assert len(lacking) == 1
    (event,) = await world.events_with_reason("RelayLeftOut")
    assert event["involvedObject"]["name"] == "web"
    assert f"all {ROOM} of --relay-cidr {CIDR} are taken" in event["message"]

    before = published(world)
    gone = min(before)
    world.home.delete(PODS, gone, "default")
    await world.settle()
    assert published(world) == before, "a terminating pod may still receive requests"
    ending = [it["endpoints"][0]["conditions"] for it in slices(world)]
    assert [it["ready"] for it in ending if it["terminating"]] == [False]
    world.remote.remove(PODS, gone, THERE)
    await world.settle()
    after = published(world)
    assert after.keys() == before.keys() - {gone} | lacking, "who lacked one has it now"
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    assert listeners.pods() == after


async def test_pod_behind_two_services_has_one_address(
    world: World, listeners: FakeListeners
) -> None:
    world.home.put(service("admin", clusterIP="None", ports=[{"port": 90}]))
    await with_pods(world, "web-0")
    assert listeners.pods() == listeners.pods(Key("default", "admin"))
    assert len(slices(world)) == 2
    world.home.delete(SERVICES, "admin", "default")
    await world.settle()
    assert listeners.pods(Key("default", "admin")) == {}
    assert listeners.pods() == published(world)


async def test_addresses_are_restored_after_a_crash(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "web-0", "web-1")
    # Others than would be chosen: it is the slices that count.
    first, second = sorted(slices(world), key=lambda it: str(it["endpoints"][0]["hostname"]))
    swapped = {"web-0": "10.77.0.6", "web-1": published(world)["web-0"]}
    world.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await world.stop()
    world.home.heal()
    for slice_ in (first, second):
        end = slice_["endpoints"][0]
        change = {"endpoints": [{**end, "addresses": [swapped[end["hostname"]]]}]}
        world.home.update(ENDPOINT_SLICES, slice_["metadata"]["name"], change, "default")
    world.clear_logs()
    world.listeners = again = FakeListeners()
    await world.start()
    assert published(world) == again.pods() == swapped
    assert [it for it in world.writes() if "endpointslices" in it] == []


async def test_stopping_bridge_marks_pods_as_not_ready(
    world: World, listeners: FakeListeners
) -> None:
    world.home.put(service("plain"))
    # As many as there is room for, in this order: who comes where depends on it.
    await with_pods(world)
    for number in reversed(range(ROOM)):
        await more_pods(world, f"web-{number}")
    before = published(world)
    await world.stop()
    assert len(slices(world)) == ROOM, "those of the other Service have gone"
    assert published(world) == before
    assert ready(world) == set()

    world.listeners = again = FakeListeners()
    await world.start()
    assert published(world) == again.pods() == before
    assert ready(world) == set(before)


async def test_slices_are_deleted_without_the_range(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "web-0")
    await world.stop()
    world.policy = replace(world.policy, relay_cidr="")
    await world.start()
    assert slices(world) == []


async def test_modified_slices_are_restored(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "web-0", "web-1")
    before = published(world)
    one, other = slices(world)
    world.home.delete(ENDPOINT_SLICES, one["metadata"]["name"], "default")
    modified = {"endpoints": [{"addresses": ["203.0.113.9"]}]}
    world.home.update(ENDPOINT_SLICES, other["metadata"]["name"], modified, "default")
    await world.settle()
    assert published(world) == listeners.pods() == before


async def test_unreachable_remote_makes_its_pods_not_ready(
    world: World, listeners: FakeListeners
) -> None:
    await with_pods(world, "web-0")
    before = published(world)
    world.remote.fail(Fault("GET", "*/pods", times=None, code=503))
    world.remote.break_watches(PODS)
    await world.home.until(lambda: not ready(world))
    assert published(world) == before, "they keep their addresses"
    assert listeners.pods() == {}
    world.remote.heal()
    await world.home.until(lambda: ready(world))
    assert published(world) == listeners.pods() == before


async def test_nothing_is_published_before_the_bridge_listens(
    world: World, listeners: FakeListeners
) -> None:
    listeners.refuses = "another bridge on this node holds it"
    world.home.put(service(clusterIP="None"))
    await world.start()
    world.pod("web-0", labels={"app": "web"})
    await world.settle(waiting=True)
    world.runs("web-0")
    await world.settle(waiting=True)
    assert slices(world) == []
    (event,) = await world.events_with_reason("RelayNoPort")
    assert event["message"] == listeners.refuses
    listeners.refuses = ""
    world.engine.retry_now()
    await world.settle()
    assert listeners.pods() == published(world)


async def test_other_services_are_unaffected_by_the_range(
    world: World, listeners: FakeListeners
) -> None:
    world.home.put(service("plain"))
    await with_pods(world, "web-0")
    plain = [
        it
        for it in slices(world)
        if it["metadata"]["labels"]["kubernetes.io/service-name"] == "plain"
    ]
    assert [it["endpoints"][0]["addresses"] for it in plain] == [[ADDRESS]]
    assert listeners.pods(Key("default", "plain")) == {}


def _port(known: Object) -> int:
    return int(known["ports"][0]["port"])


async def test_irrelevant_change_causes_no_write(world: World, listeners: FakeListeners) -> None:
    await with_pods(world, "web-0")
    assert [_port(it) for it in slices(world)] == [80]
    world.runs("web-0", message="still here")
    await world.settle()
    assert [it for it in world.writes() if "endpointslices" in it] == []
