"""Pods behind headless Services have addresses at home, and names by them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sync.cache.store import Key
from sync.kube.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.relay import endpoint_slices
from sync.relay import forward as relay_module
from sync.relay.forward import OnLimited, PortUnavailableError
from tests.fakeapi import Fault
from tests.sync.relay.test_forward import service, slices
from tests.sync.world import ADDRESS, THERE, World
from translators.relay.forward import Backend, EndpointPort, ForwardPlan
from translators.relay.headless import ListenAddress

WEB = Key("default", "web")
CIDR = "10.77.0.0/29"
ROOM = 6


class Doors:
    """Stands in for the listeners: notes what it was asked to open, and checks that no address is
    two pods'."""

    def __init__(self) -> None:
        self.opened: dict[Key, Mapping[ListenAddress, Backend]] = {}
        self.refuses = ""

    @property
    def pod_listeners(self) -> Doors:
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
def doors(world: World, monkeypatch: pytest.MonkeyPatch) -> Doors:
    """The world's bridge has a range."""
    monkeypatch.setattr(relay_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(relay_module, "REMOTE_GRACE", 0.05)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    world.listeners = found = Doors()
    world.policy = replace(world.policy, network="relay", relay_address=ADDRESS, relay_cidr=CIDR)
    return found


async def with_pods(world: World, *names: str) -> None:
    """A headless Service, and pods behind it that run."""
    world.home.put(service(clusterIP="None"))
    await world.start()
    await more_pods(world, *names)
    world.forget()


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
    """The pods that are told to be."""
    ends = [end for it in slices(world) for end in it["endpoints"]]
    return {it["targetRef"]["name"] for it in ends if "targetRef" in it and _is_ready(it)}


def _is_ready(end: Object) -> bool:
    return bool(end["conditions"]["ready"])


async def test_each_pod_has_an_address_and_its_name(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0", "web-1")
    found = published(world)
    assert set(found) == {"web-0", "web-1"}
    assert doors.pods() == found
    assert {it["endpoints"][0]["hostname"] for it in slices(world)} == {"web-0", "web-1"}
    assert "podIP" not in world.status("web-0"), "home's own controller has nothing to publish"
    assert "RelayLeftOut" not in {it["reason"] for it in world.home.objects(EVENTS)}


async def test_a_pod_that_is_not_ready_stays_and_says_so(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0")
    before = published(world)
    world.runs("web-0", conditions=[{"type": "Ready", "status": "False"}])
    await world.settle()
    assert published(world) == doors.pods() == before
    (told,) = slices(world)[0]["endpoints"]
    assert told["conditions"] == {"ready": False, "serving": False, "terminating": False}


async def test_a_pod_that_is_gone_gives_its_address_back(world: World, doors: Doors) -> None:
    await with_pods(world, *(f"web-{n}" for n in range(ROOM + 1)))
    lacking = {f"web-{n}" for n in range(ROOM + 1)} - set(published(world))
    assert len(lacking) == 1
    (event,) = await world.told("RelayLeftOut")
    assert event["involvedObject"]["name"] == "web"
    assert f"all {ROOM} of --relay-cidr {CIDR} are taken" in event["message"]

    before = published(world)
    gone = min(before)
    world.home.delete(PODS, gone, "default")
    await world.settle()
    assert published(world) == before, "it ends, and may still be asked"
    ending = [it["endpoints"][0]["conditions"] for it in slices(world)]
    assert [it["ready"] for it in ending if it["terminating"]] == [False]
    world.remote.remove(PODS, gone, THERE)
    await world.settle()
    after = published(world)
    assert after.keys() == before.keys() - {gone} | lacking, "who lacked one has it now"
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    assert doors.pods() == after


async def test_a_pod_behind_two_services_has_one_address(world: World, doors: Doors) -> None:
    world.home.put(service("admin", clusterIP="None", ports=[{"port": 90}]))
    await with_pods(world, "web-0")
    assert doors.pods() == doors.pods(Key("default", "admin"))
    assert len(slices(world)) == 2
    world.home.delete(SERVICES, "admin", "default")
    await world.settle()
    assert doors.pods(Key("default", "admin")) == {}
    assert doors.pods() == published(world)


async def test_what_is_there_is_taken_up_after_a_crash(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0", "web-1")
    # Others than would be chosen: it is the slices that count.
    first, second = sorted(slices(world), key=lambda it: str(it["endpoints"][0]["hostname"]))
    told = {"web-0": "10.77.0.6", "web-1": published(world)["web-0"]}
    world.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await world.stop()
    world.home.heal()
    for slice_ in (first, second):
        end = slice_["endpoints"][0]
        change = {"endpoints": [{**end, "addresses": [told[end["hostname"]]]}]}
        world.home.update(ENDPOINT_SLICES, slice_["metadata"]["name"], change, "default")
    world.forget()
    world.listeners = again = Doors()
    await world.start()
    assert published(world) == again.pods() == told
    assert [it for it in world.writes() if "endpointslices" in it] == []


async def test_a_bridge_that_stops_says_that_nobody_is_ready(world: World, doors: Doors) -> None:
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

    world.listeners = again = Doors()
    await world.start()
    assert published(world) == again.pods() == before
    assert ready(world) == set(before)


async def test_without_the_range_what_it_has_left_goes(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0")
    await world.stop()
    world.policy = replace(world.policy, relay_cidr="")
    await world.start()
    assert slices(world) == []


async def test_slices_that_somebody_changes_are_put_right(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0", "web-1")
    before = published(world)
    one, other = slices(world)
    world.home.delete(ENDPOINT_SLICES, one["metadata"]["name"], "default")
    foreign = {"endpoints": [{"addresses": ["203.0.113.9"]}]}
    world.home.update(ENDPOINT_SLICES, other["metadata"]["name"], foreign, "default")
    await world.settle()
    assert published(world) == doors.pods() == before


async def test_a_remote_that_is_away_takes_its_pods_out(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0")
    before = published(world)
    world.remote.fail(Fault("GET", "*/pods", times=None, code=503))
    world.remote.break_watches(PODS)
    await world.home.until(lambda: not ready(world))
    assert published(world) == before, "they keep their addresses"
    assert doors.pods() == {}
    world.remote.heal()
    await world.home.until(lambda: ready(world))
    assert published(world) == doors.pods() == before


async def test_nothing_is_published_that_is_not_listened_for(world: World, doors: Doors) -> None:
    doors.refuses = "another bridge of this machine has it"
    world.home.put(service(clusterIP="None"))
    await world.start()
    world.pod("web-0", labels={"app": "web"})
    await world.settle(waiting=True)
    world.runs("web-0")
    await world.settle(waiting=True)
    assert slices(world) == []
    (event,) = await world.told("RelayNoPort")
    assert event["message"] == doors.refuses
    doors.refuses = ""
    world.engine.retry_now()
    await world.settle()
    assert doors.pods() == published(world)


async def test_other_services_are_as_without_a_range(world: World, doors: Doors) -> None:
    world.home.put(service("plain"))
    await with_pods(world, "web-0")
    plain = [
        it
        for it in slices(world)
        if it["metadata"]["labels"]["kubernetes.io/service-name"] == "plain"
    ]
    assert [it["endpoints"][0]["addresses"] for it in plain] == [[ADDRESS]]
    assert doors.pods(Key("default", "plain")) == {}


def _port(known: Object) -> int:
    return int(known["ports"][0]["port"])


async def test_what_changes_nothing_is_not_written(world: World, doors: Doors) -> None:
    await with_pods(world, "web-0")
    assert [_port(it) for it in slices(world)] == [80]
    world.runs("web-0", message="still here")
    await world.settle()
    assert [it for it in world.writes() if "endpointslices" in it] == []
