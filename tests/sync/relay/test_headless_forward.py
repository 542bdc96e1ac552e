"""Pods behind headless Services have addresses at home, and names by them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sync.cache.store import Key
from sync.kube.api_resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.relay import endpoint_slices
from sync.relay import forward_controller as forward_module
from sync.relay.forward_controller import OnLimited, PortUnavailableError
from tests.fakeapi import Fault, store
from tests.sync.engine_harness import ADDRESS, IDENTITY, REMOTE_NAMESPACE, EngineHarness
from tests.sync.relay.test_forward_controller import service, slices
from translators.relay import forward_plan
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
        """The listening addresses of each pod."""
        return {it.name: at.address for at, it in self.opened.get(key, {}).items()}


@pytest.fixture
def listeners(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> FakeListeners:
    """Enables relay networking with an address range."""
    monkeypatch.setattr(forward_module, "DRAIN_SECONDS", 0.0)
    monkeypatch.setattr(forward_module, "REMOTE_GRACE", 0.05)
    monkeypatch.setattr(endpoint_slices, "WITHDRAW_SECONDS", 10.0)
    harness.listeners = found = FakeListeners()
    harness.policy = replace(
        harness.policy, network="relay", relay_address=ADDRESS, relay_cidr=CIDR
    )
    return found


async def with_pods(harness: EngineHarness, *names: str) -> None:
    """A headless Service, and pods behind it that run."""
    harness.home.put(service(clusterIP="None"))
    await harness.start()
    await more_pods(harness, *names)
    harness.clear_logs()


async def more_pods(harness: EngineHarness, *names: str, waiting: bool = False) -> None:
    for name in names:
        harness.pod(name, labels={"app": "web"}, hostname=name, subdomain="web")
    await harness.settle(waiting=waiting)
    for name in names:
        harness.report_running(name)
    await harness.settle(waiting=waiting)


def published(harness: EngineHarness) -> dict[str, str]:
    """The address of each pod that home's slices tell."""
    ends = [end for it in slices(harness) for end in it["endpoints"] if "targetRef" in end]
    found = {end["targetRef"]["name"]: end["addresses"][0] for end in ends}
    assert len(found) == len(ends) == len(set(found.values()))
    return found


def ready(harness: EngineHarness) -> set[str]:
    """The pods with a ready endpoint."""
    ends = [end for it in slices(harness) for end in it["endpoints"]]
    return {it["targetRef"]["name"] for it in ends if "targetRef" in it and _is_ready(it)}


def _is_ready(end: Object) -> bool:
    return bool(end["conditions"]["ready"])


