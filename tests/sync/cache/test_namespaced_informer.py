"""One store of several namespaces, for a credential that may not read others."""

from __future__ import annotations

import asyncio

import pytest

from sync.cache.informer import Informer
from sync.cache.namespaced_informer import NamespacedInformer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import CONFIG_MAPS, Object
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map
from tests.sync.informer_harness import ChangeRecorder, ShortenedBackoff, running_informer

PATHS = {f"/api/v1/namespaces/{it}/configmaps" for it in "ab"}


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> ShortenedBackoff:
    """Failures are retried soon."""
    return ShortenedBackoff(monkeypatch)


@pytest.fixture
def informer(client: KubeClient) -> NamespacedInformer:
    """ConfigMaps of the namespaces ``a`` and ``b``."""
    return NamespacedInformer(client, CONFIG_MAPS, namespaces=["a", "b"])


async def test_objects_of_these_namespaces_alone_are_requested_and_stored(
    api: FakeApi, informer: NamespacedInformer
) -> None:
    for namespace in "abc":
        api.put(config_map("same", namespace))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        assert {key.namespace for key in map(key_of, informer.store)} == {"a", "b"}
        api.put(config_map("new", "b"))
        await api.until(lambda: informer.store.get(Key("b", "new")))
        api.remove(CONFIG_MAPS, "same", "a")
        await api.until(lambda: informer.store.get(Key("a", "same")) is None)
        assert informer.store.get(Key("b", "same"))
        assert {it["metadata"]["namespace"] for it in await informer.list_now()} == {"b"}
        assert informer.last_contact is not None
    assert recorded.take() == ["+same", "+same", "+new", "-same"]
    assert {entry.path for entry in api.log} == PATHS


async def test_list_of_one_namespace_keeps_the_objects_of_the_others(
    api: FakeApi, informer: NamespacedInformer
) -> None:
    for namespace in "ab":
        api.put(config_map("one", namespace))
    async with running_informer(informer):
        await informer.refresh()
        assert len(informer.store) == 2
        await api.until(lambda: len(api.open_watches(CONFIG_MAPS)) == 2)


async def test_informer_is_synced_and_works_when_all_namespaces_do(
    api: FakeApi, informer: NamespacedInformer
) -> None:
    api.fail(Fault("GET", "/api/v1/namespaces/b/configmaps", code=403, times=1))
    synced, states = list[bool](), list[tuple[Informer, bool]]()
    informer.on_synced(lambda: synced.append(True))
    informer.on_state(lambda it: states.append((it, it.error is None)))
    task = asyncio.create_task(informer.run())
    try:
        await api.until(lambda: isinstance(informer.error, Forbidden))
        assert informer.failing_since is not None
        assert not informer.synced.is_set()
        informer.retry_now()
        await asyncio.wait_for(informer.synced.wait(), 5)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert synced == [True]
    assert states == [(informer, False), (informer, True)]


async def test_written_object_is_stored_at_once(api: FakeApi, informer: NamespacedInformer) -> None:
    async with running_informer(informer):
        api.mute_watches()
        made: Object = api.put(config_map("made", "b"))
        informer.observe_write(made)
        assert informer.store.get(Key("b", "made"))
