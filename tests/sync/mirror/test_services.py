"""Services of a namespace with pods on the node, and home's endpoints of them, in the remote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sync.kube.resources import ENDPOINT_SLICES, PODS, SERVICES, Object
from tests.fakeapi import Fault
from tests.sync.world import IDENTITY, NODE, THERE, World
from translators.identity import ANNOTATION_HOME_NAME, ANNOTATION_MIRROR, LABEL_HOME, LABEL_NODE
from translators.mirror.endpointslice import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGER, remote_name

SLICE = remote_name("web-1", IDENTITY)


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": name}, "ports": [{"port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


def slice_of(name: str = "web", *addresses: str, node: str = "worker") -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-1",
            "namespace": "default",
            "labels": {LABEL_SERVICE: name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "nodeName": node} for address in addresses],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }


async def with_pod(world: World) -> None:
    """An engine with one running pod."""
    await world.start()
    world.pod()
    await world.settle()
    world.runs()
    await world.settle()
    world.clear_logs()


def there(world: World, name: str = "web") -> Object | None:
    """The copy of a Service."""
    return world.remote.find(SERVICES, name, THERE)


def addresses(world: World) -> list[str]:
    """The addresses in our slice, if it is there."""
    found = world.remote.find(ENDPOINT_SLICES, SLICE, THERE) or {}
    return [endpoint["addresses"][0] for endpoint in found.get("endpoints", ())]


# -- Services ------------------------------------------------------------------------------


async def test_all_services_exist_before_the_first_pod_of_a_namespace(world: World) -> None:
    world.home.put(service("web", type="LoadBalancer"))
    world.home.put(service("unrelated"))
    world.home.put(service("kubernetes"))
    await world.start()
    world.pod()
    await world.settle()
    posts = [entry.path for entry in world.remote.writes() if entry.method == "POST"]
    kinds = [path.rpartition("/")[2] for path in posts]
    assert kinds == ["namespaces", "services", "services", "pods"]
    assert there(world, "kubernetes") is None
    assert (there(world) or {})["spec"]["type"] == "ClusterIP"


async def test_a_service_follows_its_changes_deletion_and_return(world: World) -> None:
    await with_pod(world)
    world.home.put(service())
    await world.settle()
    assert there(world)
    world.home.put(service(ports=[{"port": 8080}], selector=None))
    await world.settle()
    spec = (there(world) or {})["spec"]
    assert spec["ports"][0]["port"] == 8080
    assert "selector" not in spec
    world.home.remove(SERVICES, "web", "default")
    await world.settle()
    assert there(world) is None
    world.home.put(service())
    await world.settle()
    assert there(world)


@pytest.mark.parametrize(
    ("before", "after", "shows"),
    [
        ({}, {"clusterIP": "None"}, {"clusterIP": "None"}),
        ({"clusterIP": "None"}, {"clusterIP": "10.96.0.7"}, {"type": "ClusterIP"}),
        (
            {},
            {"type": "ExternalName", "externalName": "db.example.com", "ports": None},
            {"type": "ExternalName", "externalName": "db.example.com"},
        ),
        (
            {"type": "ExternalName", "externalName": "db.example.com"},
            {"type": "ClusterIP", "externalName": None},
            {"type": "ClusterIP"},
        ),
    ],
    ids=["to headless", "from headless", "to another name", "from another name"],
)
async def test_a_change_of_type_follows(
    world: World, before: Object, after: Object, shows: Object
) -> None:
    world.home.put(service(**before))
    await with_pod(world)
    world.home.remove(SERVICES, "web", "default")
    world.home.put(service(**after))
    await world.settle()
    spec = (there(world) or {})["spec"]
    assert shows.items() <= spec.items()
    assert ("externalName" in spec) == ("externalName" in shows)


async def test_an_annotation_keeps_a_service_at_home_also_later(world: World) -> None:
    world.home.put(service())
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    assert addresses(world) == ["10.0.0.1"]
    away: Object = {"metadata": {"annotations": {ANNOTATION_MIRROR: "false"}}}
    world.home.update(SERVICES, "web", away, "default")
    await world.settle()
    assert there(world) is None
    assert world.remote.find(ENDPOINT_SLICES, SLICE, THERE) is None
    back: Object = {"metadata": {"annotations": {ANNOTATION_MIRROR: None}}}
    world.home.update(SERVICES, "web", back, "default")
    await world.settle()
    assert there(world)
    assert addresses(world) == ["10.0.0.1"]


async def test_services_and_slices_are_deleted_after_the_last_remote_pod(
    world: World,
) -> None:
    world.home.put(service())
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    world.home.delete(PODS, "a", "default")
    await world.settle()
    assert there(world), "the pod is still ending"
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert there(world) is None
    assert world.remote.find(ENDPOINT_SLICES, SLICE, THERE) is None
    world.pod("b")
    await world.settle()
    assert there(world)
    assert addresses(world) == ["10.0.0.1"]


async def test_services_stay_for_the_pods_of_another_virtual_node(world: World) -> None:
    world.home.put(service())
    await with_pod(world)
    mine = world.remote.get(PODS, "a", THERE)
    labels = {**mine["metadata"]["labels"], LABEL_NODE: "other"}
    meta = {
        "name": "of-another",
        "namespace": THERE,
        "labels": labels,
        "annotations": mine["metadata"]["annotations"] | {ANNOTATION_HOME_NAME: "x"},
    }
    world.remote.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": mine["spec"]})
    world.home.delete(PODS, "a", "default")
    await world.settle()
    world.remote.remove(PODS, "a", THERE)
    await world.settle()
    assert there(world)
    world.remote.remove(PODS, "of-another", THERE)
    await world.settle()
    assert there(world) is None


async def test_unmanaged_service_does_not_block_the_pod(world: World) -> None:
    """And home's endpoints are not made its own."""
    world.home.put(service())
    world.home.put(slice_of("web", "10.0.0.1"))
    labels = {LABEL_HOME: IDENTITY.home_id}
    namespace: Object = {"name": THERE, "labels": labels}
    world.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    theirs = world.remote.put({**service(), "metadata": {"name": "web", "namespace": THERE}})
    await world.start()
    world.pod(labels={"app": "web"})
    await world.settle(waiting=True)
    world.pod("b", labels={"app": "web"})
    await world.settle(waiting=True)
    assert world.remote_pod()
    assert world.remote_pod("b")
    assert there(world) == theirs
    assert world.remote.objects(ENDPOINT_SLICES) == []
    assert len(await world.events_with_reason("RemoteClash")) == 1


