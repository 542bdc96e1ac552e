"""A bridge publishes the free room of its remote at home."""

from __future__ import annotations

import pytest

from sync.kube.api_resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    KUEUE_ADMISSION_CHECKS,
    NAMESPACES,
    NODES,
    PLACEMENT_POLICIES,
    PODS,
    Resource,
)
from sync.placement import room_publisher
from tests import objects
from tests.fakeapi.faults import Fault
from tests.sync.engine_harness import NODE, EngineHarness
from translators.capacity.node_capacity import OfferLimits
from translators.fit import published_room
from translators.fit.node_groups import NodeGroup, RoomError
from translators.fit.published_room import NAMESPACE, PublishedRoom, read_room
from translators.object_accessors import Object

NAME = published_room.config_map_name(NODE)


@pytest.fixture
def publishing(harness: EngineHarness, monkeypatch: pytest.MonkeyPatch) -> EngineHarness:
    """A harness whose engine publishes without delay."""
    monkeypatch.setattr(room_publisher, "SPACING", 0.01)
    harness.publish_room = "on"
    harness.home.put(objects.node(NODE))
    harness.home.put(NAMESPACES.manifest({"name": NAMESPACE}))
    harness.remote.put(worker("worker"))
    return harness


def worker(name: str, cpu: str = "4") -> Object:
    return objects.node(name) | {
        "status": {
            "allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
    }


async def room(harness: EngineHarness, cpus: list[int]) -> PublishedRoom:
    """The published room, once these are the free millicores of each group."""

    def found() -> bool:
        config_map = harness.home.find(CONFIG_MAPS, NAME, NAMESPACE)
        if config_map is None:
            return False
        return [it.free.get("cpu") for it in read_room(config_map).groups] == cpus

    await harness.home.until(found)
    return read_room(harness.home.get(CONFIG_MAPS, NAME, NAMESPACE))


def container(cpu: str) -> list[Object]:
    return [{"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}]


async def test_room_of_the_nodes_is_published(publishing: EngineHarness) -> None:
    await publishing.start()
    [group] = (await room(publishing, [4000])).groups
    assert (group.pods, group.count) == (10, 1)


async def test_room_belongs_to_the_node(publishing: EngineHarness) -> None:
    await publishing.start()
    await room(publishing, [4000])
    meta = publishing.home.get(CONFIG_MAPS, NAME, NAMESPACE)["metadata"]
    uid = publishing.home.get(NODES, NODE)["metadata"]["uid"]
    assert [it["uid"] for it in meta["ownerReferences"]] == [uid]


async def test_bound_pod_takes_room_before_it_has_a_node(publishing: EngineHarness) -> None:
    await publishing.start()
    await room(publishing, [4000])
    bound = publishing.pod(containers=container("1"))
    published = await room(publishing, [3000])
    assert published.home_version >= int(bound["metadata"]["resourceVersion"])
    await publishing.settle()
    publishing.report_running()
    await room(publishing, [3000])


async def test_new_node_adds_room(publishing: EngineHarness) -> None:
    await publishing.start()
    await room(publishing, [4000])
    publishing.remote.put(objects.node("other"))
    publishing.remote.put(worker("other", "8"))  # A creation ignores the status.
    await room(publishing, [4000, 8000])


async def test_nodes_of_an_elastic_remote_are_room(publishing: EngineHarness) -> None:
    publishing.limits = OfferLimits(
        elastic={"cpu": 20_000, "example.com/gpu": 2},
        elastic_node={"cpu": 8_000, "example.com/gpu": 1},
    )
    await publishing.start()
    present, added = (await room(publishing, [4000, 8000])).groups
    assert (present.elastic, added.elastic, added.count) == (False, True, 2)
    assert added.free == {"cpu": 8_000, "example.com/gpu": 1}


def definition(resource: Resource, *, established: bool = True) -> Object:
    status = "True" if established else "False"
    return CUSTOM_RESOURCE_DEFINITIONS.manifest(
        {"name": str(resource)},
        spec={"versions": [{"name": resource.version, "served": True}]},
        status={"conditions": [{"type": "Established", "status": status}]},
    )


def put_definition(harness: EngineHarness, resource: Resource, *, established: bool = True) -> None:
    for _ in range(2):  # A creation ignores the status.
        harness.home.put(definition(resource, established=established))


@pytest.mark.parametrize("resource", [PLACEMENT_POLICIES, KUEUE_ADMISSION_CHECKS])
async def test_auto_publishes_once_home_serves_what_reads_it(
    publishing: EngineHarness, resource: Resource
) -> None:
    """At once, and without a request while home does not."""
    publishing.publish_room = "auto"
    await publishing.start()
    await publishing.home.until(lambda: publishing.home.open_watches(CUSTOM_RESOURCE_DEFINITIONS))
    publishing.clear_logs()
    publishing.remote.put(worker("worker", "8"))
    put_definition(publishing, resource, established=False)
    await publishing.settle()
    assert publishing.home.find(CONFIG_MAPS, NAME, NAMESPACE) is None
    assert not publishing.home.requests("GET", f"/apis/{resource.api_version}")
    put_definition(publishing, resource)
    await room(publishing, [8000])
    await publishing.home.until(
        lambda: not publishing.home.open_watches(CUSTOM_RESOURCE_DEFINITIONS)
    )


async def test_auto_asks_without_permission_to_watch(
    publishing: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_publisher, "ASK_SPACING", 0.01)
    monkeypatch.setattr(room_publisher, "ASK_AGAIN", 0.02)
    publishing.publish_room = "auto"
    publishing.home.fail(Fault(path="*/customresourcedefinitions*", code=403, times=None))
    await publishing.start()
    await publishing.home.until(
        lambda: len(publishing.home.requests("GET", "/apis/cluster-bridge.io/v1alpha1")) > 2
    )
    publishing.home.register(PLACEMENT_POLICIES)
    await room(publishing, [4000])


async def test_new_pod_is_accounted_for_though_the_groups_stay(
    publishing: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the amounts are rounded."""
    await publishing.start()
    await room(publishing, [4000])
    rounded = [NodeGroup(free={"cpu": 4000}, pods=10)]
    monkeypatch.setattr(room_publisher.RoomPublisher, "room", lambda _: (*rounded,))
    await _is_accounted_for(publishing, publishing.pod(containers=container("1m")))
    # For a placer that starts only now, the pod is in transit in this version.
    waiting = {"type": "PodScheduled", "status": "True"}
    publishing.home.update(PODS, "a", {"status": {"conditions": [waiting]}}, "default")
    await _is_accounted_for(publishing, publishing.home_pod())


async def _is_accounted_for(harness: EngineHarness, pod: Object) -> None:
    version = int(pod["metadata"]["resourceVersion"])

    def is_published() -> bool:
        config_map = harness.home.get(CONFIG_MAPS, NAME, NAMESPACE)
        return read_room(config_map).home_version >= version

    await harness.home.until(is_published)


async def test_auto_asks_for_a_later_installation_of_kueue(
    publishing: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although nothing else changes at home or in the remote, and no definition can be watched."""
    monkeypatch.setattr(room_publisher, "ASK_SPACING", 0.01)
    monkeypatch.setattr(room_publisher, "ASK_AGAIN", 0.01)
    publishing.publish_room = "auto"
    publishing.home.fail(Fault(path="*/customresourcedefinitions*", code=403, times=None))
    await publishing.start()
    await publishing.settle()
    assert publishing.home.find(CONFIG_MAPS, NAME, NAMESPACE) is None
    publishing.home.register(KUEUE_ADMISSION_CHECKS)
    await room(publishing, [4000])


async def test_unchanged_room_is_not_written_again(publishing: EngineHarness) -> None:
    await publishing.start()
    await room(publishing, [4000])
    publishing.clear_logs()
    publishing.remote.update(NODES, "worker", {"metadata": {"labels": {"zone": "b"}}})
    await publishing.settle()
    assert not [it for it in publishing.writes() if "configmaps" in it]


def test_config_map_of_others_is_rejected() -> None:
    for data in ({}, {"room": "x"}, {"room": "{}"}):
        with pytest.raises(RoomError):
            read_room({"data": data})
    assert read_room({"data": {"room": "[]", "homeVersion": "-1"}}).home_version == 0
