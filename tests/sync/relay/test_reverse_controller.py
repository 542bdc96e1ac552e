"""Services in the remote lead to home's pods through a relay agent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sync.base.background_task import background_task
from sync.cache import cache_share
from sync.kube.api_resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.relay import agent_pods, endpoint_slices
from sync.relay import reverse_controller as reverse_module
from tests import objects
from tests.fakeapi import Fault
from tests.sync.engine_harness import ADDRESS, IDENTITY, REMOTE_NAMESPACE, EngineHarness
from tests.sync.loop_steps import LoopSteps
from translators.object_accessors import HomeNamespace
from translators.relay import reverse_plan
from translators.relay.agent_pod import AgentState
from translators.relay.reverse_plan import HomeTarget, ReverseRoute

HOME = HomeNamespace("default")
IMAGE = "bridge:1"


class FakeForwarder:
    """Fakes the forwarder: agents listen on the requested ports, except the deaf ones."""

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.routes: Mapping[int, ReverseRoute] = {}
        self.deaf: set[str] = set()
        self.silent: set[str] = set()
        self.without_udp: set[str] = set()
        self.warnings: dict[str, str] = {}
        self.running = False
        self.finished = False
        self._handlers: list[Callable[[HomeNamespace], None]] = []

    def update(
        self, home: HomeNamespace, pods: Sequence[Object], routes: Mapping[int, ReverseRoute]
    ) -> None:
        names = [it["metadata"]["name"] for it in pods]
        changed = (names, routes.keys()) != (self.agents, self.routes.keys())
        self.agents, self.routes = names, routes
        if changed:
            self.tell()

    def tell(self) -> None:
        for handler in self._handlers:
            handler(HOME)

    def agent_state(self, pod: Object) -> AgentState:
        name = pod["metadata"]["name"]
        there = name in self.agents and name not in self.deaf | self.silent
        udp = frozenset(port for port, route in self.routes.items() if route.is_udp)
        unsupported = udp if there and name in self.without_udp else frozenset()
        return AgentState(
            listening=frozenset(self.routes) - unsupported if there else frozenset(),
            unsupported=unsupported,
            unresponsive=name in self.silent,
            version_warning=self.warnings.get(name, ""),
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
        """The targets of connections."""
        return sorted({it.address for route in self.routes.values() for it in route.targets})


class ReverseHarness:
    """A harness with a relay image, and queries of the remote's objects."""

    def __init__(self, harness: EngineHarness) -> None:
        self.harness = harness
        self.forwarder = FakeForwarder()
        harness.forwarder = self.forwarder
        harness.policy = replace(
            harness.policy, network="relay", relay_address=ADDRESS, relay_image=IMAGE
        )

    def replace_forwarder(self) -> None:
        """Replaces the forwarder before a restart, as in a new process."""
        self.harness.forwarder = self.forwarder = FakeForwarder()

    def relays(self) -> list[Object]:
        """All agent Pods, terminating ones included."""
        found = [
            it for it in self.harness.remote.objects(PODS) if reverse_plan.relay_home_namespace(it)
        ]
        return sorted(found, key=lambda it: str(it["metadata"]["creationTimestamp"]))

    def slices(self) -> list[Object]:
        """The slices in the remote."""
        return self.harness.remote.objects(ENDPOINT_SLICES)

    def published(self) -> list[str]:
        """The addresses in the slices."""
        return sorted(
            address
            for it in self.slices()
            for end in it["endpoints"]
            for address in end["addresses"]
        )

    def runs(self, pod: Object, ip: str = "10.9.0.50") -> None:
        """The remote's kubelet runs the agent Pod."""
        ips = {"podIP": ip, "podIPs": [{"ip": ip}]}
        self.harness.report_running(pod["metadata"]["name"], REMOTE_NAMESPACE, **ips)

    def all_end(self) -> bool:
        """Whether all agent Pods terminate."""
        return all(it["metadata"].get("deletionTimestamp") for it in self.relays())

    async def start(self, *, waiting: bool = False) -> None:
        """A Service with pods at home, and a pod on the node."""
        self.harness.home.put(service())
        self.harness.home.put(endpoints("10.1.0.1"))
        await self.harness.start()
        self.harness.pod("client")
        await self.harness.settle(waiting=waiting)

    async def serve(self) -> Object:
        """As `start`, with a running agent."""
        pod = await self.serve_all()
        assert self.published() == ["10.9.0.50"]
        return pod

    async def serve_all(self) -> Object:
        """As `serve`, with any number of Services."""
        await self.start()
        (pod,) = self.relays()
        self.runs(pod)
        await self.harness.settle()
        self.harness.clear_logs()
        return pod


