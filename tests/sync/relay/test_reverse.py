"""Services in the remote lead to home's pods through a relay pod."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sync.kube.resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.relay import agent_pods, endpoint_slices
from sync.relay import reverse as module
from tests import objects
from tests.fakeapi import Fault
from tests.sync.world import ADDRESS, IDENTITY, THERE, World
from translators.objects import HomeNamespace
from translators.relay import reverse
from translators.relay.agent_pod import AgentState
from translators.relay.reverse import HomeTarget, ReverseRoute

HOME = HomeNamespace("default")
IMAGE = "bridge:1"


class Stations:
    """Stands in for the carriers: relay pods listen where they are told to, but for the deaf."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.ways: Mapping[int, ReverseRoute] = {}
        self.deaf: set[str] = set()
        self.silent: set[str] = set()
        self.unlike: dict[str, str] = {}
        self.running = False
        self.finished = False
        self._handlers: list[Callable[[HomeNamespace], None]] = []

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], ways: Mapping[int, ReverseRoute]
    ) -> None:
        names = [it["metadata"]["name"] for it in pods]
        changed = (names, ways.keys()) != (self.shown, self.ways.keys())
        self.shown, self.ways = names, ways
        if changed:
            self.tell()

    def tell(self) -> None:
        for handler in self._handlers:
            handler(HOME)

    def agent_state(self, pod: Object) -> AgentState:
        name = pod["metadata"]["name"]
        there = name in self.shown and name not in self.deaf | self.silent
        return AgentState(
            listening=frozenset(self.ways) if there else frozenset(),
            unresponsive=name in self.silent,
            version_warning=self.unlike.get(name, ""),
        )

    def on_change(self, handler: Callable[[HomeNamespace], None]) -> None:
        self._handlers.append(handler)

    async def run(self) -> None:
        self.running = True
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.running = False

    async def drain(self) -> None:
        self.finished = True

    def targets(self) -> list[str]:
        """Where connections go."""
        return sorted({it.address for way in self.ways.values() for it in way.targets})


class There:
    """A world with a relay image, and what its test looks at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stations = Stations()
        world.forwarder = self.stations
        world.policy = replace(
            world.policy, network="relay", relay_address=ADDRESS, relay_image=IMAGE
        )

    def forget_stations(self) -> None:
        """As in a new process; before the world is started."""
        self.world.forwarder = self.stations = Stations()

    def relays(self) -> list[Object]:
        """The relay pods, whatever becomes of them."""
        found = [it for it in self.world.remote.objects(PODS) if reverse.relay_home_namespace(it)]
        return sorted(found, key=lambda it: str(it["metadata"]["creationTimestamp"]))

    def slices(self) -> list[Object]:
        """The slices in the remote."""
        return self.world.remote.objects(ENDPOINT_SLICES)

    def published(self) -> list[str]:
        """The addresses that they tell."""
        return sorted(
            address
            for it in self.slices()
            for end in it["endpoints"]
            for address in end["addresses"]
        )

    def runs(self, pod: Object, ip: str = "10.9.0.50") -> None:
        """The remote's kubelet runs it."""
        ips = {"podIP": ip, "podIPs": [{"ip": ip}]}
        self.world.runs(pod["metadata"]["name"], THERE, **ips)

    def all_end(self) -> bool:
        """Whether each of them is to end."""
        return all(it["metadata"].get("deletionTimestamp") for it in self.relays())

    async def start(self, *, waiting: bool = False) -> None:
        """A Service with pods at home, and a pod on the node."""
        self.world.home.put(service())
        self.world.home.put(endpoints("10.1.0.1"))
        await self.world.start()
        self.world.pod("client")
        await self.world.settle(waiting=waiting)

    async def serve(self) -> Object:
        """As `start`, and the relay pod runs."""
        await self.start()
        (pod,) = self.relays()
        self.runs(pod)
        await self.world.settle()
        assert self.published() == ["10.9.0.50"]
        self.world.forget()
        return pod