async def test_each_pod_has_an_address_and_its_hostname(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0", "web-1")
    found = published(harness)
    assert set(found) == {"web-0", "web-1"}
    assert listeners.pods() == found
    assert {it["endpoints"][0]["hostname"] for it in slices(harness)} == {"web-0", "web-1"}
    assert "podIP" not in harness.status("web-0"), "home's own controller has nothing to publish"
    assert "RelayLeftOut" not in {it["reason"] for it in harness.home.objects(EVENTS)}


async def test_unready_pod_keeps_its_address_and_is_not_ready(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0")
    before = published(harness)
    harness.report_running("web-0", conditions=[{"type": "Ready", "status": "False"}])
    await harness.settle()
    assert published(harness) == listeners.pods() == before
    (endpoint,) = slices(harness)[0]["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": False, "terminating": False}


async def test_deleted_pod_releases_its_address(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, *(f"web-{n}" for n in range(ROOM + 1)))
    lacking = {f"web-{n}" for n in range(ROOM + 1)} - set(published(harness))
    assert len(lacking) == 1
    (event,) = await harness.events_with_reason("RelayLeftOut")
    assert event["involvedObject"]["name"] == "web"
    assert f"all {ROOM} of --relay-cidr {CIDR} are taken" in event["message"]

    before = published(harness)
    gone = min(before)
    harness.home.delete(PODS, gone, "default")
    await harness.settle()
    assert published(harness) == before, "a terminating pod may still receive requests"
    ending = [it["endpoints"][0]["conditions"] for it in slices(harness)]
    assert [it["ready"] for it in ending if it["terminating"]] == [False]
    harness.remote.remove(PODS, gone, REMOTE_NAMESPACE)
    await harness.settle()
    after = published(harness)
    assert after.keys() == before.keys() - {gone} | lacking, "who lacked one has it now"
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    assert listeners.pods() == after


async def test_pod_behind_two_services_has_one_address(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    harness.home.put(service("admin", clusterIP="None", ports=[{"port": 90}]))
    await with_pods(harness, "web-0")
    assert listeners.pods() == listeners.pods(Key("default", "admin"))
    assert len(slices(harness)) == 2
    harness.home.delete(SERVICES, "admin", "default")
    await harness.settle()
    assert listeners.pods(Key("default", "admin")) == {}
    assert listeners.pods() == published(harness)


async def test_addresses_are_restored_after_a_crash(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0", "web-1")
    # Differs from the default choice: the existing slices decide.
    swapped = {"web-0": "10.77.0.6", "web-1": published(harness)["web-0"]}
    before = slices(harness)
    harness.home.fail(Fault("DELETE", "*endpointslices*", times=None, code=503))
    await harness.stop()
    harness.home.heal()
    for slice_ in before:
        harness.home.remove(ENDPOINT_SLICES, slice_["metadata"]["name"], "default")
        pod = slice_["endpoints"][0]["hostname"]
        harness.home.put(record(slice_, pod, swapped[pod]))
    harness.clear_logs()
    harness.listeners = again = FakeListeners()
    await harness.start()
    assert published(harness) == again.pods() == swapped
    assert [it for it in harness.writes() if "endpointslices" in it] == []


def record(slice_: Object, pod: str, address: str, namespace: str = "default") -> Object:
    """A slice as a bridge would write it for another pod or address."""
    (end,) = slice_["endpoints"]
    target = {**end["targetRef"], "namespace": namespace, "name": pod}
    meta = {
        "name": forward_plan.forward_slice_name("web", f"{pod}/{address}", IDENTITY),
        "namespace": namespace,
        "labels": slice_["metadata"]["labels"],
        "ownerReferences": slice_["metadata"]["ownerReferences"],
    }
    endpoints = [{**end, "addresses": [address], "targetRef": target}]
    return {**slice_, "metadata": meta, "endpoints": endpoints}


@pytest.mark.parametrize("forged", ["later", "changed", "deleting", "without a pod"])
async def test_slice_of_a_user_does_not_take_the_address_of_another_pod(
    harness: EngineHarness,
    listeners: FakeListeners,
    monkeypatch: pytest.MonkeyPatch,
    forged: str,
) -> None:
    await with_pods(harness, "web-0")
    harness.pod("evil")
    await harness.settle()
    before = published(harness)
    (own,) = slices(harness)
    await harness.stop()
    evil = record(own, "evil", before["web-0"])
    if forged == "changed":  # for an address that was free
        evil["metadata"] |= {"name": record(own, "evil", "10.77.0.1")["metadata"]["name"]}
    if forged == "deleting":
        evil["metadata"] |= {"finalizers": ["example.com/never"]}
    if forged == "without a pod":
        evil = record(own, "evil", before["web-0"], "a")
    year = 2099 if forged == "later" else 2001
    with monkeypatch.context() as patch:
        patch.setattr(store, "timestamp", lambda: f"{year}-01-01T00:00:00Z")
        meta = harness.home.put(evil)["metadata"]
    if forged == "deleting":
        harness.home.delete(ENDPOINT_SLICES, meta["name"], meta["namespace"])
    harness.listeners = again = FakeListeners()
    await harness.start()
    assert again.pods() == before


async def test_forged_records_of_all_addresses_leave_some_for_new_pods(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    """Of a namespace in which the bridge may not delete them."""
    await with_pods(harness, "web-0")
    before = published(harness)
    (own,) = slices(harness)
    await harness.stop()
    harness.home.fail(Fault("DELETE", "*/namespaces/a/*", times=None, code=403))
    for number in range(1, ROOM + 1):
        harness.home.put(record(own, f"evil-{number}", f"10.77.0.{number}", "a"))
    harness.listeners = again = FakeListeners()
    await harness.start(settle=False)
    await more_pods(harness, "web-1", waiting=True)
    assert again.pods().keys() == {"web-0", "web-1"}
    assert again.pods()["web-0"] == before["web-0"]


async def test_address_is_reused_though_a_user_keeps_its_slice(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, *(f"web-{number}" for number in range(ROOM)))
    before = published(harness)
    (kept,) = [each for each in slices(harness) if each["endpoints"][0]["hostname"] == "web-0"]
    change = {"metadata": {"finalizers": ["example.com/never"]}}
    harness.home.update(ENDPOINT_SLICES, kept["metadata"]["name"], change, "default")
    harness.home.delete(PODS, "web-0", "default")
    await harness.settle()
    harness.remote.remove(PODS, "web-0", REMOTE_NAMESPACE)
    await harness.settle()
    await more_pods(harness, "web-9")
    assert listeners.pods()["web-9"] == before["web-0"]


async def test_stopping_bridge_marks_pods_as_not_ready(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    harness.home.put(service("plain"))
    # As many as there is room for, in this order: who comes where depends on it.
    await with_pods(harness)
    for number in reversed(range(ROOM)):
        await more_pods(harness, f"web-{number}")
    before = published(harness)
    await harness.stop()
    assert len(slices(harness)) == ROOM, "those of the other Service have gone"
    assert published(harness) == before
    assert ready(harness) == set()

    harness.listeners = again = FakeListeners()
    await harness.start()
    assert published(harness) == again.pods() == before
    assert ready(harness) == set(before)


async def test_slices_are_deleted_without_the_range(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0")
    await harness.stop()
    harness.policy = replace(harness.policy, relay_cidr="")
    await harness.start()
    assert slices(harness) == []


async def test_modified_slices_are_restored(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0", "web-1")
    before = published(harness)
    one, other = slices(harness)
    harness.home.delete(ENDPOINT_SLICES, one["metadata"]["name"], "default")
    modified = {"endpoints": [{"addresses": ["203.0.113.9"]}]}
    harness.home.update(ENDPOINT_SLICES, other["metadata"]["name"], modified, "default")
    await harness.settle()
    assert published(harness) == listeners.pods() == before


async def test_unreachable_remote_makes_its_pods_not_ready(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0")
    before = published(harness)
    harness.remote.fail(Fault("GET", "*/pods", times=None, code=503))
    harness.remote.break_watches(PODS)
    await harness.home.until(lambda: not ready(harness))
    assert published(harness) == before, "they keep their addresses"
    assert listeners.pods() == {}
    harness.remote.heal()
    await harness.home.until(lambda: ready(harness))
    assert published(harness) == listeners.pods() == before


async def test_nothing_is_published_before_the_bridge_listens(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    listeners.refuses = "another bridge on this node holds it"
    harness.home.put(service(clusterIP="None"))
    await harness.start()
    harness.pod("web-0", labels={"app": "web"})
    await harness.settle(waiting=True)
    harness.report_running("web-0")
    await harness.settle(waiting=True)
    assert slices(harness) == []
    (event,) = await harness.events_with_reason("RelayNoPort")
    assert event["message"] == listeners.refuses
    listeners.refuses = ""
    harness.engine.retry_now()
    await harness.settle()
    assert listeners.pods() == published(harness)


async def test_other_services_are_unaffected_by_the_range(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    harness.home.put(service("plain"))
    await with_pods(harness, "web-0")
    plain = [
        it
        for it in slices(harness)
        if it["metadata"]["labels"]["kubernetes.io/service-name"] == "plain"
    ]
    assert [it["endpoints"][0]["addresses"] for it in plain] == [[ADDRESS]]
    assert listeners.pods(Key("default", "plain")) == {}


def _port(known: Object) -> int:
    return int(known["ports"][0]["port"])


async def test_irrelevant_change_causes_no_write(
    harness: EngineHarness, listeners: FakeListeners
) -> None:
    await with_pods(harness, "web-0")
    assert [_port(it) for it in slices(harness)] == [80]
    harness.report_running("web-0", message="still here")
    await harness.settle()
    assert [it for it in harness.writes() if "endpointslices" in it] == []
