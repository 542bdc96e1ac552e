"""`bridge prune`: lists and removes leftovers in a remote without any home."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from aiohttp import web

from bridge.base.command_error import PreflightError
from bridge.prune import remote_leftovers
from bridge.prune.remote_leftovers import PruneSettings
from sync.kube.api_resources import (
    CONFIG_MAPS,
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    SECRETS,
    SERVICES,
    Object,
)
from tests.bridge.running_join import SOON
from tests.bridge.two_clusters import CANARY, Clusters
from tests.objects import config_map, pod, secret
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    used_by_annotation,
)
from translators.relay import agent_pod
from translators.virtual_node_identity import Identity

pytestmark = pytest.mark.usefixtures("soon")

#: The IDs of two homes.
A, B = "a" * 16, "b" * 16


def owned(obj: Object, home: str, node: str = "burst", name: str | None = None) -> Object:
    """The object as a bridge of this home creates it."""
    meta = obj["metadata"]
    meta["labels"] = {LABEL_HOME: home, LABEL_NODE: node}
    meta["annotations"] = {ANNOTATION_HOME_NAMESPACE: "shop"}
    if obj["kind"] != "Namespace":
        meta["annotations"][ANNOTATION_HOME_NAME] = name or meta["name"]
        meta["annotations"][ANNOTATION_HOME_UID] = "1"
    return obj


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


class World:
    """A remote with objects of two homes, and the notifications and confirmations."""

    def __init__(self, two: Clusters) -> None:
        self.remote = two.remote
        self.settings = PruneSettings(two.settings.remote)
        self.notified: list[str] = []
        self.confirmations: list[list[str]] = []
        self.answer = True
        for home, where in ((A, "shop-a"), (B, "shop-b")):
            self.remote.put(owned(namespace(where), home))
            self.remote.put(owned(pod("web", where), home))
            self.remote.put(owned(config_map("conf", where), home))
            self.remote.put(owned(secret("key", where, data={"k": "Y2FuYXJ5LTQ3MTE="}), home))
        self.remote.put(owned(pod("other", "shop-a"), A, node="pool"))
        self.remote.put(config_map("theirs", "shop-b"))
        # Controllers copy labels to the pods of a template.
        labelled = pod("labelled", "shop-a")
        labelled["metadata"]["labels"] = {LABEL_HOME: A, LABEL_NODE: "burst"}
        self.labelled = self.remote.put(labelled)

    def agree(self, lines: list[str]) -> bool:
        self.confirmations.append(lines)
        return self.answer

    async def listed(self) -> list[Object]:
        return await remote_leftovers.list_leftovers(self.settings, notify=self.notified.append)

    async def remove(self, home: str, node: str = "", *, timeout: float = SOON) -> bool:
        settings = replace(self.settings, home=home, node=node, timeout=timeout)
        async with asyncio.timeout(SOON):
            return await remote_leftovers.remove_leftovers(
                settings, notify=self.notified.append, confirm=self.agree
            )


@pytest.fixture
def world(two: Clusters) -> World:
    """A remote with objects of two homes."""
    return World(two)


async def test_list_shows_counts_and_last_write_without_writing(world: World) -> None:
    written = "2031-02-03T04:05:06Z"
    fields = [
        {"manager": "cluster-bridge", "time": written},
        {"manager": "kubelet", "time": "2032-01-01T00:00:00Z"},
    ]
    world.remote.update(PODS, "web", {"metadata": {"managedFields": fields}}, "shop-a")
    rows = await world.listed()
    assert list(rows[0]) == [
        *("home", "node", "pods", "configmaps", "secrets", "services", "endpointslices"),
        *("namespaces", "written"),
    ]
    assert [list(row.values())[:-1] for row in rows] == [
        [A, "burst", 1, 1, 1, 0, 0, 1],
        [A, "pool", 1, 0, 0, 0, 0, 0],
        [B, "burst", 1, 1, 1, 0, 0, 1],
    ]
    assert rows[0]["written"] == written
    assert re.fullmatch(r"20\d\d-.*Z", rows[2]["written"])
    assert world.remote.writes() == []
    assert CANARY not in str(rows)


@pytest.mark.parametrize("fields", [1, "x", [1], [[]], {"manager": "cluster-bridge"}], ids=str)
async def test_malformed_record_of_writes_hides_no_objects(world: World, fields: object) -> None:
    world.remote.update(PODS, "web", {"metadata": {"managedFields": fields}}, "shop-a")
    found = await world.listed()
    assert {(row["home"], row["node"]) for row in found} == {
        (A, "burst"),
        (A, "pool"),
        (B, "burst"),
    }


async def test_clean_remote_has_an_empty_list(two: Clusters) -> None:
    assert (
        await remote_leftovers.list_leftovers(
            PruneSettings(two.settings.remote), notify=lambda _: None
        )
        == []
    )


async def test_objects_of_one_home_are_removed_and_others_stay(world: World) -> None:
    assert await world.remove(A)
    assert world.confirmations == [
        [
            "remote: Pod shop-a/web",
            "remote: ConfigMap shop-a/conf",
            "remote: Secret shop-a/key",
            "remote: Namespace shop-a, if otherwise empty",
            "remote: Pod shop-a/other",
        ]
    ]
    assert any(
        line.startswith(f"remote: home {A} last wrote objects of its") for line in world.notified
    )
    assert world.remote.get(PODS, "labelled", "shop-a") == world.labelled
    assert "remote: namespace shop-a stays: it holds Pod labelled" in world.notified
    names = [it["metadata"]["name"] for it in world.remote.objects(PODS)]
    assert names == ["labelled", "web"]
    for kind, name in ((CONFIG_MAPS, "conf"), (SECRETS, "key"), (CONFIG_MAPS, "theirs")):
        assert world.remote.find(kind, name, "shop-b")
    assert world.remote.find(CONFIG_MAPS, "conf", "shop-a") is None
    world.remote.remove(PODS, "labelled", "shop-a")
    assert await world.remove(A)
    assert world.remote.find(NAMESPACES, "shop-a") is None


async def test_volumes_and_their_namespace_stay(world: World) -> None:
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-0123", "namespace": "shop-a"},
        "spec": {},
    }
    world.remote.put(owned(claim, A, name="data"))
    before = world.remote.get(PERSISTENT_VOLUME_CLAIMS, "data-0123", "shop-a")
    world.remote.remove(PODS, "labelled", "shop-a")
    assert await world.remove(A)
    assert world.remote.get(PERSISTENT_VOLUME_CLAIMS, "data-0123", "shop-a") == before
    assert world.remote.find(NAMESPACES, "shop-a")
    assert any("shop-a stays: it holds PersistentVolumeClaim" in it for it in world.notified)


async def test_objects_of_one_virtual_node_can_be_removed(world: World) -> None:
    assert await world.remove(A, "pool")
    assert world.confirmations == [["remote: Pod shop-a/other"]]
    assert world.remote.find(PODS, "web", "shop-a")


def using(name: str, where: str, config: str) -> Object:
    made = pod(name, where)
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


async def test_copies_used_by_another_node_are_transferred_to_it(world: World) -> None:
    world.remote.put(owned(using("uses", "shop-a", "conf"), A, node="pool"))
    assert await world.remove(A, "burst")
    reason = "remote: ConfigMap shop-a/conf stays: pods of virtual node pool use it"
    assert reason in world.notified
    assert "remote: ConfigMap shop-a/conf" not in world.confirmations[0]
    copy = world.remote.get(CONFIG_MAPS, "conf", "shop-a")
    assert copy["metadata"]["labels"][LABEL_NODE] == "pool"
    assert world.remote.find(SECRETS, "key", "shop-a") is None
    assert world.notified[-1] == (
        f"remote: the objects of node burst of home {A} are removed, except those reported above"
    )
    world.remote.remove(PODS, "labelled", "shop-a")
    assert await world.remove(A, "pool")
    assert world.remote.find(CONFIG_MAPS, "conf", "shop-a") is None


async def test_namespace_used_by_another_node_stays(world: World) -> None:
    claims = {used_by_annotation(it): "true" for it in ("burst", "pool")}
    world.remote.update(NAMESPACES, "shop-a", {"metadata": {"annotations": claims}})
    for name in ("other", "labelled"):
        world.remote.remove(PODS, name, "shop-a")
    assert await world.remove(A, "burst")
    assert "remote: namespace shop-a stays: virtual node(s) pool use it" in world.notified
    assert await world.remove(A, "pool")
    assert world.remote.find(NAMESPACES, "shop-a") is None
    assert world.notified[-1] == f"remote: the objects of node pool of home {A} are removed"


async def test_objects_that_appear_again_are_an_error(world: World) -> None:
    async def again(_: web.Request) -> web.Response:
        world.remote.remove(CONFIG_MAPS, "conf", "shop-a")
        world.remote.put(owned(config_map("again", "shop-a"), A))
        return web.json_response({})

    world.remote.route("DELETE", "*/shop-a/configmaps/conf", again)
    with pytest.raises(PreflightError, match=r"has objects again \(.*\): a bridge still serves"):
        await world.remove(A, "burst")


async def test_nothing_is_removed_without_confirmation(world: World) -> None:
    world.answer = False
    assert await world.remove(A) is False
    assert world.remote.writes() == []


async def test_home_without_objects_is_no_error(world: World) -> None:
    assert await world.remove("c" * 16)
    assert world.confirmations == [[]]
    assert world.notified[-1] == "remote: unchanged"
    assert world.remote.writes() == []


async def test_pods_that_do_not_terminate_keep_their_copies(world: World) -> None:
    world.remote.bind("web", "worker", "shop-b")
    with pytest.raises(PreflightError, match=r"1 pod\(s\) have not terminated"):
        await world.remove(B, timeout=0.05)
    assert world.remote.find(CONFIG_MAPS, "conf", "shop-b")


async def test_derived_endpointslices_are_not_listed_or_deleted(world: World) -> None:
    """The remote's EndpointSlice controller copies the Service's labels."""
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop-a"},
        "spec": {"ports": [{"port": 80}]},
    }
    world.remote.put(owned(service, A))
    derived: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-x", "namespace": "shop-a"},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    }
    derived["metadata"]["labels"] = {LABEL_HOME: A, LABEL_NODE: "burst"}
    world.remote.put(derived)
    assert await world.remove(A)
    assert world.remote.find(SERVICES, "web", "shop-a") is None
    assert not any("EndpointSlice" in line for line in world.confirmations[0])


async def test_relay_agent_is_removed_but_not_counted(world: World) -> None:
    identity = Identity(home_id=A, home_name="a", node="burst")
    made = agent_pod.agent_pod(
        "relay", HomeNamespace("shop"), identity, image="i", node_selector={}
    )
    made["metadata"]["namespace"] = "shop-a"
    world.remote.put(made)
    row = next(it for it in await world.listed() if (it["home"], it["node"]) == (A, "burst"))
    assert row["pods"] == 1, "the pod of home's"
    await world.remove(A, "burst")
    assert "remote: Pod shop-a/relay" in world.confirmations[0]
    assert world.remote.find(PODS, "relay", "shop-a") is None