#: Addresses of home's pods here, and by them the UIDs of the pods.
AT_HOME = ("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.7", "10.1.0.9")
UIDS: dict[str, str] = {}


@pytest.fixture
def there(world: World, monkeypatch: pytest.MonkeyPatch) -> There:
    monkeypatch.setattr(module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    monkeypatch.setattr(module, "CONTROL_GRACE", 0.1)
    monkeypatch.setattr(module, "LINGER", 0.1)
    monkeypatch.setattr(agent_pods, "RECREATE_SECONDS", 0.05)
    world.namespace_linger = 0.2
    for address in AT_HOME:
        home_pod(world, address)
    return There(world)


def home_pod(world: World, address: str, *, status: str | None = None) -> None:
    """A pod on a node of home's, called as its address, which its kubelet wrote into its status."""
    pod = objects.pod(address, node="worker-at-home")
    ip = status if status is not None else address
    made = world.home.put({**pod, "status": {"podIP": ip, "podIPs": [{"ip": ip}]}})
    UIDS[address] = made["metadata"]["uid"]


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": name}, "ports": [{"port": 80, "protocol": "TCP"}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


def endpoints(*addresses: str, name: str = "web", node: str = "worker-at-home") -> Object:
    """What home's controller makes of the Service's pods."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-abc",
            "namespace": "default",
            "labels": {
                "kubernetes.io/service-name": name,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [it],
                "nodeName": node,
                "targetRef": {"kind": "Pod", "name": it, "uid": UIDS.get(it, "")},
            }
            for it in addresses
        ],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }


async def test_an_address_that_no_pod_has_is_not_reached(there: There) -> None:
    """A tenant that may write EndpointSlices gives one the label of home's controller."""
    await there.serve()
    home = there.world.home
    home_pod(there.world, "192.0.2.1", status="10.1.0.8")  # its status has another address
    forged = endpoints("10.1.0.2", "192.0.2.1", "192.0.2.2")
    home.update(ENDPOINT_SLICES, "web-abc", forged, "default")
    await there.world.settle()
    assert there.stations.targets() == ["10.1.0.2"]
    # A pod of another namespace, or a predecessor of the same name, is another pod.
    UIDS["10.1.0.3"] = "another"
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.3"), "default")
    await there.world.settle()
    assert there.stations.targets() == []


async def test_an_endpoint_is_looked_up_once(there: There) -> None:
    await there.serve()
    home = there.world.home
    home.clear_log()
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.1", "10.1.0.2"), "default")
    await there.world.settle()
    assert there.stations.targets() == ["10.1.0.1", "10.1.0.2"]
    asked = [it.path for it in home.log if it.path.startswith("/api/v1/namespaces/default/pods/")]
    assert asked == ["/api/v1/namespaces/default/pods/10.1.0.2"]


async def test_many_new_endpoints_are_looked_up_by_one_list(there: There) -> None:
    await there.serve()
    many = [f"10.1.1.{number}" for number in range(20)]
    for address in many:
        home_pod(there.world, address)
    home = there.world.home
    home.clear_log()
    home.update(ENDPOINT_SLICES, "web-abc", endpoints(*many), "default")
    await there.world.settle()
    assert there.stations.targets() == sorted(many)
    asked = [it.path for it in home.log if it.path.startswith("/api/v1/namespaces/default/pods")]
    assert asked == ["/api/v1/namespaces/default/pods"]


async def test_a_relay_pod_is_made_and_the_service_leads_to_it(there: There) -> None:
    await there.start()
    (pod,) = there.relays()
    assert pod["metadata"]["namespace"] == THERE
    assert pod["spec"]["containers"][0]["image"] == IMAGE
    assert there.slices() == [], "nobody listens yet"
    there.runs(pod)
    await there.world.settle()
    assert there.published() == ["10.9.0.50"]
    assert there.stations.targets() == ["10.1.0.1"]
    (way,) = there.stations.ways.values()
    assert way.targets == (HomeTarget("10.1.0.1", 8080),)


async def test_what_changes_nothing_is_not_written(there: There) -> None:
    pod = await there.serve()
    there.runs(pod)
    there.stations.tell()
    await there.world.settle()
    assert there.world.writes() == []


async def test_endpoints_follow_homes_pods(there: There) -> None:
    await there.serve()
    home = there.world.home
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.2", "10.1.0.3"), "default")
    await there.world.settle()
    assert there.stations.targets() == ["10.1.0.2", "10.1.0.3"]
    assert len(there.slices()) == 2, "as many as home has pods"
    home.update(ENDPOINT_SLICES, "web-abc", {"endpoints": []}, "default")
    await there.world.settle()
    assert there.slices() == []
    assert there.stations.targets() == []
    assert there.relays(), "it is there for a while"
    await there.world.remote.until(there.all_end)
    (pod,) = there.relays()
    there.world.remote.remove(PODS, pod["metadata"]["name"], THERE)
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.1"), "default")
    await there.world.settle()
    assert len(there.relays()) == 1


async def test_pods_of_the_node_are_left_to_the_remote(there: There) -> None:
    there.world.home.put(service())
    there.world.home.put(endpoints("10.1.0.1", node="virtual"))
    await there.world.start()
    there.world.pod("client")
    await there.world.settle()
    assert there.relays() == []


async def test_a_relay_pod_that_somebody_deletes_serves_until_another_does(there: There) -> None:
    first = await there.serve()
    name = first["metadata"]["name"]
    there.world.remote.delete(PODS, name, THERE)
    await there.world.settle()
    second = next(it for it in there.relays() if it["metadata"]["name"] != name)
    assert there.published() == ["10.9.0.50"], "the first one still serves"
    there.runs(second, "10.9.0.51")
    await there.world.settle()
    assert there.published() == ["10.9.0.51"]
    assert name in there.stations.shown, "kube-proxies have to learn of it"
    await there.world.remote.until(lambda: name not in there.stations.shown)
    assert there.stations.shown == [second["metadata"]["name"]]


async def test_one_that_ends_by_itself_is_replaced(there: There) -> None:
    first = await there.serve()
    there.world.ends("Failed", first["metadata"]["name"], THERE)
    await there.world.remote.until(
        lambda: (
            [it["metadata"]["name"] for it in there.relays()] != [first["metadata"]["name"]]
            and there.relays()
        )
    )
    await there.world.remote.until(lambda: there.slices() == [])
    (second,) = there.relays()
    there.runs(second, "10.9.0.51")
    await there.world.settle()
    assert there.published() == ["10.9.0.51"]


async def test_one_that_hangs_is_replaced_and_that_is_told(there: There) -> None:
    first = await there.serve()
    name = first["metadata"]["name"]
    there.stations.silent.add(name)
    there.stations.tell()
    await there.world.remote.until(there.all_end)
    deleted = [it for it in there.world.writes() if "DELETE" in it and name in it]
    assert len(deleted) == 1
    await there.world.remote.until(lambda: len(there.relays()) == 2)
    second = next(it for it in there.relays() if it["metadata"]["name"] != name)
    there.runs(second, "10.9.0.51")
    await there.world.remote.until(lambda: there.published() == ["10.9.0.51"])
    (event,) = await there.world.told("RelayBackSilent")
    assert event["involvedObject"]["name"] == "web"
    assert name in event["message"]
    assert event["count"] == 1


async def test_ones_that_hang_one_after_the_other_are_replaced_at_growing_intervals(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_pods, "RECREATE_SECONDS", 0.2)
    await there.start()
    made: dict[str, float] = {}
    while len(made) < 4:
        for pod in there.relays():
            name = pod["metadata"]["name"]
            if name not in made:
                made[name] = asyncio.get_running_loop().time()
                there.runs(pod, f"10.9.0.{len(made)}")
                there.stations.silent.add(name)
                there.stations.tell()
        await asyncio.sleep(0.005)
    waits = [after - before for before, after in itertools.pairwise(made.values())]
    # 0.1 to 0.2 s, and 0.4 to 0.8 s two later.
    assert waits[0] >= 0.1
    assert waits[2] >= 0.4
    assert there.slices() == []


async def test_a_relay_pod_of_another_version_is_told_once(there: There) -> None:
    pod = await there.serve()
    there.stations.unlike[pod["metadata"]["name"]] = "it is of release 9, and this bridge of 8"
    for _ in range(2):
        there.stations.tell()
        await there.world.settle()
    (event,) = await there.world.told("RelayBackVersion")
    assert event["involvedObject"]["name"] == "web"
    assert "it is of release 9" in event["message"]
    assert event["count"] == 1


async def test_of_another_version_is_not_said_of_a_pod_that_is_being_replaced(
    there: There,
) -> None:
    pod = await there.serve()
    await there.world.stop()
    there.world.policy = replace(there.world.policy, relay_image="bridge:2")
    there.forget_stations()
    there.stations.unlike[pod["metadata"]["name"]] = "it is of release 8, and this bridge of 9"
    await there.world.start()
    await there.world.settle()
    assert len(there.relays()) == 2
    await there.world.stop()
    assert "RelayBackVersion" not in {it["reason"] for it in there.world.home.objects(EVENTS)}


async def test_endpoints_go_when_the_relay_pod_is_not_spoken_to(there: There) -> None:
    pod = await there.serve()
    there.stations.deaf.add(pod["metadata"]["name"])
    there.stations.tell()
    await there.world.settle()
    assert there.slices(), "it may come back in a moment"
    await there.world.remote.until(lambda: not there.slices())
    there.stations.deaf.clear()
    there.stations.tell()
    await there.world.settle()
    assert there.published() == ["10.9.0.50"]


async def test_another_image_is_another_pod(there: There) -> None:
    first = await there.serve()
    await there.world.stop()
    there.world.policy = replace(there.world.policy, relay_image="bridge:2")
    there.forget_stations()
    await there.world.start()
    assert len(there.relays()) == 2
    assert there.published() == ["10.9.0.50"]
    second = next(it for it in there.relays() if it["metadata"]["uid"] != first["metadata"]["uid"])
    there.runs(second, "10.9.0.51")
    await there.world.settle()
    assert there.published() == ["10.9.0.51"]
    going = next(it for it in there.relays() if it["metadata"]["uid"] == first["metadata"]["uid"])
    assert going["metadata"].get("deletionTimestamp")


async def test_a_restarted_bridge_takes_up_pod_ports_and_slices(there: There) -> None:
    await there.serve()
    ports = set(there.stations.ways)
    await there.world.stop()
    assert there.published() == ["10.9.0.50"], "nobody else serves it: the relay pod holds"
    assert there.stations.finished
    there.world.home.put(service("aaa"))
    there.world.home.put(endpoints("10.1.0.9", name="aaa"))
    there.forget_stations()
    there.world.forget()
    await there.world.start()
    assert ports < set(there.stations.ways)
    assert [it for it in there.world.writes() if "DELETE" in it or "PATCH" in it] == []
    assert len(there.relays()) == 1
    assert len(there.slices()) == 2


async def test_a_bridge_that_stops_leaves_services_to_those_who_serve_them(there: There) -> None:
    await there.serve()
    there.world.pod("far", labels={"app": "web"})
    await there.world.settle()
    there.world.runs("far")
    await there.world.settle()
    await there.world.stop()
    assert there.slices() == []
    assert not there.stations.running
    assert there.relays(), "for the next bridge"


async def test_without_an_image_nothing_is_made_and_what_is_left_goes(there: There) -> None:
    await there.serve()
    await there.world.stop()
    there.world.forwarder = None
    there.world.policy = replace(there.world.policy, relay_image="")
    await there.world.start()
    await there.world.settle()
    assert there.slices() == []
    assert there.all_end()


async def test_what_has_our_labels_elsewhere_is_left_alone(there: There) -> None:
    """Somebody of the remote has copied them."""
    pod = await there.serve()
    meta = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    theirs = {**pod, "metadata": {"name": "theirs", "namespace": "somebody", **meta}}
    there.world.remote.put({**theirs, "status": {"phase": "Failed"}})
    await there.world.settle()
    assert there.world.remote.find(PODS, "theirs", "somebody") is not None
    assert "theirs" not in there.stations.shown
    await there.world.stop()


async def test_foreign_slices_and_services_are_left_alone(there: There) -> None:
    foreign = service()
    foreign["metadata"]["namespace"] = THERE
    there.world.remote.put(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": THERE, "annotations": {"cluster-bridge.io/accepts-home": "*"}},
        }
    )
    there.world.remote.put(foreign)
    await there.start(waiting=True)
    assert there.relays() == [], "another's Service gets no endpoints of ours"