#: Addresses of home's pods here, and by them the UIDs of the pods.
AT_HOME = ("10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.7", "10.1.0.9")
UIDS: dict[str, str] = {}


@pytest.fixture
def there(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> ReverseHarness:
    monkeypatch.setattr(reverse_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    monkeypatch.setattr(reverse_module, "CONTROL_GRACE", 0.1)
    monkeypatch.setattr(reverse_module, "LINGER", 0.1)
    monkeypatch.setattr(agent_pods, "RECREATE_SECONDS", 0.05)
    harness.namespace_linger = 0.2
    for address in AT_HOME:
        home_pod(harness, address)
    return ReverseHarness(harness)


def home_pod(harness: EngineHarness, address: str, *, status: str | None = None) -> None:
    """A pod on a node of home, named after its address, which the kubelet has written to its
    status."""
    pod = objects.pod(address, node="worker-at-home")
    ip = status if status is not None else address
    made = harness.home.put({**pod, "status": {"podIP": ip, "podIPs": [{"ip": ip}]}})
    UIDS[address] = made["metadata"]["uid"]


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": name}, "ports": [{"port": 80, "protocol": "TCP"}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


def endpoints(*addresses: str, name: str = "web", node: str = "worker-at-home") -> Object:
    """The EndpointSlice that home's controller creates for the Service's pods."""
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


async def test_address_that_no_pod_has_is_not_a_target(there: ReverseHarness) -> None:
    """A tenant with write access to EndpointSlices can set the label of home's controller."""
    await there.serve()
    home = there.harness.home
    home_pod(there.harness, "192.0.2.1", status="10.1.0.8")  # the status has another address
    forged = endpoints("10.1.0.2", "192.0.2.1", "192.0.2.2")
    home.update(ENDPOINT_SLICES, "web-abc", forged, "default")
    await there.harness.settle()
    assert there.forwarder.targets() == ["10.1.0.2"]
    # A pod of another namespace, or a predecessor of the same name, is another pod.
    UIDS["10.1.0.3"] = "another"
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.3"), "default")
    await there.harness.settle()
    assert there.forwarder.targets() == []


async def test_endpoint_is_verified_once(there: ReverseHarness) -> None:
    await there.serve()
    home = there.harness.home
    home.clear_log()
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.1", "10.1.0.2"), "default")
    await there.harness.settle()
    assert there.forwarder.targets() == ["10.1.0.1", "10.1.0.2"]
    requests = [
        it.path for it in home.log if it.path.startswith("/api/v1/namespaces/default/pods/")
    ]
    assert requests == ["/api/v1/namespaces/default/pods/10.1.0.2"]


async def test_many_new_endpoints_are_verified_by_one_list(there: ReverseHarness) -> None:
    await there.serve()
    many = [f"10.1.1.{number}" for number in range(20)]
    for address in many:
        home_pod(there.harness, address)
    home = there.harness.home
    home.clear_log()
    home.update(ENDPOINT_SLICES, "web-abc", endpoints(*many), "default")
    await there.harness.settle()
    assert there.forwarder.targets() == sorted(many)
    requests = [it.path for it in home.log if it.path.startswith("/api/v1/namespaces/default/pods")]
    assert requests == ["/api/v1/namespaces/default/pods"]


async def test_agent_is_created_and_the_service_leads_to_it(there: ReverseHarness) -> None:
    await there.start()
    (pod,) = there.relays()
    assert pod["metadata"]["namespace"] == REMOTE_NAMESPACE
    assert pod["spec"]["containers"][0]["image"] == IMAGE
    assert there.slices() == [], "no agent listens yet"
    there.runs(pod)
    await there.harness.settle()
    assert there.published() == ["10.9.0.50"]
    assert there.forwarder.targets() == ["10.1.0.1"]
    (route,) = there.forwarder.routes.values()
    assert route.targets == (HomeTarget("10.1.0.1", 8080),)


async def test_irrelevant_change_causes_no_write(there: ReverseHarness) -> None:
    pod = await there.serve()
    there.runs(pod)
    there.forwarder.tell()
    await there.harness.settle()
    assert there.harness.writes() == []


async def test_endpoints_follow_pods_at_home(there: ReverseHarness) -> None:
    await there.serve()
    home = there.harness.home
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.2", "10.1.0.3"), "default")
    await there.harness.settle()
    assert there.forwarder.targets() == ["10.1.0.2", "10.1.0.3"]
    assert len(there.slices()) == 2, "as many as home has pods"
    home.update(ENDPOINT_SLICES, "web-abc", {"endpoints": []}, "default")
    await there.harness.settle()
    assert there.slices() == []
    assert there.forwarder.targets() == []
    assert there.relays(), "it is there for a while"
    await there.harness.remote.until(there.all_end)
    (pod,) = there.relays()
    there.harness.remote.remove(PODS, pod["metadata"]["name"], REMOTE_NAMESPACE)
    home.update(ENDPOINT_SLICES, "web-abc", endpoints("10.1.0.1"), "default")
    await there.harness.settle()
    assert len(there.relays()) == 1


async def test_pods_of_the_node_are_no_targets(there: ReverseHarness) -> None:
    there.harness.home.put(service())
    there.harness.home.put(endpoints("10.1.0.1", node="virtual"))
    await there.harness.start()
    there.harness.pod("client")
    await there.harness.settle()
    assert there.relays() == []


async def test_deleted_agent_serves_until_its_replacement_does(there: ReverseHarness) -> None:
    first = await there.serve()
    name = first["metadata"]["name"]
    there.harness.remote.delete(PODS, name, REMOTE_NAMESPACE)
    await there.harness.settle()
    second = next(it for it in there.relays() if it["metadata"]["name"] != name)
    assert there.published() == ["10.9.0.50"], "the first one still serves"
    there.runs(second, "10.9.0.51")
    await there.harness.settle()
    assert there.published() == ["10.9.0.51"]
    assert name in there.forwarder.agents, "kube-proxies have to learn of it"
    await there.harness.remote.until(lambda: name not in there.forwarder.agents)
    assert there.forwarder.agents == [second["metadata"]["name"]]


async def test_failed_agent_is_replaced(there: ReverseHarness) -> None:
    first = await there.serve()
    there.harness.report_terminated("Failed", first["metadata"]["name"], REMOTE_NAMESPACE)
    await there.harness.remote.until(
        lambda: (
            [it["metadata"]["name"] for it in there.relays()] != [first["metadata"]["name"]]
            and there.relays()
        )
    )
    await there.harness.remote.until(lambda: there.slices() == [])
    (second,) = there.relays()
    there.runs(second, "10.9.0.51")
    await there.harness.settle()
    assert there.published() == ["10.9.0.51"]


async def test_unresponsive_agent_is_replaced_with_an_event(there: ReverseHarness) -> None:
    first = await there.serve()
    name = first["metadata"]["name"]
    there.forwarder.silent.add(name)
    there.forwarder.tell()
    await there.harness.remote.until(there.all_end)
    deleted = [it for it in there.harness.writes() if "DELETE" in it and name in it]
    assert len(deleted) == 1
    await there.harness.remote.until(lambda: len(there.relays()) == 2)
    second = next(it for it in there.relays() if it["metadata"]["name"] != name)
    there.runs(second, "10.9.0.51")
    await there.harness.remote.until(lambda: there.published() == ["10.9.0.51"])
    (event,) = await there.harness.events_with_reason("RelayBackSilent")
    assert event["involvedObject"]["name"] == "web"
    assert name in event["message"]
    assert event["count"] == 1


async def test_repeated_replacements_are_delayed_increasingly(
    there: ReverseHarness, monkeypatch: pytest.MonkeyPatch
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
                there.forwarder.silent.add(name)
                there.forwarder.tell()
        await asyncio.sleep(0.005)
    waits = [after - before for before, after in itertools.pairwise(made.values())]
    # 0.1 to 0.2 s, and 0.4 to 0.8 s two later.
    assert waits[0] >= 0.1
    assert waits[2] >= 0.4
    assert there.slices() == []


async def test_agent_that_another_client_deletes_is_created_at_growing_intervals(
    there: ReverseHarness,
) -> None:
    await there.start()

    async def delete_all() -> None:
        while True:
            await asyncio.sleep(0.1)
            for pod in there.relays():
                there.harness.remote.remove(PODS, pod["metadata"]["name"], REMOTE_NAMESPACE)

    async with background_task(delete_all(), name="delete"):
        await asyncio.sleep(60)
    writes = there.harness.writes()
    created = [line for line in writes if line.startswith("remote POST") and "pods" in line]
    assert 4 <= len(created) <= 20, "the first waits are shortened"
    await there.harness.remote.until(there.relays)
    (pod,) = there.relays()
    there.runs(pod)
    await there.harness.settle()
    assert there.published() == ["10.9.0.50"]
    # One that has served is replaced immediately.
    there.harness.remote.remove(PODS, pod["metadata"]["name"], REMOTE_NAMESPACE)
    async with asyncio.timeout(0.5):
        await there.harness.remote.until(there.relays)


async def test_version_warning_is_reported_once(there: ReverseHarness) -> None:
    pod = await there.serve()
    there.forwarder.warnings[pod["metadata"]["name"]] = "it is of release 9, and this bridge of 8"
    for _ in range(2):
        there.forwarder.tell()
        await there.harness.settle()
    (event,) = await there.harness.events_with_reason("RelayBackVersion")
    assert event["involvedObject"]["name"] == "web"
    assert "it is of release 9" in event["message"]
    assert event["count"] == 1


async def test_no_version_warning_for_an_agent_being_replaced(there: ReverseHarness) -> None:
    pod = await there.serve()
    await there.harness.stop()
    there.harness.policy = replace(there.harness.policy, relay_image="bridge:2")
    there.replace_forwarder()
    there.forwarder.warnings[pod["metadata"]["name"]] = "it is of release 8, and this bridge of 9"
    await there.harness.start()
    await there.harness.settle()
    assert len(there.relays()) == 2
    await there.harness.stop()
    assert "RelayBackVersion" not in {it["reason"] for it in there.harness.home.objects(EVENTS)}


def dns_service(*, is_udp: bool = True) -> tuple[Object, Object]:
    """A Service with a port of TCP and one that is of UDP, and its EndpointSlice."""
    kind = "UDP" if is_udp else "TCP"
    ports = [("dns-tcp", 53, "TCP"), ("dns", 53 if is_udp else 54, kind)]
    entries = [{"name": name, "port": port, "protocol": it} for name, port, it in ports]
    return service("dns", ports=entries), {
        **endpoints("10.1.0.2", name="dns"),
        "ports": [{"name": name, "port": 5353, "protocol": it} for name, _, it in ports],
    }


def dns_ports(there: ReverseHarness) -> dict[str, str]:
    """The protocols of the published ports, by name."""
    slices = [it for it in there.slices() if it["metadata"]["name"].startswith("dns")]
    return {port["name"]: port["protocol"] for it in slices for port in it["ports"]}


async def test_udp_port_is_published_and_routed(there: ReverseHarness) -> None:
    for it in dns_service():
        there.harness.home.put(it)
    await there.serve_all()
    assert dns_ports(there) == {"dns": "UDP", "dns-tcp": "TCP"}
    routes = {it.port: it.is_udp for it in there.forwarder.routes.values() if it.service == "dns"}
    assert routes == {"dns": True, "dns-tcp": False}
    assert "RelayBackLeftOut" not in {it["reason"] for it in there.harness.home.objects(EVENTS)}


async def test_agent_without_udp_serves_tcp_and_is_reported(there: ReverseHarness) -> None:
    for it in dns_service():
        there.harness.home.put(it)
    await there.start()
    (pod,) = there.relays()
    there.forwarder.without_udp.add(pod["metadata"]["name"])
    there.runs(pod)
    await there.harness.settle()
    assert dns_ports(there) == {"dns-tcp": "TCP"}
    found = await there.harness.events_with_reason("RelayBackVersion")
    assert {it["involvedObject"]["name"] for it in found} == {"web", "dns"}
    assert all("does not forward UDP; set --relay-image" in it["message"] for it in found)
    there.forwarder.without_udp.clear()
    there.forwarder.tell()
    await there.harness.settle()
    assert dns_ports(there) == {"dns": "UDP", "dns-tcp": "TCP"}


async def test_changed_protocol_gets_another_agent_port(there: ReverseHarness) -> None:
    """Until the old port is closed, nothing of the other protocol is forwarded to it."""
    for it in dns_service(is_udp=False):
        there.harness.home.put(it)
    await there.serve_all()

    def numbers() -> dict[bool, int]:
        routes = there.forwarder.routes.items()
        return {it.is_udp: port for port, it in routes if it.port == "dns"}

    before = numbers()
    assert dns_ports(there)["dns"] == "TCP"
    for it in dns_service():
        there.harness.home.put(it)
    await there.harness.settle()
    await there.harness.remote.until(lambda: dns_ports(there).get("dns") == "UDP")
    assert numbers()[True] != before[False]
    leftover = there.forwarder.routes.get(before[False])
    assert leftover is None or not leftover.targets


@pytest.mark.real_time  # measures CPU time
async def test_time_does_not_grow_with_the_square_of_the_renamed_ports(
    there: ReverseHarness,
) -> None:
    addresses = [f"10.1.1.{number}" for number in range(reverse_plan.MAX_ENDPOINTS)]
    for address in addresses:
        home_pod(there.harness, address)

    def put_ports(prefix: str) -> None:
        names = [f"{prefix}{number}" for number in range(300)]
        numbered = [{"name": name, "port": 80 + n} for n, name in enumerate(names)]
        there.harness.home.put(service(ports=numbered))
        there.harness.home.put({**endpoints(*addresses), "ports": numbered})

    def names() -> set[str]:
        return {route.port[0] for route in there.forwarder.routes.values() if route.targets}

    put_ports("a")
    await there.harness.start()
    there.harness.pod("client")
    await there.harness.home.until(lambda: names() == {"a"})
    steps = LoopSteps()
    with steps.measured():
        put_ports("b")
        await there.harness.home.until(lambda: names() == {"b"})
        await there.harness.home.until(lambda: len(there.forwarder.routes) == 300 * 16)
    assert steps.longest < 0.5, steps.what


async def test_endpoints_are_withdrawn_without_a_control_connection(there: ReverseHarness) -> None:
    pod = await there.serve()
    there.forwarder.deaf.add(pod["metadata"]["name"])
    there.forwarder.tell()
    await there.harness.settle()
    assert there.slices(), "it may come back in a moment"
    await there.harness.remote.until(lambda: not there.slices())
    there.forwarder.deaf.clear()
    there.forwarder.tell()
    await there.harness.settle()
    assert there.published() == ["10.9.0.50"]


async def test_changed_image_replaces_the_agent(there: ReverseHarness) -> None:
    first = await there.serve()
    await there.harness.stop()
    there.harness.policy = replace(there.harness.policy, relay_image="bridge:2")
    there.replace_forwarder()
    await there.harness.start()
    assert len(there.relays()) == 2
    assert there.published() == ["10.9.0.50"]
    second = next(it for it in there.relays() if it["metadata"]["uid"] != first["metadata"]["uid"])
    there.runs(second, "10.9.0.51")
    await there.harness.settle()
    assert there.published() == ["10.9.0.51"]
    going = next(it for it in there.relays() if it["metadata"]["uid"] == first["metadata"]["uid"])
    assert going["metadata"].get("deletionTimestamp")


async def test_agent_ports_and_slices_are_restored_after_a_restart(there: ReverseHarness) -> None:
    await there.serve()
    ports = set(there.forwarder.routes)
    await there.harness.stop()
    assert there.published() == ["10.9.0.50"], "no other pod serves it: the agent holds connections"
    assert there.forwarder.finished
    there.harness.home.put(service("aaa"))
    there.harness.home.put(endpoints("10.1.0.9", name="aaa"))
    there.replace_forwarder()
    there.harness.clear_logs()
    await there.harness.start()
    assert ports < set(there.forwarder.routes)
    assert [it for it in there.harness.writes() if "DELETE" in it or "PATCH" in it] == []
    assert len(there.relays()) == 1
    assert len(there.slices()) == 2


async def test_stopping_bridge_withdraws_only_services_served_in_the_remote(
    there: ReverseHarness,
) -> None:
    await there.serve()
    there.harness.pod("far", labels={"app": "web"})
    await there.harness.settle()
    there.harness.report_running("far")
    await there.harness.settle()
    await there.harness.stop()
    assert there.slices() == []
    assert not there.forwarder.running
    assert there.relays(), "for the next bridge"


async def test_leftovers_are_deleted_without_an_image(there: ReverseHarness) -> None:
    await there.serve()
    await there.harness.stop()
    there.harness.forwarder = None
    there.harness.policy = replace(there.harness.policy, relay_image="")
    await there.harness.start()
    await there.harness.settle()
    assert there.slices() == []
    assert there.all_end()


async def test_objects_with_copied_labels_elsewhere_are_left_alone(there: ReverseHarness) -> None:
    """A user of the remote has copied the labels."""
    pod = await there.serve()
    meta = {key: pod["metadata"][key] for key in ("labels", "annotations")}
    theirs = {**pod, "metadata": {"name": "theirs", "namespace": "unmanaged", **meta}}
    there.harness.remote.put({**theirs, "status": {"phase": "Failed"}})
    await there.harness.settle()
    assert there.harness.remote.find(PODS, "theirs", "unmanaged") is not None
    assert "theirs" not in there.forwarder.agents
    await there.harness.stop()


async def test_unmanaged_slices_and_services_are_left_alone(there: ReverseHarness) -> None:
    unmanaged = service()
    unmanaged["metadata"]["namespace"] = REMOTE_NAMESPACE
    there.harness.remote.put(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": REMOTE_NAMESPACE,
                "annotations": {"cluster-bridge.io/accepts-home": "*"},
            },
        }
    )
    there.harness.remote.put(unmanaged)
    await there.start(waiting=True)
    assert there.relays() == [], "an unmanaged Service gets no endpoints of the bridge"


async def test_rejected_agent_pod_is_reported_at_the_service(there: ReverseHarness) -> None:
    there.harness.remote.fail(
        Fault("POST", f"*/namespaces/{REMOTE_NAMESPACE}/pods", code=403, times=None)
    )
    there.harness.home.put(service())
    there.harness.home.put(endpoints("10.1.0.1"))
    await there.harness.start()
    there.harness.pod("client")
    (event,) = await there.harness.events_with_reason("RelayBackRefused")
    assert event["involvedObject"]["name"] == "web"
    there.harness.remote.heal()
    there.harness.engine.retry_now()
    await there.harness.settle()
    assert len(there.relays()) == 1


async def test_unsupported_service_is_reported_once(there: ReverseHarness) -> None:
    there.harness.home.put(service("headless", clusterIP="None"))
    there.harness.home.put(endpoints("10.1.0.7", name="headless"))
    await there.start()
    (event,) = await there.harness.events_with_reason("RelayBackLeftOut")
    assert event["involvedObject"]["name"] == "headless"
    there.harness.home.put(service("another"))
    await there.harness.settle()
    (event,) = await there.harness.events_with_reason("RelayBackLeftOut")
    assert event["count"] == 1


async def test_recreated_service_is_reported_again(there: ReverseHarness) -> None:
    there.harness.home.put(service("headless", clusterIP="None"))
    there.harness.home.put(endpoints("10.1.0.7", name="headless"))
    await there.start()
    await there.harness.events_with_reason("RelayBackLeftOut")
    there.harness.home.delete(SERVICES, "headless", "default")
    await there.harness.settle()
    there.harness.home.put(service("headless", clusterIP="None"))
    await there.harness.settle()

    def reasons() -> set[str]:
        events = there.harness.home.objects(EVENTS)
        left_out = [it for it in events if it["reason"] == "RelayBackLeftOut"]
        return {it["involvedObject"]["uid"] for it in left_out}

    await there.harness.home.until(lambda: len(reasons()) == 2)


async def test_endpoints_of_home_are_not_copied(there: ReverseHarness) -> None:
    """Pods in the remote cannot reach home's endpoints."""
    await there.serve()
    assert all(reverse_plan.is_own_relay_object(it, IDENTITY) for it in there.slices())


async def test_agent_and_namespace_are_deleted_after_the_last_pod(there: ReverseHarness) -> None:
    await there.serve()
    there.harness.home.delete(PODS, "client", "default")
    await there.harness.remote.until(lambda: there.slices() == [])
    await there.harness.remote.until(there.all_end)


async def test_deleted_service_copy_deletes_its_slices(there: ReverseHarness) -> None:
    await there.serve()
    there.harness.remote.delete(SERVICES, "web", REMOTE_NAMESPACE)
    await there.harness.settle()
    copy = there.harness.remote.get(SERVICES, "web", REMOTE_NAMESPACE)
    (slice_,) = there.slices()
    assert slice_["metadata"]["ownerReferences"][0]["uid"] == copy["metadata"]["uid"]


async def test_large_service_copy_is_published_with_its_ports(
    there: ReverseHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has no memory for all of the copy."""
    monkeypatch.setattr(cache_share, "CACHE_LIMIT", 2**16)
    large = service("large")
    large["metadata"]["labels"] = {f"label{number}": "v" * 60 for number in range(600)}
    there.harness.home.put(large)
    there.harness.home.put(endpoints("10.1.0.2", name="large"))
    await there.serve_all()
    assert len(there.slices()) == 2
    for slice_ in there.slices():
        assert [port["protocol"] for port in slice_["ports"]] == ["TCP"]


async def test_service_copy_without_a_spec_affects_no_other(there: ReverseHarness) -> None:
    there.harness.home.put(service("odd"))
    there.harness.home.put(endpoints("10.1.0.2", name="odd"))
    await there.start()
    store = there.harness.remote.store
    there.harness.remote.fail(Fault("PATCH", "*/services/odd", times=None, code=403))
    copy = there.harness.remote.get(SERVICES, "odd", REMOTE_NAMESPACE)
    kept = {key: value for key, value in copy.items() if key != "spec"}
    store.commit(store.registry.of(SERVICES), copy, kept)
    (pod,) = there.relays()
    there.runs(pod)
    await there.harness.remote.until(lambda: there.published() == ["10.9.0.50", "10.9.0.50"])


async def test_image_pull_failure_is_reported_once_at_the_service(there: ReverseHarness) -> None:
    await there.start()
    (pod,) = there.relays()
    name = pod["metadata"]["name"]
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waits = {"name": "relay", "state": {"waiting": {"reason": reason}}}
        there.harness.report_running(
            name, REMOTE_NAMESPACE, phase="Pending", conditions=[], containerStatuses=[waits]
        )
        await there.harness.settle()
    (event,) = await there.harness.events_with_reason("RelayBackWaiting")
    assert event["involvedObject"]["name"] == "web"
    assert "ImagePullBackOff" in event["message"]
    assert event["count"] == 1
