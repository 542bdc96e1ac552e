"""One Namespace, by its name, for a credential that has a Role in it alone."""

from __future__ import annotations

import asyncio

import pytest

from sync.cache.namespaced_informer import NamedObjectInformer, NamespacedInformer
from sync.cache.store import Key, key_of
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import NAMESPACES, Object
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault
from tests.sync.informer_harness import ChangeRecorder, ShortenedBackoff, running_informer

READ, WATCH = "/api/v1/namespaces/shop", "/api/v1/watch/namespaces/shop"


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> ShortenedBackoff:
    """Failures are retried soon."""
    return ShortenedBackoff(monkeypatch)


def namespace(name: str = "shop") -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def test_changes_of_the_object_are_observed_by_requests_with_its_name(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(namespace("another"))
    informer = NamedObjectInformer(client, NAMESPACES, "shop")
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        assert len(informer.store) == 0
        await api.until(lambda: api.open_watches(NAMESPACES))
        api.put(namespace())
        await api.until(lambda: informer.store.get(Key("", "shop")))
        api.update(NAMESPACES, "shop", {"metadata": {"labels": {"a": "1"}}})
        await api.until(lambda: len(recorded.changes) == 2)
        api.remove(NAMESPACES, "shop")
        await api.until(lambda: len(informer.store) == 0)
        assert await informer.list_now() == []
    assert recorded.take() == ["+shop", "~shop", "-shop"]
    assert {entry.path for entry in api.log} == {READ, WATCH}


async def test_deletion_before_the_watch_is_found_when_the_watch_ends(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(namespace())
    informer = NamedObjectInformer(client, NAMESPACES, "shop")
    async with running_informer(informer):
        await api.until(lambda: api.open_watches(NAMESPACES))
        api.mute_watches()
        api.remove(NAMESPACES, "shop")
        assert informer.store.get(Key("", "shop"))
        api.break_watches(NAMESPACES)
        await api.until(lambda: len(informer.store) == 0)
        api.unmute_watches()


async def test_prepared_namespaces_are_one_store(api: FakeApi, client: KubeClient) -> None:
    for name in ("a", "b", "c"):
        api.put(namespace(name))
    informer = NamespacedInformer(client, NAMESPACES, namespaces=["a", "b"])
    async with running_informer(informer):
        assert {key_of(it) for it in informer.store} == {Key("", "a"), Key("", "b")}
        changed = api.update(NAMESPACES, "a", {"metadata": {"labels": {"x": "1"}}})
        informer.observe_write(changed)
        assert informer.store.get(Key("", "a")) is changed
        informer.compact(changed, namespace("a"))
        assert informer.store.get(Key("", "a")) == namespace("a")


async def test_namespace_that_is_forbidden_after_a_while_fails_only_with_all_others(
    api: FakeApi, client: KubeClient
) -> None:
    for name in ("a", "b"):
        api.put(namespace(name))
    informer = NamespacedInformer(client, NAMESPACES, namespaces=["a", "b"])
    async with running_informer(informer):
        await api.until(lambda: len(api.open_watches(NAMESPACES)) == 2)
        states: list[bool] = []
        informer.on_state(lambda it: states.append(it.error is None))
        api.fail(Fault("GET", "/api/v1/*namespaces/b", code=403, times=None))
        api.end_watches(NAMESPACES)
        await api.until(lambda: states)
        assert informer.error is None
        assert informer.failing_since is None
        assert informer.store.get(Key("", "b")), "the last state stays"
        await asyncio.wait_for(informer.refresh(), 5)
        api.fail(Fault("GET", "/api/v1/*namespaces/a", code=403, times=None))
        api.end_watches(NAMESPACES)
        await api.until(lambda: isinstance(informer.error, Forbidden))
        assert informer.failing_since is not None
