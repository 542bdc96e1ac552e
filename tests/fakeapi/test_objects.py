"""The fake's storage, as a client sees it: what kube-apiserver does, checked on its double."""

from __future__ import annotations

import pytest

from sync.kube import api_errors
from sync.kube.api_resources import (
    CONFIG_MAPS,
    LEASES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.objects import config_map, pod, secret


async def put(client: KubeClient, resource: Resource, name: str, body: Object) -> Object:
    return await client.request("PUT", resource.path(name, namespace="default"), body=body)


def names(objects: list[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


async def test_metadata_is_filled_in(client: KubeClient) -> None:
    sent = config_map("a")
    sent["metadata"] |= {"uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z"}
    meta = (await client.create(CONFIG_MAPS, sent, namespace="default"))["metadata"]
    assert meta["uid"] != "mine"
    assert meta["creationTimestamp"] > "2026"
    assert int(meta["resourceVersion"]) > 1
    assert "generation" not in meta


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (CONFIG_MAPS, config_map("Upper")),
        (CONFIG_MAPS, config_map("a", labels={"x": "a b"})),
        (SERVICES, {"metadata": {"name": "a.b"}, "spec": {}}),
        (CONFIG_MAPS, {"metadata": {}}),
        (PODS, {"metadata": {"name": "a"}, "spec": {"containers": []}}),
    ],
)
async def test_invalid_objects_are_rejected(
    client: KubeClient, resource: Resource, body: Object
) -> None:
    with pytest.raises(api_errors.Invalid):
        await client.create(resource, body, namespace="default")


async def test_body_that_contradicts_the_path_is_rejected(client: KubeClient) -> None:
    for body in (pod("a"), config_map("a", "other"), config_map("a")):
        if body["kind"] == "ConfigMap" and body["metadata"]["namespace"] == "default":
            body["metadata"]["resourceVersion"] = "5"
        with pytest.raises(api_errors.BadRequest):
            await client.create(CONFIG_MAPS, body, namespace="default")


async def test_dry_run_stores_nothing(api: FakeApi, client: KubeClient) -> None:
    path = CONFIG_MAPS.path(namespace="default")
    await client.request("POST", path, query={"dryRun": "All"}, body=config_map("a"))
    assert api.find(CONFIG_MAPS, "a", "default") is None


async def test_put_checks_the_version(api: FakeApi, client: KubeClient) -> None:
    old = api.put(config_map("a"))
    new = await put(client, CONFIG_MAPS, "a", {**old, "data": {"k": "v"}})
    assert new["metadata"]["uid"] == old["metadata"]["uid"]
    with pytest.raises(api_errors.Conflict):
        await put(client, CONFIG_MAPS, "a", {**old, "data": {"k": "w"}})
    with pytest.raises(api_errors.Conflict):
        await put(client, CONFIG_MAPS, "a", {**new, "metadata": {**new["metadata"], "uid": "x"}})
    with pytest.raises(api_errors.BadRequest):
        await put(client, CONFIG_MAPS, "a", config_map("b"))


async def test_put_without_a_version(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a"))
    assert (await put(client, CONFIG_MAPS, "a", config_map("a", data={"k": "v"})))["data"]
    lease: Object = {"metadata": {"name": "l"}, "spec": {}}
    await client.create(LEASES, lease, namespace="default")
    with pytest.raises(api_errors.Invalid):
        await put(client, LEASES, "l", lease)


async def test_write_without_change_keeps_the_version(api: FakeApi, client: KubeClient) -> None:
    old = api.put(pod("a", labels={"x": "y"}))
    for patch in ({}, {"metadata": {"labels": {"x": "y"}}}, {"status": {"phase": "Running"}}):
        assert await client.patch(PODS, "a", patch, namespace="default") == old
    assert await put(client, PODS, "a", old) == old
    assert api.store.history.revision == int(old["metadata"]["resourceVersion"])


async def test_status_subresource_is_separate(api: FakeApi, client: KubeClient) -> None:
    old = api.put(pod("a"))
    patch: Object = {"spec": {"priority": 9}, "status": {"phase": "Running"}}
    new = await client.patch(PODS, "a", patch, namespace="default", subresource="status")
    assert new["status"]["phase"] == "Running"
    assert new["spec"] == old["spec"]
    assert new["metadata"]["generation"] == 1


async def test_generation_counts_changes_of_the_spec(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("a"))
    patch: Object = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    new = await client.patch(PODS, "a", patch, namespace="default", kind="strategic")
    assert new["metadata"]["generation"] == 2
    assert new["spec"]["containers"][0]["volumeMounts"]


async def test_immutable_pod_fields(api: FakeApi, client: KubeClient) -> None:
    tolerations = api.put(pod("a"))["spec"]["tolerations"]
    more = [*tolerations, {"key": "x", "operator": "Exists"}]
    await client.patch(PODS, "a", {"spec": {"tolerations": more}}, namespace="default")
    await client.patch(PODS, "a", {"spec": {"activeDeadlineSeconds": 9}}, namespace="default")
    refused: list[Object] = [{"nodeName": "n"}, {"tolerations": []}, {"activeDeadlineSeconds": 10}]
    for spec in refused:
        with pytest.raises(api_errors.Invalid):
            await client.patch(PODS, "a", {"spec": spec}, namespace="default")


async def test_immutable_objects(api: FakeApi, client: KubeClient) -> None:
    api.put({**config_map("a", data={"k": "v"}), "immutable": True})
    with pytest.raises(api_errors.Invalid):
        await client.patch(CONFIG_MAPS, "a", {"data": {"k": "w"}}, namespace="default")
    api.put({**secret("s"), "type": "Opaque"})
    with pytest.raises(api_errors.Invalid):
        await client.patch(SECRETS, "s", {"type": "other"}, namespace="default")


async def test_cluster_ip_is_immutable(api: FakeApi, client: KubeClient) -> None:
    sent: Object = {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    made = await client.create(SERVICES, sent, namespace="default")
    assert made["spec"]["ports"][0]["targetPort"] == 80
    assert await put(client, SERVICES, "s", sent) == made
    with pytest.raises(api_errors.Invalid):
        await client.patch(SERVICES, "s", {"spec": {"clusterIP": "1.2.3.4"}}, namespace="default")


async def test_resize_and_ephemeral_containers(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("a", node="n"))

    async def patch(subresource: str, spec: Object) -> Object:
        change: Object = {"spec": spec}
        return await client.patch(
            PODS, "a", change, namespace="default", subresource=subresource, kind="strategic"
        )

    limits = {"limits": {"cpu": "2"}}
    new = await patch("resize", {"containers": [{"name": "main", "resources": limits}]})
    assert new["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    with pytest.raises(api_errors.Invalid):
        await patch("resize", {"containers": [{"name": "main", "image": "x"}]})
    new = await patch("ephemeralcontainers", {"ephemeralContainers": [{"name": "d", "image": "b"}]})
    assert new["spec"]["ephemeralContainers"][0]["terminationMessagePolicy"] == "File"
    with pytest.raises(api_errors.Invalid):
        await patch("ephemeralcontainers", {"ephemeralContainers": [{"name": "d", "image": "c"}]})


async def test_binding(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("a"))
    path = PODS.path("a", namespace="default", subresource="binding")
    body: Object = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}}
    await client.request("POST", path, body=body)
    bound = api.get(PODS, "a", "default")
    assert bound["spec"]["nodeName"] == "n"
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    assert bound["metadata"]["generation"] == 1
    with pytest.raises(api_errors.Conflict):
        await client.request("POST", path, body=body)


async def test_unbound_and_finished_pods_are_deleted_at_once(api: FakeApi) -> None:
    api.put(pod("unbound"))
    api.put({**pod("done", node="n"), "status": {"phase": "Succeeded"}})
    for name in ("unbound", "done"):
        api.delete(PODS, name, "default")
        assert api.find(PODS, name, "default") is None


async def test_grace_period_can_only_be_shortened(api: FakeApi) -> None:
    api.put(pod("a", node="n"))
    first = api.delete(PODS, "a", "default")["metadata"]
    assert first["deletionGracePeriodSeconds"] == 30
    assert first["generation"] == 2
    assert api.delete(PODS, "a", "default", grace_seconds=60)["metadata"] == first
    assert api.delete(PODS, "a", "default")["metadata"] == first
    second = api.delete(PODS, "a", "default", grace_seconds=10)["metadata"]
    assert second["deletionGracePeriodSeconds"] == 10
    assert second["deletionTimestamp"] < first["deletionTimestamp"]
    api.delete(PODS, "a", "default", grace_seconds=0)
    assert api.find(PODS, "a", "default") is None


async def test_finalizers_delay_deletion(api: FakeApi, client: KubeClient) -> None:
    held = config_map("a")
    held["metadata"]["finalizers"] = ["x/y"]
    api.put(held)
    assert "deletionTimestamp" in api.delete(CONFIG_MAPS, "a", "default")["metadata"]
    assert api.find(CONFIG_MAPS, "a", "default")
    await client.patch(CONFIG_MAPS, "a", {"metadata": {"finalizers": None}}, namespace="default")
    assert api.find(CONFIG_MAPS, "a", "default") is None


async def test_namespace_is_removed_with_its_last_pod(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a", "ns"))
    api.put(pod("p", "ns", node="n"))
    api.delete(NAMESPACES, "ns")
    assert api.get(NAMESPACES, "ns")["status"]["phase"] == "Terminating"
    assert api.find(CONFIG_MAPS, "a", "ns") is None
    with pytest.raises(api_errors.Forbidden, match="being terminated"):
        await client.create(CONFIG_MAPS, config_map("b", "ns"), namespace="ns")
    api.delete(PODS, "p", "ns", grace_seconds=0)
    assert api.find(NAMESPACES, "ns") is None
