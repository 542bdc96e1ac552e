"""Remote objects that `bridge leave` deletes, and unmanaged objects that it keeps."""

from __future__ import annotations

import asyncio

import pytest

from sync.cleanup import remote_inventory as cleanup
from sync.cleanup.remote_inventory import (
    ReadScope,
    delete_namespaces,
    delete_objects,
    delete_pods,
    take_inventory,
)
from sync.kube.api_errors import Unreachable
from sync.kube.api_resources import (
    CONFIG_MAPS,
    NAMESPACES,
    POD_METRICS,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, pod, secret
from tests.sync.discovery_documents import serve_discovery, serve_resource
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    used_by_annotation,
)
from translators.relay import agent_pod, reverse_plan
from translators.relay.reverse_plan import AgentPort


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls terminating pods often."""
    monkeypatch.setattr(cleanup, "POLL", 0.005)


@pytest.fixture(autouse=True)
def discovery(api: FakeApi) -> None:
    """The server serves discovery documents."""
    serve_discovery(api)


def ours(obj: Object, *, node: str = "virtual", home: str = IDENTITY.home_id) -> Object:
    """The object with the labels and annotations of the bridge."""
    meta = obj["metadata"]
    meta["labels"] = {LABEL_HOME: home, LABEL_NODE: node}
    meta["annotations"] = {
        ANNOTATION_HOME_NAMESPACE: "default",
        ANNOTATION_HOME_NAME: meta["name"],
        ANNOTATION_HOME_UID: "1",
    }
    return obj


def using(name: str, config: str) -> Object:
    """A pod that refers to a ConfigMap."""
    made = pod(name, REMOTE_NAMESPACE, node="worker")
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


def namespace(name: str = REMOTE_NAMESPACE) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def test_inventory_lists_this_nodes_objects_and_writes_nothing(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(ours(namespace()))
    api.put(ours(pod("mine", REMOTE_NAMESPACE)))
    api.put(ours(config_map("mine", REMOTE_NAMESPACE)))
    api.put(ours(secret("mine", REMOTE_NAMESPACE)))
    api.put(ours(pod("other-node", REMOTE_NAMESPACE), node="other"))
    api.put(ours(config_map("other-home", REMOTE_NAMESPACE), home="ffff"))
    api.put(pod("foreign", REMOTE_NAMESPACE))
    found = await take_inventory(client, IDENTITY)
    assert [p["metadata"]["name"] for p in found.pods] == ["mine"]
    assert [(kind.kind, copy["metadata"]["name"]) for kind, copy in found.copies] == [
        ("ConfigMap", "mine"),
        ("Secret", "mine"),
    ]
    assert [n["metadata"]["name"] for n in found.namespaces] == [REMOTE_NAMESPACE]
    assert found
    assert api.writes() == []


async def test_relay_agents_and_their_slices_are_listed(api: FakeApi, client: KubeClient) -> None:
    home = HomeNamespace("default")
    relay = agent_pod.agent_pod("relay", home, IDENTITY, image="i", node_selector={})
    relay["status"] = {"podIP": "10.9.0.1"}
    copy = {
        "metadata": {"name": "web", "namespace": REMOTE_NAMESPACE, "uid": "1"},
        "spec": {"ports": [{}]},
    }
    slot = AgentPort("web", "", 0)
    (slice_,) = reverse_plan.reverse_slices(copy, {slot: 20000}, api.put(relay), home, IDENTITY)
    api.put(slice_)
    found = await take_inventory(client, IDENTITY)
    assert [it["metadata"]["name"] for it in found.pods] == ["relay"]
    assert [kind.kind for kind, _ in found.copies] == ["EndpointSlice"]


async def test_copies_are_listed_in_the_prepared_namespaces_alone(
    api: FakeApi, client: KubeClient
) -> None:
    for namespace in (REMOTE_NAMESPACE, "another"):
        api.put(ours(secret("key", namespace)))
    prepared = [REMOTE_NAMESPACE]
    found = await take_inventory(client, IDENTITY, scope=ReadScope(prepared))
    [(resource, copy)] = found.copies
    assert (resource, copy["metadata"]["namespace"]) == (SECRETS, REMOTE_NAMESPACE)
    [per_node] = await cleanup.list_node_inventories(client, scope=ReadScope(prepared))
    assert len(per_node.copies) == 1
    assert not api.requests("GET", "/api/v1/secrets")


async def test_an_empty_remote_has_an_empty_inventory(client: KubeClient) -> None:
    assert not await take_inventory(client, IDENTITY)


async def test_copy_used_by_another_virtual_node_is_kept(api: FakeApi, client: KubeClient) -> None:
    api.put(ours(config_map("shared", REMOTE_NAMESPACE)))
    api.put(ours(config_map("mine", REMOTE_NAMESPACE)))
    api.put(ours(using("theirs", "shared"), node="other"))
    api.put(ours(using("mine", "mine")))
    found = await take_inventory(client, IDENTITY)
    assert [copy["metadata"]["name"] for _, copy in found.copies] == ["mine"]


async def test_shared_copies_name_their_user_and_can_be_transferred(
    api: FakeApi, client: KubeClient
) -> None:
    service: Object = {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}}
    api.put(ours({**service, "metadata": {"name": "web", "namespace": REMOTE_NAMESPACE}}))
    api.put(ours(config_map("shared", REMOTE_NAMESPACE)))
    api.put(ours(using("theirs", "shared"), node="other"))
    found = await take_inventory(client, IDENTITY)
    assert [(it.resource, it.copy["metadata"]["name"], it.user) for it in found.shared] == [
        (CONFIG_MAPS, "shared", "other"),
        (SERVICES, "web", "other"),
    ]
    # One of them has been re-created.
    api.remove(CONFIG_MAPS, "shared", REMOTE_NAMESPACE)
    foreign = api.put(config_map("shared", REMOTE_NAMESPACE))
    await cleanup.transfer_shared_copies(client, found.shared)
    labels = api.get(SERVICES, "web", REMOTE_NAMESPACE)["metadata"]["labels"]
    assert labels[LABEL_NODE] == "other"
    assert api.get(CONFIG_MAPS, "shared", REMOTE_NAMESPACE) == foreign


async def test_leftovers_of_a_removed_node_belong_to_this_node(
    api: FakeApi, client: KubeClient
) -> None:
    """Of two nodes that shared a namespace the last one that leaves removes it, and what is in it;
    but nothing of one that is still there, with pods or without."""
    for node in ("gone", "empty", "busy"):
        api.put(ours(namespace(f"of-{node}"), node=node))
        api.put(ours(config_map(f"of-{node}", REMOTE_NAMESPACE), node=node))
    api.put(ours(pod("theirs", REMOTE_NAMESPACE), node="busy"))
    found = await take_inventory(client, IDENTITY, others={"empty"})
    assert found.pods == []
    assert [copy["metadata"]["name"] for _, copy in found.copies] == ["of-gone"]
    assert [it["metadata"]["name"] for it in found.namespaces] == ["of-gone"]


async def test_pods_are_deleted_with_their_own_grace_and_awaited(
    api: FakeApi, client: KubeClient
) -> None:
    pods = [api.put(ours(using(name, "c"))) for name in "ab"]
    counts: list[int] = []
    removing = asyncio.create_task(delete_pods(client, pods, waiting=counts.append))
    await api.until(lambda: counts)
    marked = api.get(PODS, "a", REMOTE_NAMESPACE)["metadata"]
    assert marked["deletionGracePeriodSeconds"] == 30
    api.remove(PODS, "a", REMOTE_NAMESPACE)
    await api.until(lambda: counts == [2, 1])
    assert not removing.done()
    api.remove(PODS, "b", REMOTE_NAMESPACE)
    await removing
    assert counts == [2, 1]


async def test_replaced_pod_is_neither_deleted_nor_awaited(
    api: FakeApi, client: KubeClient
) -> None:
    old = api.put(ours(pod("a", REMOTE_NAMESPACE)))
    api.remove(PODS, "a", REMOTE_NAMESPACE)
    new = api.put(pod("a", REMOTE_NAMESPACE))
    await delete_pods(client, [old], waiting=lambda _: None)
    assert api.get(PODS, "a", REMOTE_NAMESPACE) == new


async def test_only_the_listed_copies_are_deleted(api: FakeApi, client: KubeClient) -> None:
    api.put(ours(config_map("a", REMOTE_NAMESPACE)))
    api.put(ours(secret("b", REMOTE_NAMESPACE)))
    found = await take_inventory(client, IDENTITY)
    api.remove(SECRETS, "b", REMOTE_NAMESPACE)
    api.put(secret("b", REMOTE_NAMESPACE))
    await delete_objects(client, found.copies)
    assert api.find(CONFIG_MAPS, "a", REMOTE_NAMESPACE) is None
    assert api.find(SECRETS, "b", REMOTE_NAMESPACE)


async def test_namespace_with_only_automatic_objects_is_deleted(
    api: FakeApi, client: KubeClient
) -> None:
    made = api.put(ours(namespace()))
    api.put(config_map("kube-root-ca.crt", REMOTE_NAMESPACE))
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount"}
    api.put({**account, "metadata": {"name": "default", "namespace": REMOTE_NAMESPACE}})
    about = {"kind": "Pod", "namespace": REMOTE_NAMESPACE, "name": "gone"}
    event: Object = {"apiVersion": "v1", "kind": "Event", "involvedObject": about}
    api.put({**event, "metadata": {"name": "e", "namespace": REMOTE_NAMESPACE}})
    assert await delete_namespaces(client, [made]) == []
    assert api.find(NAMESPACES, REMOTE_NAMESPACE) is None


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (config_map("theirs", REMOTE_NAMESPACE), "it holds ConfigMap theirs"),
        (
            {
                "apiVersion": "example.com/v1",
                "kind": "Widget",
                "metadata": {"name": "w", "namespace": REMOTE_NAMESPACE},
            },
            "it holds Widget w",
        ),
    ],
    ids=["a ConfigMap", "a custom resource"],
)
async def test_namespace_with_an_unmanaged_object_is_kept(
    api: FakeApi, client: KubeClient, held: Object, why: str
) -> None:
    made = api.put(ours(namespace()))
    api.put(held)
    assert await delete_namespaces(client, [made]) == [(REMOTE_NAMESPACE, why)]
    assert "deletionTimestamp" not in api.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]


async def test_namespace_with_an_unlistable_resource_is_kept(
    api: FakeApi, client: KubeClient
) -> None:
    made = api.put(ours(namespace()))
    api.fail(Fault("GET", "*/widgets", code=403, times=None))
    ((name, why),) = await delete_namespaces(client, [made])
    assert name == REMOTE_NAMESPACE
    assert why == "widgets.example.com cannot be listed"
    assert api.writes() == []


async def test_namespace_is_kept_when_discovery_of_a_group_fails(
    api: FakeApi, client: KubeClient
) -> None:
    """As for an aggregated API whose server is away: it may hold objects all the same."""
    made = api.put(ours(namespace()))
    api.fail(Fault("GET", "/apis/example.com/v1", code=503, times=None))
    ((name, why),) = await delete_namespaces(client, [made])
    assert name == REMOTE_NAMESPACE
    assert "example.com/v1" in why
    assert api.writes() == []


@pytest.mark.parametrize(
    "resource",
    [
        Resource("example.com", "v1alpha2", "routes", "Route"),
        Resource("example.com", "v1", "endpoints", "Endpoint"),
        Resource("example.com", "v1", "serviceaccounts", "ServiceAccount"),
    ],
    ids=[
        "served in a version that the group does not prefer",
        "a CRD named endpoints",
        "named default",
    ],
)
async def test_a_custom_resource_of_any_version_and_name_keeps_its_namespace(
    api: FakeApi, client: KubeClient, resource: Resource
) -> None:
    made = api.put(ours(namespace()))
    serve_resource(api, resource)
    meta = {"name": "default", "namespace": REMOTE_NAMESPACE}
    api.put({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta})
    assert await delete_namespaces(client, [made]) == [
        (REMOTE_NAMESPACE, f"it holds {resource.kind} default")
    ]
    assert "deletionTimestamp" not in api.get(NAMESPACES, REMOTE_NAMESPACE)["metadata"]


async def test_a_custom_resource_with_the_kind_of_another_keeps_its_namespace(
    api: FakeApi, client: KubeClient
) -> None:
    """As Longhorn's Node, whose conditions are a map."""
    made = api.put(ours(namespace()))
    nodes = Resource("longhorn.io", "v1beta1", "nodes", "Node")
    serve_resource(api, nodes)
    meta = {"name": "a", "namespace": REMOTE_NAMESPACE}
    api.put(nodes.manifest(meta, status={"conditions": {"Ready": {"type": "Ready"}}}))
    assert await delete_namespaces(client, [made]) == [(REMOTE_NAMESPACE, "it holds Node a")]
    assert api.writes() == []


