"""The remote's namespaces: made when first needed, never taken from others."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sync.cache.informer import Informer
from sync.capacity.aggregator import slim_namespace
from sync.kube.client import KubeClient
from sync.kube.resources import EVENTS, NAMESPACES, PODS, Object
from sync.namespaces.namespace_mapping import NamespaceMapping
from sync.namespaces.namespace_ownership import NamespaceOwnership
from sync.runtime.controller import ReconcileBlocked
from tests.fakeapi import FakeApi, Fault
from tests.objects import secret
from tests.sync.records import MemoryRecord
from tests.sync.watched import caught_up, watching
from tests.sync.world import IDENTITY, THERE, World
from translators.identity import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAMESPACE,
    is_owned_by_node,
    owner_labels,
    used_by_annotation,
)
from translators.objects import HomeNamespace

DEFAULT = HomeNamespace("default")


@pytest.fixture
def informer(client: KubeClient) -> Informer:
    """Of all namespaces, as the engine has it."""
    return Informer(client, NAMESPACES, slim=slim_namespace)


@pytest.fixture
def namespaces(client: KubeClient, informer: Informer) -> NamespaceMapping:
    """Of the identity of `tests.sync.world`."""
    return NamespaceMapping(
        client, informer, IDENTITY, NamespaceOwnership(MemoryRecord(), informer, IDENTITY)
    )


def foreign(name: str = THERE, **annotations: str) -> Object:
    """A namespace that somebody else made."""
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


async def test_namespace_is_created_once_with_its_owner(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with watching(informer):
        names = await asyncio.gather(*(namespaces.ensure(DEFAULT) for _ in range(20)))
        assert set(names) == {THERE}
        await namespaces.ensure(DEFAULT)
    assert len(api.writes()) == 1
    made = api.get(NAMESPACES, THERE)
    assert is_owned_by_node(made, IDENTITY)
    assert made["metadata"]["annotations"][ANNOTATION_HOME_NAMESPACE] == "default"


async def test_a_namespace_whose_answer_was_lost_is_ours(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with watching(informer):
        api.mute_watches()
        claim = {used_by_annotation(IDENTITY.node_label): "true"}
        labels = owner_labels(IDENTITY)
        api.put(
            {**foreign(**claim), "metadata": {**foreign(**claim)["metadata"], "labels": labels}}
        )
        assert await namespaces.ensure(DEFAULT) == THERE
        assert await namespaces.ensure(DEFAULT) == THERE
        assert len(api.writes()) == 1
        api.unmute_watches()


async def test_unmanaged_namespace_is_rejected_with_a_remedy(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    theirs = api.put(foreign())
    async with watching(informer):
        with pytest.raises(
            ReconcileBlocked, match="kubectl annotate namespace default-h"
        ) as caught:
            await namespaces.ensure(DEFAULT)
    assert caught.value.reason == "RemoteClash"
    assert api.get(NAMESPACES, THERE) == theirs


@pytest.mark.parametrize(
    "value", ["h", "*", IDENTITY.home_id], ids=["by name", "for all", "by identity"]
)
async def test_granted_namespace_is_used_until_the_grant_is_removed(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer, value: str
) -> None:
    theirs = api.put(foreign(**{ANNOTATION_ACCEPTS: value}))
    async with watching(informer):
        for _ in range(3):
            assert await namespaces.ensure(DEFAULT) == THERE
        assert api.writes() == []
        assert api.get(NAMESPACES, THERE) == theirs
        api.put(foreign())
        await caught_up(api, informer)
        with pytest.raises(ReconcileBlocked):
            await namespaces.ensure(DEFAULT)


async def test_namespace_granted_to_another_home_is_unmanaged(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    api.put(foreign(**{ANNOTATION_ACCEPTS: "another"}))
    async with watching(informer):
        with pytest.raises(ReconcileBlocked):
            await namespaces.ensure(DEFAULT)


async def test_terminating_namespace_blocks(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with watching(informer):
        await namespaces.ensure(DEFAULT)
        api.put({**foreign("x"), "kind": "ConfigMap", "metadata": _held()})
        api.delete(NAMESPACES, THERE)
        await caught_up(api, informer)
        with pytest.raises(ReconcileBlocked, match="RemoteNamespaceTerminating"):
            await namespaces.ensure(DEFAULT)


async def test_rejected_namespace_is_reported_by_the_pod(world: World) -> None:
    fault = world.remote.fail(Fault("POST", "/api/v1/namespaces", code=403, times=None))
    await world.start()
    world.pod()
    await world.remote.until(lambda: fault.hits >= 3)
    assert world.status()["reason"] == "RemoteForbidden"
    world.remote.heal()
    await world.settle()
    assert world.remote_pod()


async def test_pods_of_an_unmanaged_namespace_wait_with_one_event_until_it_is_free(
    world: World,
) -> None:
    theirs = world.remote.put(foreign())
    await world.start()
    world.pod("a")
    world.pod("b")
    await world.events_with_reason("RemoteClash")
    await world.settle(waiting=True)
    # The last Event can still be on its way.
    await world.home.until(lambda: len(_told(world)) == 2)
    assert world.status("a")["reason"] == world.status("b")["reason"] == "RemoteClash"
    world.home.clear_log()
    await asyncio.sleep(0.05)
    assert world.home.writes() == []
    assert world.remote.get(NAMESPACES, THERE) == theirs
    world.remote.remove(NAMESPACES, THERE)
    await world.settle()
    assert world.remote_pod("a")
    assert world.remote_pod("b")
    assert "reason" not in world.status("a") or world.status("a")["reason"] != "RemoteClash"


def _told(world: World) -> list[Object]:
    return [it for it in world.home.objects(EVENTS) if it["reason"] == "RemoteClash"]


def _held() -> Object:
    return {"name": "held", "namespace": THERE, "finalizers": ["example.com/hold"]}


# -- two home namespaces, one in the remote ------------------------------------------------


def meeting() -> tuple[str, str, str]:
    """Two home namespaces that the template maps to one: a long name is cut within its dashes."""
    long = "a" + "-" * 58 + "b"
    identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    there = identity.remote_namespace(HomeNamespace(long))
    short = there.removeprefix("edge-")
    assert identity.remote_namespace(HomeNamespace(short)) == there
    return long, short, there


async def test_second_home_namespace_of_a_remote_namespace_is_blocked(
    world: World,
) -> None:
    long, short, there = meeting()
    world.identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    world.home.put(secret("key", long, data={"k": "bG9uZw=="}))
    world.home.put(secret("key", short, data={"k": "c2hvcnQ="}))
    await world.start()
    world.pod("a", long, uses=["secret/key"])
    await world.settle()
    theirs = world.remote.get(PODS, "a", there)
    world.clear_logs()
    world.pod("a", short, uses=["secret/key"])
    world.pod("b", short)
    await world.settle(waiting=True)
    for name in ("a", "b"):
        status = world.status(name, short)
        assert status["reason"] == "RemoteClash"
        assert long in status["message"]
        assert short in status["message"]
    assert world.remote.get(PODS, "a", there) == theirs
    assert world.remote.find(PODS, "b", there) is None
    assert (world.secret("key", there) or {})["data"] == {"k": "bG9uZw=="}
    await asyncio.sleep(0.2)
    assert world.remote.writes() == []


async def test_second_home_namespace_of_a_granted_namespace_is_blocked(
    world: World,
) -> None:
    """Nothing on a namespace that was handed over tells for which home namespace it stands."""
    long, short, there = meeting()
    world.identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    world.remote.put(foreign(there, **{ANNOTATION_ACCEPTS: "*"}))
    await world.start()
    world.pod("a", long)
    await world.settle()
    world.pod("b", short)
    await world.settle(waiting=True)
    assert world.remote.find(PODS, "a", there)
    assert world.remote.find(PODS, "b", there) is None
    assert world.status("b", short)["reason"] == "RemoteClash"
    world.home.delete(PODS, "a", long)
    await world.remote.until(lambda: world.remote.find(PODS, "b", there))


async def test_unused_namespace_locks_are_dropped(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with watching(informer):
        for number in range(20):
            await namespaces.ensure(HomeNamespace(f"n{number}"))
    assert not namespaces._locks
