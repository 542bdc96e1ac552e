"""Watches of home's namespaces: their resources and lifetime."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sync.cache.cache_share import NamespaceShares
from sync.cache.store import Key
from sync.kube.api_resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    PODS,
    SECRETS,
    SERVICES,
    Object,
    Resource,
)
from sync.kube.client import KubeClient
from sync.namespaces import per_namespace_informers as watches_module
from sync.namespaces.per_namespace_informers import NamespaceWatches
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, secret
from tests.sync.engine_harness import REMOTE_NAMESPACE, EngineHarness
from translators.object_accessors import HomeNamespace, name_of

DEFAULT = HomeNamespace("default")
LINGER = 0.05


class RecordedWatches(NamespaceWatches):
    """Namespace watches that record their notifications."""

    def __init__(self, client: KubeClient) -> None:
        self.changes: list[tuple[Resource, str]] = []
        self.synced: list[str] = []
        self.refused: list[str] = []
        super().__init__(client, shares=NamespaceShares(client.limits), linger=LINGER)
        for resource in (CONFIG_MAPS, SECRETS, SERVICES, ENDPOINT_SLICES):
            self.on_change(resource, functools.partial(self._changed, resource))
        self.on_synced(self.synced.append)
        self.on_forbidden(self.refused.append)

    def _changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        self.changes.append((resource, name_of(new or old or {})))


@asynccontextmanager
async def running(watches: NamespaceWatches) -> AsyncIterator[None]:
    task = asyncio.create_task(watches.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_watch_is_complete_when_all_resources_are_listed(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(config_map("conf"))
    slow = api.fail(Fault("GET", "*/secrets", delay=0.05))
    watches = RecordedWatches(client)
    async with running(watches):
        watches.retain(DEFAULT)
        await api.until(lambda: slow.hits and (CONFIG_MAPS, "conf") in watches.changes)
        assert watches.get(DEFAULT) is None
        assert watches.synced == []
        await api.until(lambda: watches.synced)
        watch = watches.get(DEFAULT)
        assert watch is not None
        assert watch.informers[CONFIG_MAPS].store.get(Key("default", "conf"))
    assert api.writes() == []


async def test_namespace_retained_before_run_is_watched(api: FakeApi, client: KubeClient) -> None:
    watches = RecordedWatches(client)
    watches.retain(DEFAULT)
    assert api.log == []
    async with running(watches):
        await api.until(lambda: watches.synced == ["default"])


async def test_released_watch_lingers_and_ends(api: FakeApi, client: KubeClient) -> None:
    watches = RecordedWatches(client)
    async with running(watches):
        watches.retain(DEFAULT)
        await api.until(lambda: len(api.open_watches()) == 4)
        watches.release(DEFAULT)
        watches.release(DEFAULT)
        assert watches.get(DEFAULT) is not None
        await api.until(lambda: not api.open_watches())
        assert watches.get(DEFAULT) is None


async def test_namespace_retained_within_the_linger_is_not_listed_again(
    api: FakeApi, client: KubeClient
) -> None:
    watches = RecordedWatches(client)
    async with running(watches):
        watches.retain(DEFAULT)
        await api.until(lambda: watches.synced)
        watch = watches.get(DEFAULT)
        watches.release(DEFAULT)
        watches.retain(DEFAULT)
        await asyncio.sleep(2 * LINGER)
        assert watches.get(DEFAULT) is watch


async def test_namespace_retained_after_the_linger_is_listed_again(
    api: FakeApi, client: KubeClient
) -> None:
    watches = RecordedWatches(client)
    async with running(watches):
        watches.retain(DEFAULT)
        await api.until(lambda: len(api.open_watches()) == 4)
        watches.release(DEFAULT)
        await api.until(lambda: not api.open_watches())
        api.put(config_map("conf"))
        watches.retain(DEFAULT)
        await api.until(lambda: len(watches.synced) == 2)
        assert (CONFIG_MAPS, "conf") in watches.changes


async def test_release_of_an_unwatched_namespace_is_ignored(
    api: FakeApi, client: KubeClient
) -> None:
    watches = RecordedWatches(client)
    async with running(watches):
        watches.release(DEFAULT)
        await asyncio.sleep(2 * LINGER)
        watches.retain(DEFAULT)
        await api.until(lambda: watches.synced == ["default"])


async def test_cancellation_ends_all_watches_and_timers(
    api: FakeApi, client_for: ClientFor
) -> None:
    watches = RecordedWatches(await client_for(api))
    async with running(watches):
        for name in ("default", "kube-system"):
            watches.retain(HomeNamespace(name))
        await api.until(lambda: len(api.open_watches()) == 8)
        watches.release(DEFAULT)
    await api.until(lambda: not api.open_watches())
    await asyncio.sleep(2 * LINGER)


async def test_namespaces_without_pods_on_the_node_are_not_read(harness: EngineHarness) -> None:
    harness.home.put(config_map("conf", "empty"))
    harness.home.put(secret("key", "empty"))
    await harness.start()
    harness.pod(uses=["cm/conf", "secret/key"])
    await harness.settle()
    harness.home.put(config_map("conf2", "empty"))
    await harness.settle()
    paths = {entry.path for entry in harness.home.requests("GET")}
    assert paths == {
        "/api/v1/pods",
        "/api/v1/namespaces/default",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/services",
        "/api/v1/namespaces/default/events",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
    }


async def test_namespace_is_not_watched_after_its_last_pod_and_the_linger(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watches_module.LINGER > LINGER
    monkeypatch.setattr(watches_module, "LINGER", LINGER)
    harness.home.put(config_map("conf"))
    await harness.start()
    harness.pod(uses=["cm/conf"])
    await harness.settle()
    harness.home.delete(PODS, "a", "default", grace_seconds=0)
    await harness.settle()
    assert harness.config_map() is None
    await harness.home.until(lambda: not harness.home.open_watches(SECRETS))
    harness.pod(uses=["cm/conf"])
    await harness.settle()
    assert harness.config_map()
    assert harness.remote.find(PODS, "a", REMOTE_NAMESPACE)