async def test_an_incomplete_page_keeps_its_namespace(api: FakeApi, client: KubeClient) -> None:
    made = api.put(ours(namespace()))
    page = b'{"metadata": {"continue": "next"}, "items": []}'
    api.fail(Fault("GET", "*/widgets", code=200, raw=page, times=None))
    ((_, why),) = await delete_namespaces(client, [made])
    assert why == "it holds more widgets.example.com"
    assert api.writes() == []


async def test_an_api_server_that_has_just_started_keeps_the_namespace(
    api: FakeApi, client: KubeClient
) -> None:
    """It responds before it has listed its API groups: those of custom resources are missing."""
    made = api.put(ours(namespace()))
    groups = b'{"groups": [{"name": "apiregistration.k8s.io", "versions": []}]}'
    api.fail(Fault("GET", "/apis", code=200, raw=groups, times=None))
    ((_, why),) = await delete_namespaces(client, [made])
    assert why == "the API server does not list its API groups yet"
    assert api.writes() == []


async def test_a_resource_that_several_versions_serve_is_listed_once(
    api: FakeApi, client: KubeClient
) -> None:
    serve_resource(api, Resource("example.com", "v2", "widgets", "Widget"))
    assert await cleanup.reason_to_keep(client, {"metadata": {"name": REMOTE_NAMESPACE}}) == ""
    (request,) = api.requests("GET", "*/widgets")
    assert request.path == f"/apis/example.com/v1/namespaces/{REMOTE_NAMESPACE}/widgets"


