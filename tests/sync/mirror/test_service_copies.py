"""Remote copies of the Services in a namespace with pods on the node, and of home's endpoints."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sync.kube.api_resources import ENDPOINT_SLICES, EVENTS, PODS, SERVICES, Object
from sync.runtime import workqueue
from tests.fakeapi import Fault
from tests.sync.engine_harness import IDENTITY, NODE, REMOTE_NAMESPACE, EngineHarness
from translators.mirror.endpoint_slice import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGER, remote_name
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_MIRROR,
    LABEL_HOME,
    LABEL_NODE,
)

SLICE = remote_name("web-1", IDENTITY)


def service(name: str = "web", **spec: Any) -> Object:
    meta = {"name": name, "namespace": "default"}
    wanted = {"selector": {"app": name}, "ports": [{"port": 80}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": wanted}


def slice_of(name: str = "web", *addresses: str, node: str = "worker") -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": "default", "labels": {LABEL_SERVICE: name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "nodeName": node} for address in addresses],
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    }


async def with_pod(harness: EngineHarness) -> None:
    """An engine with one running pod."""
    await harness.start()
    harness.pod()
    await harness.settle()
    harness.report_running()
    await harness.settle()
    harness.clear_logs()


def there(harness: EngineHarness, name: str = "web") -> Object | None:
    """The copy of a Service."""
    return harness.remote.find(SERVICES, name, REMOTE_NAMESPACE)


def addresses(harness: EngineHarness) -> list[str]:
    """The addresses in the bridge's slice, if it exists."""
    found = harness.remote.find(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE) or {}
    return [endpoint["addresses"][0] for endpoint in found.get("endpoints", ())]


async def test_all_services_exist_before_the_first_pod_of_a_namespace(
    harness: EngineHarness,
) -> None:
    harness.home.put(service("web", type="LoadBalancer"))
    harness.home.put(service("unrelated"))
    harness.home.put(service("kubernetes"))
    await harness.start()
    harness.pod()
    await harness.settle()
    posts = [entry.path for entry in harness.remote.writes() if entry.method == "POST"]
    kinds = [path.rpartition("/")[2] for path in posts]
    assert kinds == ["namespaces", "services", "services", "pods"]
    assert there(harness, "kubernetes") is None
    assert (there(harness) or {})["spec"]["type"] == "ClusterIP"


async def test_field_that_the_remote_does_not_keep_is_reported_and_not_sent_again(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workqueue, "RETRY_CAP", 60.0)
    harness.remote.store.webhook = lambda obj: obj.get("spec", {}).pop("trafficDistribution", None)
    await with_pod(harness)
    harness.home.put(service(trafficDistribution="PreferClose"))
    harness.home.put(service("plain"))
    (event,) = await harness.events_with_reason("FieldDropped")
    assert event["involvedObject"]["name"] == "web"
    assert event["message"].startswith("remote: spec.trafficDistribution: ")
    harness.clear_logs()
    for number in range(10):
        # An update of the status by another client is no reason to write.
        status = {"conditions": [{"type": f"Type{number}", "status": "True"}]}
        harness.remote.update(SERVICES, "web", {"status": status}, REMOTE_NAMESPACE)
        await asyncio.sleep(10)
    assert not harness.remote.writes("*/services*")
    # A change by another client is repaired, and one of the home cluster is sent.
    harness.remote.update(SERVICES, "web", {"spec": {"selector": {"app": "x"}}}, REMOTE_NAMESPACE)
    await harness.settle()
    assert (there(harness) or {})["spec"]["selector"] == {"app": "web"}
    harness.home.update(SERVICES, "web", {"spec": {"selector": {"app": "y"}}}, "default")
    await harness.settle()
    assert (there(harness) or {})["spec"]["selector"] == {"app": "y"}
    assert len(harness.remote.writes("*/services/web")) == 2
    reasons = [event["reason"] for event in harness.home.objects(EVENTS)]
    assert reasons.count("FieldDropped") == 1
    assert "RemoteOverwrites" not in reasons
    # The remote keeps the field now.
    harness.remote.store.webhook = None
    harness.home.update(SERVICES, "web", {"spec": {"selector": {"app": "z"}}}, "default")
    await harness.settle()
    assert (there(harness) or {})["spec"]["trafficDistribution"] == "PreferClose"