async def test_rejected_service_does_not_block_the_pod(
    world: World,
) -> None:
    world.home.put(service())
    world.remote.fail(Fault("POST", "*/services", code=403))
    await world.start()
    world.pod()
    await world.settle(waiting=True)
    assert world.remote_pod()


# -- EndpointSlices ------------------------------------------------------------------------


async def test_homes_endpoints_are_in_the_remote_without_the_pods_of_the_node(
    world: World,
) -> None:
    mixed = slice_of("web", "10.0.0.1", "10.0.0.2")
    mixed["endpoints"][1]["nodeName"] = NODE
    world.home.put(service())
    world.home.put(mixed)
    world.home.put(slice_of("of-nobody", "10.0.0.9"))
    await with_pod(world)
    assert addresses(world) == ["10.0.0.1"]
    copy = world.remote.get(ENDPOINT_SLICES, SLICE, THERE)
    assert copy["metadata"]["labels"][LABEL_MANAGED_BY] == MANAGER
    assert len(world.remote.objects(ENDPOINT_SLICES)) == 1


async def test_a_change_of_endpoints_is_one_patch_of_one_slice(world: World) -> None:
    world.home.put(service())
    world.home.put(service("other"))
    world.home.put(slice_of("other", "10.0.0.8"))
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    world.home.put(slice_of("web", "10.0.0.1", "10.0.0.2"))
    await world.settle()
    assert addresses(world) == ["10.0.0.1", "10.0.0.2"]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{THERE}/endpointslices/{SLICE}"
    assert world.writes() == [f"remote PATCH {path}"]
    world.home.put(slice_of("web", "10.0.0.2", node=NODE))
    await world.settle()
    assert world.remote.find(ENDPOINT_SLICES, SLICE, THERE) is None, "none of them is home's"


async def test_slices_come_and_go_with_their_service(world: World) -> None:
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    assert addresses(world) == []
    world.home.put(service(selector=None))
    await world.settle()
    assert addresses(world) == ["10.0.0.1"]
    world.home.remove(SERVICES, "web", "default")
    await world.settle()
    assert world.remote.objects(ENDPOINT_SLICES) == []


async def test_changed_slice_is_restored_and_unmanaged_ones_are_left_alone(
    world: World,
) -> None:
    world.home.put(service())
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    # The remote's controller copies a Service's labels, ours included, to its own slices.
    own = slice_of("web", "10.9.0.1")
    labels = {**(there(world) or {})["metadata"]["labels"], LABEL_SERVICE: "web"}
    own["metadata"] = {"name": "web-abcde", "namespace": THERE, "labels": labels}
    theirs = world.remote.put(own)
    world.remote.update(ENDPOINT_SLICES, SLICE, {"endpoints": []}, THERE)
    await world.settle()
    assert addresses(world) == ["10.0.0.1"]
    world.remote.remove(ENDPOINT_SLICES, SLICE, THERE)
    await world.settle()
    assert addresses(world) == ["10.0.0.1"]
    assert world.remote.get(ENDPOINT_SLICES, "web-abcde", THERE) == theirs


async def test_a_restart_writes_nothing(world: World) -> None:
    world.home.put(service())
    world.home.put(service("headless", clusterIP="None"))
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    await world.stop()
    world.clear_logs()
    await world.start()
    assert world.writes() == []


async def test_changed_network_at_the_next_join_corrects_slices(world: World) -> None:
    world.home.put(service())
    world.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(world)
    world.remote.update(PODS, "a", {"status": {"podIP": "10.9.0.1"}}, THERE)
    await world.settle()
    assert world.status()["podIP"] == "10.9.0.1"
    await world.stop()
    world.policy = replace(world.policy, network="none")
    world.clear_logs()
    await world.start()
    assert there(world)
    assert world.remote.objects(ENDPOINT_SLICES) == []
    assert "podIP" not in world.status()
    assert not [entry for entry in world.home.requests() if "endpointslices" in entry.path]
    await world.stop()
    world.policy = replace(world.policy, network="flat")
    await world.start()
    assert addresses(world) == ["10.0.0.1"]
    assert world.status()["podIP"] == "10.9.0.1"