@pytest.mark.parametrize("code", [404, 500, 503])
async def test_a_group_version_whose_discovery_fails_keeps_the_namespace(
    api: FakeApi, client: KubeClient, code: int
) -> None:
    made = api.put(ours(namespace()))
    serve_resource(api, Resource("example.com", "v1alpha2", "routes", "Route"))
    api.fail(Fault("GET", "/apis/example.com/v1alpha2", code=code, times=None))
    ((_, why),) = await delete_namespaces(client, [made])
    assert "discovery of example.com/v1alpha2 failed" in why
    assert api.writes() == []


async def test_resource_removed_meanwhile_counts_as_empty(api: FakeApi, client: KubeClient) -> None:
    made = api.put(ours(namespace()))
    api.fail(Fault("GET", "*/widgets", code=404, times=None))
    assert await delete_namespaces(client, [made]) == []


async def test_metrics_do_not_keep_a_namespace(api: FakeApi, client: KubeClient) -> None:
    """The metrics API still lists deleted pods, and the credential may lack access to it."""
    made = api.put(ours(namespace()))
    api.register(POD_METRICS)
    api.fail(Fault("GET", "*/metrics.k8s.io/*", code=403, times=None))
    assert await delete_namespaces(client, [made]) == []
    assert api.find(NAMESPACES, REMOTE_NAMESPACE) is None


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_namespace_whose_deletion_is_rejected_with_409_stays_with_the_reason(
    api: FakeApi, client: KubeClient, method: str
) -> None:
    made = ours(namespace())
    made["metadata"]["annotations"][used_by_annotation("virtual")] = "true"
    made = api.put(made)
    api.fail(
        Fault(
            method,
            f"*/namespaces/{REMOTE_NAMESPACE}",
            code=409,
            message="denied by a webhook",
            times=None,
        )
    )
    kept = await delete_namespaces(client, [made], has_ended=lambda node: node == "virtual")
    assert kept == [(REMOTE_NAMESPACE, "it could not be deleted: denied by a webhook")]


async def test_without_namespaces_no_request_is_sent(api: FakeApi, client: KubeClient) -> None:
    assert await delete_namespaces(client, []) == []
    assert api.log == []


async def test_unreachable_remote_is_an_error(api: FakeApi, client: KubeClient) -> None:
    made = api.put(ours(namespace()))
    api.fail(Fault("GET", "*/widgets", drop="before", times=None))
    with pytest.raises(Unreachable):
        await delete_namespaces(client, [made])