async def test_default_that_the_remote_adds_is_no_dropped_field(harness: EngineHarness) -> None:
    await with_pod(harness)
    harness.home.put(service())
    await harness.settle()
    harness.home.update(SERVICES, "web", {"spec": {"ports": [{"port": 81}]}}, "default")
    await harness.settle()
    (port,) = (there(harness) or {})["spec"]["ports"]
    assert port == {"port": 81, "protocol": "TCP", "targetPort": 81}
    assert harness.home.objects(EVENTS) == []


async def test_a_service_follows_its_changes_deletion_and_return(harness: EngineHarness) -> None:
    await with_pod(harness)
    harness.home.put(service())
    await harness.settle()
    assert there(harness)
    harness.home.put(service(ports=[{"port": 8080}], selector=None))
    await harness.settle()
    spec = (there(harness) or {})["spec"]
    assert spec["ports"][0]["port"] == 8080
    assert "selector" not in spec
    harness.home.remove(SERVICES, "web", "default")
    await harness.settle()
    assert there(harness) is None
    harness.home.put(service())
    await harness.settle()
    assert there(harness)


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
    harness: EngineHarness, before: Object, after: Object, shows: Object
) -> None:
    harness.home.put(service(**before))
    await with_pod(harness)
    harness.home.remove(SERVICES, "web", "default")
    harness.home.put(service(**after))
    await harness.settle()
    spec = (there(harness) or {})["spec"]
    assert shows.items() <= spec.items()
    assert ("externalName" in spec) == ("externalName" in shows)


async def test_an_annotation_keeps_a_service_at_home_also_later(harness: EngineHarness) -> None:
    harness.home.put(service())
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    assert addresses(harness) == ["10.0.0.1"]
    away: Object = {"metadata": {"annotations": {ANNOTATION_MIRROR: "false"}}}
    harness.home.update(SERVICES, "web", away, "default")
    await harness.settle()
    assert there(harness) is None
    assert harness.remote.find(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE) is None
    back: Object = {"metadata": {"annotations": {ANNOTATION_MIRROR: None}}}
    harness.home.update(SERVICES, "web", back, "default")
    await harness.settle()
    assert there(harness)
    assert addresses(harness) == ["10.0.0.1"]


async def test_services_and_slices_are_deleted_after_the_last_remote_pod(
    harness: EngineHarness,
) -> None:
    harness.home.put(service())
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    assert there(harness), "the pod is still ending"
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert there(harness) is None
    assert harness.remote.find(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE) is None
    harness.pod("b")
    await harness.settle()
    assert there(harness)
    assert addresses(harness) == ["10.0.0.1"]


async def test_services_stay_for_the_pods_of_another_virtual_node(harness: EngineHarness) -> None:
    harness.home.put(service())
    await with_pod(harness)
    mine = harness.remote.get(PODS, "a", REMOTE_NAMESPACE)
    labels = {**mine["metadata"]["labels"], LABEL_NODE: "other"}
    meta = {
        "name": "of-another",
        "namespace": REMOTE_NAMESPACE,
        "labels": labels,
        "annotations": mine["metadata"]["annotations"] | {ANNOTATION_HOME_NAME: "x"},
    }
    harness.remote.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": mine["spec"]})
    harness.home.delete(PODS, "a", "default")
    await harness.settle()
    harness.remote.remove(PODS, "a", REMOTE_NAMESPACE)
    await harness.settle()
    assert there(harness)
    harness.remote.remove(PODS, "of-another", REMOTE_NAMESPACE)
    await harness.settle()
    assert there(harness) is None


async def test_unmanaged_service_does_not_block_the_pod(harness: EngineHarness) -> None:
    """The unmanaged Service does not get home's endpoints."""
    harness.home.put(service())
    harness.home.put(slice_of("web", "10.0.0.1"))
    labels = {LABEL_HOME: IDENTITY.home_id}
    namespace: Object = {"name": REMOTE_NAMESPACE, "labels": labels}
    harness.remote.put({"apiVersion": "v1", "kind": "Namespace", "metadata": namespace})
    theirs = harness.remote.put(
        {**service(), "metadata": {"name": "web", "namespace": REMOTE_NAMESPACE}}
    )
    await harness.start()
    harness.pod(labels={"app": "web"})
    await harness.settle(waiting=True)
    harness.pod("b", labels={"app": "web"})
    await harness.settle(waiting=True)
    assert harness.remote_pod()
    assert harness.remote_pod("b")
    assert there(harness) == theirs
    assert harness.remote.objects(ENDPOINT_SLICES) == []
    assert len(await harness.events_with_reason("RemoteClash")) == 1


