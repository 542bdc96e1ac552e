"""Remote namespaces: created when first needed, never adopted from other owners."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace

import pytest

from sync.cache.informer import Informer
from sync.capacity.remote_capacity import slim_namespace
from sync.kube.api_resources import EVENTS, NAMESPACES, PODS, Object
from sync.kube.client import KubeClient
from sync.namespaces.home_namespace_labels import HomeNamespaceLabels
from sync.namespaces.namespace_ownership import NamespaceOwnership
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.runtime.controller import ReconcileBlocked
from tests.fakeapi import FakeApi, Fault
from tests.objects import secret
from tests.sync.engine_harness import IDENTITY, REMOTE_NAMESPACE, EngineHarness
from tests.sync.informer_harness import caught_up, running_informer
from tests.sync.memory_ownership_record import MemoryRecord
from translators.object_accessors import HomeNamespace
from translators.ownership_labels import (
    ANNOTATION_ACCEPTS,
    ANNOTATION_HOME_NAMESPACE,
    is_owned_by_node,
    owner_labels,
    used_by_annotation,
)

DEFAULT = HomeNamespace("default")


@pytest.fixture
def informer(client: KubeClient) -> Informer:
    """An informer of all namespaces, configured as in the engine."""
    return Informer(client, NAMESPACES, slim=slim_namespace)


@pytest.fixture
def namespaces(client: KubeClient, informer: Informer) -> NamespaceMapping:
    """Of the identity of `tests.sync.engine_harness`."""
    ownership = NamespaceOwnership(MemoryRecord(), informer, IDENTITY)
    labels = HomeNamespaceLabels(client)
    return NamespaceMapping(client, informer, IDENTITY, ownership, labels=labels)


def foreign(name: str = REMOTE_NAMESPACE, **annotations: str) -> Object:
    """An unmanaged namespace."""
    meta = {"name": name, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}


async def test_namespace_is_created_once_with_its_owner(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with running_informer(informer):
        names = await asyncio.gather(*(namespaces.ensure(DEFAULT) for _ in range(20)))
        assert set(names) == {REMOTE_NAMESPACE}
        await namespaces.ensure(DEFAULT)
    assert len(api.writes()) == 1
    made = api.get(NAMESPACES, REMOTE_NAMESPACE)
    assert is_owned_by_node(made, IDENTITY)
    assert made["metadata"]["annotations"][ANNOTATION_HOME_NAMESPACE] == "default"


async def test_namespace_with_a_lost_create_response_is_owned(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with running_informer(informer):
        api.mute_watches()
        claim = {used_by_annotation(IDENTITY.node_label): "true"}
        labels = owner_labels(IDENTITY)
        api.put(
            {**foreign(**claim), "metadata": {**foreign(**claim)["metadata"], "labels": labels}}
        )
        assert await namespaces.ensure(DEFAULT) == REMOTE_NAMESPACE
        assert await namespaces.ensure(DEFAULT) == REMOTE_NAMESPACE
        assert len(api.writes()) == 1
        api.unmute_watches()


async def test_unmanaged_namespace_is_rejected_with_a_remedy(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    theirs = api.put(foreign())
    async with running_informer(informer):
        with pytest.raises(
            ReconcileBlocked, match="kubectl annotate namespace default-h"
        ) as caught:
            await namespaces.ensure(DEFAULT)
    assert caught.value.reason == "RemoteClash"
    assert api.get(NAMESPACES, REMOTE_NAMESPACE) == theirs


@pytest.mark.parametrize(
    "value", ["h", "*", IDENTITY.home_id], ids=["by name", "for all", "by identity"]
)
async def test_granted_namespace_is_used_until_the_grant_is_removed(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer, value: str
) -> None:
    theirs = api.put(foreign(**{ANNOTATION_ACCEPTS: value}))
    async with running_informer(informer):
        for _ in range(3):
            assert await namespaces.ensure(DEFAULT) == REMOTE_NAMESPACE
        assert api.writes() == []
        assert api.get(NAMESPACES, REMOTE_NAMESPACE) == theirs
        api.put(foreign())
        await caught_up(api, informer)
        with pytest.raises(ReconcileBlocked):
            await namespaces.ensure(DEFAULT)


@pytest.mark.parametrize("is_labelled", [True, False])
async def test_prepared_namespace_is_used_and_never_changed(
    api: FakeApi, client: KubeClient, informer: Informer, is_labelled: bool
) -> None:
    theirs = foreign(**{ANNOTATION_ACCEPTS: "h"})
    if is_labelled:  # Created by a bridge before it was limited to prepared namespaces.
        theirs["metadata"]["labels"] = owner_labels(IDENTITY)
    api.put(theirs)
    owned = NamespaceOwnership(MemoryRecord(), informer, IDENTITY)
    mapping = NamespaceMapping(
        *(client, informer, IDENTITY, owned),
        labels=HomeNamespaceLabels(client),
        prepared=[REMOTE_NAMESPACE],
    )
    async with running_informer(informer):
        assert await mapping.ensure(DEFAULT) == REMOTE_NAMESPACE
    assert api.writes() == []


@pytest.mark.parametrize("prepared", [REMOTE_NAMESPACE, "another"])
async def test_namespace_that_is_not_prepared_is_not_created(
    api: FakeApi, client: KubeClient, informer: Informer, prepared: str
) -> None:
    """It does not exist, or exists and is not among the prepared ones."""
    if prepared == "another":
        api.put(foreign(**{ANNOTATION_ACCEPTS: "h"}))
    owned = NamespaceOwnership(MemoryRecord(), informer, IDENTITY)
    mapping = NamespaceMapping(
        *(client, informer, IDENTITY, owned),
        labels=HomeNamespaceLabels(client),
        prepared=[prepared],
    )
    async with running_informer(informer):
        with pytest.raises(ReconcileBlocked, match="is none of --remote-namespaces") as caught:
            await mapping.ensure(DEFAULT)
    assert caught.value.reason == "RemoteNamespaceMissing"
    assert api.writes() == []


async def test_namespace_granted_to_another_home_is_unmanaged(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    api.put(foreign(**{ANNOTATION_ACCEPTS: "another"}))
    async with running_informer(informer):
        with pytest.raises(ReconcileBlocked):
            await namespaces.ensure(DEFAULT)


async def test_terminating_namespace_blocks(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    async with running_informer(informer):
        await namespaces.ensure(DEFAULT)
        api.put({**foreign("x"), "kind": "ConfigMap", "metadata": _held()})
        api.delete(NAMESPACES, REMOTE_NAMESPACE)
        await caught_up(api, informer)
        with pytest.raises(ReconcileBlocked, match="RemoteNamespaceTerminating"):
            await namespaces.ensure(DEFAULT)


async def test_rejected_namespace_is_reported_by_the_pod(harness: EngineHarness) -> None:
    fault = harness.remote.fail(Fault("POST", "/api/v1/namespaces", code=403, times=None))
    await harness.start()
    harness.pod()
    await harness.remote.until(lambda: fault.hits >= 3)
    assert harness.status()["reason"] == "RemoteForbidden"
    harness.remote.heal()
    await harness.settle()
    assert harness.remote_pod()


async def test_pods_of_an_unmanaged_namespace_wait_with_one_event_until_it_is_free(
    harness: EngineHarness,
) -> None:
    theirs = harness.remote.put(foreign())
    await harness.start()
    harness.pod("a")
    harness.pod("b")
    await harness.events_with_reason("RemoteClash")
    await harness.settle(waiting=True)
    # The last Event may not be written yet.
    await harness.home.until(lambda: len(_rejection_events(harness)) == 2)
    assert harness.status("a")["reason"] == harness.status("b")["reason"] == "RemoteClash"
    harness.home.clear_log()
    await asyncio.sleep(0.05)
    assert harness.home.writes() == []
    assert harness.remote.get(NAMESPACES, REMOTE_NAMESPACE) == theirs
    harness.remote.remove(NAMESPACES, REMOTE_NAMESPACE)
    await harness.settle()
    assert harness.remote_pod("a")
    assert harness.remote_pod("b")
    assert "reason" not in harness.status("a") or harness.status("a")["reason"] != "RemoteClash"


def _rejection_events(harness: EngineHarness) -> list[Object]:
    return [it for it in harness.home.objects(EVENTS) if it["reason"] == "RemoteClash"]


def _held() -> Object:
    return {"name": "held", "namespace": REMOTE_NAMESPACE, "finalizers": ["example.com/hold"]}


def colliding_namespaces() -> tuple[str, str, str]:
    """Two home namespaces that the template maps to one: a long name is cut within its dashes."""
    long = "a" + "-" * 58 + "b"
    identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    there = identity.remote_namespace(HomeNamespace(long))
    short = there.removeprefix("edge-")
    assert identity.remote_namespace(HomeNamespace(short)) == there
    return long, short, there


async def test_second_home_namespace_of_a_remote_namespace_is_blocked(
    harness: EngineHarness,
) -> None:
    long, short, there = colliding_namespaces()
    harness.identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    harness.home.put(secret("key", long, data={"k": "bG9uZw=="}))
    harness.home.put(secret("key", short, data={"k": "c2hvcnQ="}))
    await harness.start()
    harness.pod("a", long, uses=["secret/key"])
    await harness.settle()
    theirs = harness.remote.get(PODS, "a", there)
    harness.clear_logs()
    harness.pod("a", short, uses=["secret/key"])
    harness.pod("b", short)
    await harness.settle(waiting=True)
    for name in ("a", "b"):
        status = harness.status(name, short)
        assert status["reason"] == "RemoteClash"
        assert long in status["message"]
        assert short in status["message"]
    assert harness.remote.get(PODS, "a", there) == theirs
    assert harness.remote.find(PODS, "b", there) is None
    assert (harness.secret("key", there) or {})["data"] == {"k": "bG9uZw=="}
    await asyncio.sleep(0.2)
    assert harness.remote.writes() == []


async def test_second_home_namespace_of_a_granted_namespace_is_blocked(
    harness: EngineHarness,
) -> None:
    """A granted namespace has no label that names its home namespace."""
    long, short, there = colliding_namespaces()
    harness.identity = replace(IDENTITY, namespace_template="edge-{namespace}")
    harness.remote.put(foreign(there, **{ANNOTATION_ACCEPTS: "*"}))
    await harness.start()
    harness.pod("a", long)
    await harness.settle()
    harness.pod("b", short)
    await harness.settle(waiting=True)
    assert harness.remote.find(PODS, "a", there)
    assert harness.remote.find(PODS, "b", there) is None
    assert harness.status("b", short)["reason"] == "RemoteClash"
    harness.home.delete(PODS, "a", long)
    await harness.remote.until(lambda: harness.remote.find(PODS, "b", there))


@pytest.mark.parametrize("granted", [True, False])
async def test_controllers_of_a_granted_namespace_adopt_no_pod(
    harness: EngineHarness, granted: bool
) -> None:
    """They adopt pods whose labels they select and that have no controller."""
    if granted:
        harness.remote.put(foreign(REMOTE_NAMESPACE, **{ANNOTATION_ACCEPTS: "*"}))
    await harness.start()
    harness.pod("a", labels={"app": "web", "pod-template-hash": "5d59d67564"})
    await harness.settle()
    meta = (harness.remote_pod("a") or {})["metadata"]
    namespace = harness.remote.get(NAMESPACES, REMOTE_NAMESPACE)
    controller = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": REMOTE_NAMESPACE,
        "uid": namespace["metadata"]["uid"],
        "controller": True,
    }
    assert meta.get("ownerReferences") == ([controller] if granted else None)
    assert meta["labels"]["pod-template-hash"] == "5d59d67564", "Services may select by it"


async def test_unused_namespace_locks_are_dropped(
    api: FakeApi, namespaces: NamespaceMapping, informer: Informer
) -> None:
    def locks() -> int:
        gc.collect()
        return sum(isinstance(it, asyncio.Lock) for it in gc.get_objects())

    async with running_informer(informer):
        await namespaces.ensure(HomeNamespace("first"))
        before = locks()
        for number in range(20):
            await namespaces.ensure(HomeNamespace(f"n{number}"))
        assert locks() <= before
