"""What bridges have left in a remote, from the remote's side alone."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
from aiohttp import web

from bridge.base.errors import PreflightError
from bridge.prune import leftovers
from bridge.prune.leftovers import PruneSettings
from sync.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, SECRETS, SERVICES, Object
from tests.bridge.joined import SOON
from tests.bridge.two_clusters import CANARY, Clusters
from tests.objects import config_map, pod, secret
from translators.identity import (
    ANNOTATION_HOME_NAME,
    ANNOTATION_HOME_NAMESPACE,
    ANNOTATION_HOME_UID,
    LABEL_HOME,
    LABEL_NODE,
    Identity,
    used_by_annotation,
)
from translators.objects import HomeNamespace
from translators.relay import agent_pod

pytestmark = pytest.mark.usefixtures("soon")

#: Two homes, as the remote knows them.
A, B = "a" * 16, "b" * 16


def owned(obj: Object, home: str, node: str = "burst", name: str | None = None) -> Object:
    """The object as a bridge of this home makes it."""
    meta = obj["metadata"]
    meta["labels"] = {LABEL_HOME: home, LABEL_NODE: node}
    meta["annotations"] = {ANNOTATION_HOME_NAMESPACE: "shop"}
    if obj["kind"] != "Namespace":
        meta["annotations"][ANNOTATION_HOME_NAME] = name or meta["name"]
        meta["annotations"][ANNOTATION_HOME_UID] = "1"
    return obj


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


class Left:
    """A remote in which two homes have something, and what was said and asked."""

    def __init__(self, two: Clusters) -> None:
        self.remote = two.remote
        self.settings = PruneSettings(two.settings.remote)
        self.told: list[str] = []
        self.asked: list[list[str]] = []
        self.answer = True
        for home, where in ((A, "shop-a"), (B, "shop-b")):
            self.remote.put(owned(namespace(where), home))
            self.remote.put(owned(pod("web", where), home))
            self.remote.put(owned(config_map("conf", where), home))
            self.remote.put(owned(secret("key", where, data={"k": "Y2FuYXJ5LTQ3MTE="}), home))
        self.remote.put(owned(pod("other", "shop-a"), A, node="pool"))
        self.remote.put(config_map("theirs", "shop-b"))
        # Labels can be copied, as a controller does that makes pods of a template.
        labelled = pod("labelled", "shop-a")
        labelled["metadata"]["labels"] = {LABEL_HOME: A, LABEL_NODE: "burst"}
        self.labelled = self.remote.put(labelled)

    def agree(self, lines: list[str]) -> bool:
        self.asked.append(lines)
        return self.answer

    async def listed(self) -> list[str]:
        return await leftovers.list_leftovers(self.settings, notify=self.told.append)

    async def remove(self, home: str, node: str = "", *, timeout: float = SOON) -> bool:
        settings = replace(self.settings, home=home, node=node, timeout=timeout)
        async with asyncio.timeout(SOON):
            return await leftovers.remove_leftovers(
                settings, notify=self.told.append, agree=self.agree
            )


@pytest.fixture
def left(two: Clusters) -> Left:
    """Two homes' belongings."""
    return Left(two)


async def test_list_shows_counts_and_last_write_without_writing(left: Left) -> None:
    written = "2031-02-03T04:05:06Z"
    fields = [
        {"manager": "cluster-bridge", "time": written},
        {"manager": "kubelet", "time": "2032-01-01T00:00:00Z"},
    ]
    left.remote.update(PODS, "web", {"metadata": {"managedFields": fields}}, "shop-a")
    head, *rows = await left.listed()
    assert head.split() == [
        *("HOME", "NODE", "PODS", "CONFIGMAPS", "SECRETS", "SERVICES", "ENDPOINTSLICES"),
        *("NAMESPACES", "WRITTEN"),
    ]
    assert [row.split()[:-1] for row in rows] == [
        [A, "burst", "1", "1", "1", "0", "0", "1"],
        [A, "pool", "1", "0", "0", "0", "0", "0"],
        [B, "burst", "1", "1", "1", "0", "0", "1"],
    ]
    assert rows[0].split()[-1] == written
    assert re.fullmatch(r"20\d\d-.*Z", rows[2].split()[-1])
    assert left.remote.writes() == []
    assert CANARY not in "".join([head, *rows])


async def test_clean_remote_has_an_empty_list(two: Clusters) -> None:
    assert (
        await leftovers.list_leftovers(PruneSettings(two.settings.remote), notify=lambda _: None)
        == []
    )


async def test_objects_of_one_home_are_removed_and_others_stay(left: Left) -> None:
    assert await left.remove(A)
    assert left.asked == [
        [
            "remote: Pod shop-a/web",
            "remote: ConfigMap shop-a/conf",
            "remote: Secret shop-a/key",
            "remote: Namespace shop-a, if nothing else is in it",
            "remote: Pod shop-a/other",
        ]
    ]
    assert any(line.startswith(f"remote: home {A} last wrote objects of its") for line in left.told)
    assert left.remote.get(PODS, "labelled", "shop-a") == left.labelled
    assert "remote: namespace shop-a stays: it holds Pod labelled" in left.told
    names = [it["metadata"]["name"] for it in left.remote.objects(PODS)]
    assert names == ["labelled", "web"]
    for kind, name in ((CONFIG_MAPS, "conf"), (SECRETS, "key"), (CONFIG_MAPS, "theirs")):
        assert left.remote.find(kind, name, "shop-b")
    assert left.remote.find(CONFIG_MAPS, "conf", "shop-a") is None
    left.remote.remove(PODS, "labelled", "shop-a")
    assert await left.remove(A)
    assert left.remote.find(NAMESPACES, "shop-a") is None