async def test_rejected_service_does_not_block_the_pod(harness: EngineHarness) -> None:
    harness.home.put(service())
    harness.remote.fail(Fault("POST", "*/services", code=403))
    await harness.start()
    harness.pod()
    await harness.settle(waiting=True)
    assert harness.remote_pod()


async def test_homes_endpoints_are_in_the_remote_without_the_pods_of_the_node(
    harness: EngineHarness,
) -> None:
    mixed = slice_of("web", "10.0.0.1", "10.0.0.2")
    mixed["endpoints"][1]["nodeName"] = NODE
    harness.home.put(service())
    harness.home.put(mixed)
    harness.home.put(slice_of("without-service", "10.0.0.9"))
    await with_pod(harness)
    assert addresses(harness) == ["10.0.0.1"]
    copy = harness.remote.get(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE)
    assert copy["metadata"]["labels"][LABEL_MANAGED_BY] == MANAGER
    assert len(harness.remote.objects(ENDPOINT_SLICES)) == 1


async def test_a_change_of_endpoints_is_one_patch_of_one_slice(harness: EngineHarness) -> None:
    harness.home.put(service())
    harness.home.put(service("other"))
    harness.home.put(slice_of("other", "10.0.0.8"))
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    harness.home.put(slice_of("web", "10.0.0.1", "10.0.0.2"))
    await harness.settle()
    assert addresses(harness) == ["10.0.0.1", "10.0.0.2"]
    path = f"/apis/discovery.k8s.io/v1/namespaces/{REMOTE_NAMESPACE}/endpointslices/{SLICE}"
    assert harness.writes() == [f"remote PATCH {path}"]
    harness.home.put(slice_of("web", "10.0.0.2", node=NODE))
    await harness.settle()
    assert harness.remote.find(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE) is None, (
        "none of them is home's"
    )


async def test_slices_come_and_go_with_their_service(harness: EngineHarness) -> None:
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    assert addresses(harness) == []
    harness.home.put(service(selector=None))
    await harness.settle()
    assert addresses(harness) == ["10.0.0.1"]
    harness.home.remove(SERVICES, "web", "default")
    await harness.settle()
    assert harness.remote.objects(ENDPOINT_SLICES) == []


async def test_changed_slice_is_restored_and_unmanaged_ones_are_left_alone(
    harness: EngineHarness,
) -> None:
    harness.home.put(service())
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    # The remote's controller copies all labels of a Service to its own slices.
    own = slice_of("web", "10.9.0.1")
    labels = {**(there(harness) or {})["metadata"]["labels"], LABEL_SERVICE: "web"}
    own["metadata"] = {"name": "web-abcde", "namespace": REMOTE_NAMESPACE, "labels": labels}
    theirs = harness.remote.put(own)
    harness.remote.update(ENDPOINT_SLICES, SLICE, {"endpoints": []}, REMOTE_NAMESPACE)
    await harness.settle()
    assert addresses(harness) == ["10.0.0.1"]
    harness.remote.remove(ENDPOINT_SLICES, SLICE, REMOTE_NAMESPACE)
    await harness.settle()
    assert addresses(harness) == ["10.0.0.1"]
    assert harness.remote.get(ENDPOINT_SLICES, "web-abcde", REMOTE_NAMESPACE) == theirs


async def test_a_restart_writes_nothing(harness: EngineHarness) -> None:
    harness.home.put(service())
    harness.home.put(service("headless", clusterIP="None"))
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    await harness.stop()
    harness.clear_logs()
    await harness.start()
    assert harness.writes() == []


async def test_changed_network_at_the_next_join_corrects_slices(harness: EngineHarness) -> None:
    harness.home.put(service())
    harness.home.put(slice_of("web", "10.0.0.1"))
    await with_pod(harness)
    harness.remote.update(PODS, "a", {"status": {"podIP": "10.9.0.1"}}, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.status()["podIP"] == "10.9.0.1"
    await harness.stop()
    harness.policy = replace(harness.policy, network="none")
    harness.clear_logs()
    await harness.start()
    assert there(harness)
    assert harness.remote.objects(ENDPOINT_SLICES) == []
    assert "podIP" not in harness.status()
    assert not [entry for entry in harness.home.requests() if "endpointslices" in entry.path]
    await harness.stop()
    harness.policy = replace(harness.policy, network="flat")
    await harness.start()
    assert addresses(harness) == ["10.0.0.1"]
    assert harness.status()["podIP"] == "10.9.0.1"