async def test_a_remote_that_refuses_the_pod_is_told_at_the_service(there: There) -> None:
    there.world.remote.fail(Fault("POST", f"*/namespaces/{THERE}/pods", code=403, times=None))
    there.world.home.put(service())
    there.world.home.put(endpoints("10.1.0.1"))
    await there.world.start()
    there.world.pod("client")
    (event,) = await there.world.told("RelayBackRefused")
    assert event["involvedObject"]["name"] == "web"
    there.world.remote.heal()
    there.world.engine.retry_now()
    await there.world.settle()
    assert len(there.relays()) == 1


async def test_what_cannot_be_carried_is_told_once(there: There) -> None:
    there.world.home.put(service("headless", clusterIP="None"))
    there.world.home.put(endpoints("10.1.0.7", name="headless"))
    await there.start()
    (event,) = await there.world.told("RelayBackLeftOut")
    assert event["involvedObject"]["name"] == "headless"
    there.world.home.put(service("another"))
    await there.world.settle()
    (event,) = await there.world.told("RelayBackLeftOut")
    assert event["count"] == 1


async def test_a_service_that_is_made_anew_is_told_anew(there: There) -> None:
    there.world.home.put(service("headless", clusterIP="None"))
    there.world.home.put(endpoints("10.1.0.7", name="headless"))
    await there.start()
    await there.world.told("RelayBackLeftOut")
    there.world.home.delete(SERVICES, "headless", "default")
    await there.world.settle()
    there.world.home.put(service("headless", clusterIP="None"))
    await there.world.settle()

    def told() -> set[str]:
        events = there.world.home.objects(EVENTS)
        left_out = [it for it in events if it["reason"] == "RelayBackLeftOut"]
        return {it["involvedObject"]["uid"] for it in left_out}

    await there.world.home.until(lambda: len(told()) == 2)


