"""Watches of the fake, event by event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest

from sync.kube import api_errors
from sync.kube.api_resources import CONFIG_MAPS, PODS, Object, Resource
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.objects import config_map, pod

STREAMED = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}


class Events:
    """The events of one watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> Object:
        event: Object = orjson.loads(await self._response.content.readline())
        return event

    async def recorded(self) -> str:
        """The next event in short: its type and the object's name."""
        event = await self.next()
        return f"{event['type']} {event['object']['metadata'].get('name', '')}".strip()

    async def ended(self) -> bool:
        return await self._response.content.readline() == b""


@asynccontextmanager
async def watch(
    client: KubeClient, resource: Resource, namespace: str | None = None, **query: str
) -> AsyncIterator[Events]:
    path = resource.path(namespace=namespace)
    async with client.stream(path, query={"watch": "1", **query}) as response:
        yield Events(response)


async def test_watch_from_a_version(api: FakeApi, client: KubeClient) -> None:
    since = api.put(config_map("a"))["metadata"]["resourceVersion"]
    api.put(config_map("b"))
    api.put(pod("p"))
    async with watch(client, CONFIG_MAPS, resourceVersion=since) as events:
        assert await events.recorded() == "ADDED b"
        changed = api.update(CONFIG_MAPS, "b", {"data": {"k": "v"}}, "default")
        assert await events.next() == {"type": "MODIFIED", "object": changed}
        api.remove(CONFIG_MAPS, "b", "default")
        gone = await events.next()
        assert gone["type"] == "DELETED"
        assert gone["object"]["metadata"]["resourceVersion"] == str(api.store.history.revision)


@pytest.mark.parametrize("version", ["", "0"])
async def test_watch_without_version_begins_with_existing_objects(
    api: FakeApi, client: KubeClient, version: str
) -> None:
    api.put(config_map("a"))
    async with watch(client, CONFIG_MAPS, resourceVersion=version) as events:
        assert await events.recorded() == "ADDED a"


async def test_watch_of_one_namespace(api: FakeApi, client: KubeClient) -> None:
    async with watch(client, CONFIG_MAPS, "default") as events:
        api.put(config_map("a", "other"))
        api.put(config_map("b"))
        assert await events.recorded() == "ADDED b"


async def test_watch_of_objects_entering_and_leaving_the_selection(
    api: FakeApi, client: KubeClient
) -> None:
    async with watch(client, CONFIG_MAPS, labelSelector="app=x") as events:
        before = api.put(config_map("a"))
        for value, expected in (("x", "ADDED a"), ("x", "MODIFIED a"), ("y", "DELETED a")):
            change: Object = {"metadata": {"labels": {"app": value}}, "data": {expected: ""}}
            last = api.update(CONFIG_MAPS, "a", change, "default")
            event = await events.next()
            assert f"{event['type']} a" == expected
        assert event["object"]["metadata"]["labels"] == {"app": "x"}
        assert event["object"]["metadata"]["uid"] == before["metadata"]["uid"]
        version = last["metadata"]["resourceVersion"]
        assert event["object"]["metadata"]["resourceVersion"] == version


async def test_field_selection(api: FakeApi, client: KubeClient) -> None:
    async with watch(client, PODS, fieldSelector="spec.nodeName=n") as events:
        api.put(pod("a"))
        api.bind("a", "n")
        assert await events.recorded() == "ADDED a"


async def test_streaming_list(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a"))
    query = {**STREAMED, "allowWatchBookmarks": "true"}
    async with watch(client, CONFIG_MAPS, **query) as events:
        assert await events.recorded() == "ADDED a"
        end = await events.next()
        assert end["type"] == "BOOKMARK"
        meta = end["object"]["metadata"]
        assert meta["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert meta["resourceVersion"] == str(api.store.history.revision)
        api.put(config_map("b"))
        assert await events.recorded() == "ADDED b"


async def test_bookmarks_are_sent_on_request(api: FakeApi, client: KubeClient) -> None:
    async with (
        watch(client, CONFIG_MAPS, allowWatchBookmarks="true") as one,
        watch(client, CONFIG_MAPS) as other,
    ):
        await api.until(lambda: len(api.open_watches(CONFIG_MAPS)) == 2)
        api.put(pod("p"))
        api.bookmark()
        api.put(config_map("a"))
        event = await one.next()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "ConfigMap"
        assert [await one.recorded(), await other.recorded()] == ["ADDED a", "ADDED a"]


async def test_watch_from_a_compacted_version(api: FakeApi, client: KubeClient) -> None:
    since = api.put(config_map("a"))["metadata"]["resourceVersion"]
    api.compact()
    async with watch(client, CONFIG_MAPS, resourceVersion=since) as events:
        event = await events.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        assert await events.ended()
    api.watches.gone_in_stream = False
    with pytest.raises(api_errors.Gone):
        async with watch(client, CONFIG_MAPS, resourceVersion=since):
            pytest.fail("it was refused")
    version = (await client.list(CONFIG_MAPS)).resource_version
    async with watch(client, CONFIG_MAPS, resourceVersion=version) as events:
        api.put(config_map("b"))
        assert await events.recorded() == "ADDED b"


async def test_open_watches_expire_or_end(api: FakeApi, client: KubeClient) -> None:
    async with watch(client, CONFIG_MAPS) as one, watch(client, PODS) as other:
        await api.until(lambda: len(api.open_watches()) == 2)
        api.expire_watches(CONFIG_MAPS)
        assert (await one.next())["object"]["reason"] == "Expired"
        assert await one.ended()
        api.end_watches(PODS)
        assert await other.ended()
    await api.until(lambda: not api.open_watches())