async def test_objects_of_one_virtual_node_can_be_removed(left: Left) -> None:
    assert await left.remove(A, "pool")
    assert left.asked == [["remote: Pod shop-a/other"]]
    assert left.remote.find(PODS, "web", "shop-a")


def using(name: str, where: str, config: str) -> Object:
    made = pod(name, where)
    made["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": config}}]
    return made


async def test_copies_used_by_another_node_are_transferred_to_it(
    left: Left,
) -> None:
    left.remote.put(owned(using("uses", "shop-a", "conf"), A, node="pool"))
    assert await left.remove(A, "burst")
    reason = "remote: ConfigMap shop-a/conf stays: pods of virtual node pool use it"
    assert reason in left.told
    assert "remote: ConfigMap shop-a/conf" not in left.asked[0]
    copy = left.remote.get(CONFIG_MAPS, "conf", "shop-a")
    assert copy["metadata"]["labels"][LABEL_NODE] == "pool"
    assert left.remote.find(SECRETS, "key", "shop-a") is None
    assert left.told[-1] == (
        f"remote: the objects of node burst of home {A} are removed, except those reported above"
    )
    left.remote.remove(PODS, "labelled", "shop-a")
    assert await left.remove(A, "pool")
    assert left.remote.find(CONFIG_MAPS, "conf", "shop-a") is None


async def test_namespace_used_by_another_node_stays(left: Left) -> None:
    claims = {used_by_annotation(it): "true" for it in ("burst", "pool")}
    left.remote.update(NAMESPACES, "shop-a", {"metadata": {"annotations": claims}})
    for name in ("other", "labelled"):
        left.remote.remove(PODS, name, "shop-a")
    assert await left.remove(A, "burst")
    assert "remote: namespace shop-a stays: virtual node(s) pool use it" in left.told
    assert await left.remove(A, "pool")
    assert left.remote.find(NAMESPACES, "shop-a") is None
    assert left.told[-1] == f"remote: the objects of node pool of home {A} are removed"


async def test_objects_that_appear_again_are_an_error(left: Left) -> None:
    async def again(_: web.Request) -> web.Response:
        left.remote.remove(CONFIG_MAPS, "conf", "shop-a")
        left.remote.put(owned(config_map("again", "shop-a"), A))
        return web.json_response({})

    left.remote.route("DELETE", "*/shop-a/configmaps/conf", again)
    with pytest.raises(PreflightError, match=r"has objects again \(.*\): a bridge still serves"):
        await left.remove(A, "burst")


async def test_nothing_is_removed_without_confirmation(left: Left) -> None:
    left.answer = False
    assert await left.remove(A) is False
    assert left.remote.writes() == []


async def test_home_without_objects_is_no_error(left: Left) -> None:
    assert await left.remove("c" * 16)
    assert left.asked == [[]]
    assert left.told[-1] == "remote: unchanged"
    assert left.remote.writes() == []


async def test_pods_that_do_not_terminate_keep_their_copies(left: Left) -> None:
    left.remote.bind("web", "worker", "shop-b")
    with pytest.raises(PreflightError, match="not all pods have terminated"):
        await left.remove(B, timeout=0.05)
    assert left.remote.find(CONFIG_MAPS, "conf", "shop-b")


async def test_derived_endpointslices_are_not_listed_or_deleted(left: Left) -> None:
    """The remote's own controller copies our labels to its EndpointSlices."""
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop-a"},
        "spec": {"ports": [{"port": 80}]},
    }
    left.remote.put(owned(service, A))
    derived: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "web-x", "namespace": "shop-a"},
        "addressType": "IPv4",
        "endpoints": [],
        "ports": [],
    }
    derived["metadata"]["labels"] = {LABEL_HOME: A, LABEL_NODE: "burst"}
    left.remote.put(derived)
    assert await left.remove(A)
    assert left.remote.find(SERVICES, "web", "shop-a") is None
    assert not any("EndpointSlice" in line for line in left.asked[0])


async def test_relay_agent_is_removed_but_not_counted(left: Left) -> None:
    identity = Identity(home_id=A, home_name="a", node="burst")
    made = agent_pod.agent_pod(
        "relay", HomeNamespace("shop"), identity, image="i", node_selector={}
    )
    made["metadata"]["namespace"] = "shop-a"
    left.remote.put(made)
    row = next(line for line in await left.listed() if line.split()[:2] == [A, "burst"])
    assert row.split()[2] == "1", "the pod of home's"
    await left.remove(A, "burst")
    assert "remote: Pod shop-a/relay" in left.asked[0]
    assert left.remote.find(PODS, "relay", "shop-a") is None