async def test_nothing_of_homes_endpoints_is_copied(there: There) -> None:
    """Nobody in the remote could reach them."""
    await there.serve()
    assert all(reverse.is_own_relay_object(it, IDENTITY) for it in there.slices())


async def test_the_relay_pod_and_then_its_namespace_go_with_the_last_pod(there: There) -> None:
    await there.serve()
    there.world.home.delete(PODS, "client", "default")
    await there.world.remote.until(lambda: there.slices() == [])
    await there.world.remote.until(there.all_end)


async def test_a_copy_that_somebody_deletes_takes_its_slices_along(there: There) -> None:
    await there.serve()
    there.world.remote.delete(SERVICES, "web", THERE)
    await there.world.settle()
    copy = there.world.remote.get(SERVICES, "web", THERE)
    (slice_,) = there.slices()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == copy["metadata"]["uid"]


async def test_an_image_that_cannot_be_pulled_is_told_once_at_the_service(there: There) -> None:
    await there.start()
    (pod,) = there.relays()
    name = pod["metadata"]["name"]
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waits = {"name": "relay", "state": {"waiting": {"reason": reason}}}
        there.world.runs(name, THERE, phase="Pending", conditions=[], containerStatuses=[waits])
        await there.world.settle()
    (event,) = await there.world.told("RelayBackWaiting")
    assert event["involvedObject"]["name"] == "web"
    assert "ImagePullBackOff" in event["message"]
    assert event["count"] == 1
