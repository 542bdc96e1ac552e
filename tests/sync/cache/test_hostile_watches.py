"""A hostile or broken API server cannot keep a watch from ending, or fill the memory by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import orjson
import pytest

from sync.cache import watcher
from sync.cache.informer import Informer
from sync.cache.store import Key, Store
from sync.cache.store_writer import StoreWriter
from sync.cache.watcher import BrokenWatchError, Watcher
from sync.kube import response_limits
from sync.kube.api_errors import Gone, ResponseTooLarge
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi
from tests.fakeapi.hostile_server import Body, HostileServer, endless, head
from tests.objects import config_map
from tests.sync.informer_harness import caught_up, running_informer
from tests.sync.kube.test_response_limits import MIB, hostile_client, memory_below
from tests.sync.loop_steps import LoopSteps


def watcher_of(client: KubeClient, store: Store) -> Watcher:
    """A watcher of ConfigMaps."""
    return Watcher(
        client,
        CONFIG_MAPS,
        path=CONFIG_MAPS.path(),
        query={},
        store=store,
        writer=StoreWriter(client, CONFIG_MAPS, store),
        rng=random.Random(0),
        on_alive=lambda: None,
    )


def event(name: str, *, size: int = 0) -> bytes:
    """The line of an event."""
    obj = {**config_map(name), "data": {"a": "x" * size}}
    obj["metadata"] |= {"uid": name, "resourceVersion": "7"}
    return orjson.dumps({"type": "ADDED", "object": obj}) + b"\n"


async def test_watch_without_newlines_ends_at_the_limit(api: FakeApi) -> None:
    """It once kept 200 MB."""
    async with hostile_client(HostileServer(head(), endless(b"x" * 2**16)), api) as client:
        with memory_below(64 * MIB), pytest.raises(ResponseTooLarge, match="event"):
            await watcher_of(client, Store()).watch()
        assert client.limits.rejected["watch-event"] == 1


@pytest.mark.real_time  # the flood never pauses
async def test_watch_of_empty_lines_uses_no_memory(api: FakeApi) -> None:
    server = HostileServer(head(), endless(b"\n" * 2**16))
    async with hostile_client(server, api) as client:
        with memory_below(32 * MIB), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await watcher_of(client, Store()).watch()


async def test_large_event_that_drips_ends_the_watch(api: FakeApi) -> None:
    """It would keep other large bodies of the same API server waiting."""
    server = HostileServer(head(), endless(b"x", first=b"x" * 2**19, every=1.0))
    async with hostile_client(server, api) as client:
        for _ in range(response_limits.LARGE_BODIES + 1):
            with pytest.raises(BrokenWatchError, match="does not end"):
                await watcher_of(client, Store()).watch()
        assert client.limits.rejected["watch-event"] == response_limits.LARGE_BODIES + 1


async def test_drip_is_no_sign_of_life(api: FakeApi) -> None:
    """A watch that sent a bookmark, and then one byte after the other, ends as a silent one."""
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    drip = endless(b"x", first=orjson.dumps(bookmark) + b"\n", every=1.0)
    async with hostile_client(HostileServer(head(), drip), api) as client:
        async with asyncio.timeout(watcher.SILENCE + 5):
            await watcher_of(client, Store()).watch()


async def test_watch_that_the_server_does_not_end_is_ended(api: FakeApi) -> None:
    lines = endless(event("a"), every=5.0)
    async with hostile_client(HostileServer(head(), lines), api) as client:
        async with asyncio.timeout(watcher.WATCH_SECONDS[1] + 2 * watcher.WATCH_GRACE + 1):
            await watcher_of(client, Store()).watch()


async def test_large_events_are_stored_and_release_their_turn(api: FakeApi) -> None:
    """More of them than may be in memory at once, with small ones in between."""

    async def body() -> AsyncIterator[bytes]:
        for number in range(4):
            yield event(f"large-{number}", size=2 * MIB)
            yield event(f"small-{number}")

    checked: Body = body
    async with hostile_client(HostileServer(head(), checked), api) as client:
        store = Store()
        await watcher_of(client, store).watch()
        assert len(store) == 8
        async with asyncio.timeout(30):
            await client.limits.turn().take()


def dense(name: str, kind: str) -> bytes:
    """The line of an event that is too dense to be decoded, as an API server writes it."""
    meta = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "8"}
    head = orjson.dumps({"type": kind, "object": {"kind": "Pod", "apiVersion": "v1"}})[:-2]
    values = b"[]," * (response_limits.DECODED_LIMIT // 200)
    return head + b',"metadata":' + orjson.dumps(meta) + b',"spec":[' + values + b"0]}}\n"


async def test_event_that_is_too_dense_is_skipped(api: FakeApi) -> None:
    """The store keeps the state that it has, and further events follow."""

    async def body() -> AsyncIterator[bytes]:
        yield event("a") + dense("a", "MODIFIED") + dense("b", "ADDED") + event("c")

    checked: Body = body
    async with hostile_client(HostileServer(head(), checked), api) as client:
        store = Store()
        watching = watcher_of(client, store)
        await watching.watch()
        assert store.keys() == {Key("default", "a"), Key("default", "c")}
        assert client.limits.rejected["memory"] == 2
        async with asyncio.timeout(30):
            for _ in range(response_limits.large_bodies()):
                await client.limits.turn().take()


async def test_deletion_that_is_too_dense_requires_a_list(api: FakeApi) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield event("a") + dense("a", "DELETED")

    checked: Body = body
    async with hostile_client(HostileServer(head(), checked), api) as client:
        with pytest.raises(Gone, match="decoded"):
            await watcher_of(client, Store()).watch()


@pytest.mark.real_time  # measures CPU time
@pytest.mark.parametrize("attack", ["empty", "small", "malformed"])
async def test_flood_of_events_lets_other_tasks_run(api: FakeApi, attack: str) -> None:
    """A watch never waits for the server."""
    malformed = b'{"type":"MODIFIED","object":{"metadata":{"name":5}}}\n'
    small = b"".join(event(f"e{number}") for number in range(200))
    piece = {"empty": b"\n" * 2**16, "malformed": malformed * 1000, "small": small}[attack]
    steps = LoopSteps()
    server = HostileServer(head(), endless(piece))
    async with hostile_client(server, api) as client:
        watching = asyncio.create_task(watcher_of(client, Store()).watch())
        await asyncio.sleep(0.2)
        with steps.measured():
            await asyncio.sleep(1)
        assert not watching.done()
        watching.cancel()
        await asyncio.wait([watching])
    assert steps.longest < 0.05, steps.what


async def test_informer_survives_and_lists_again(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event beyond the limit ends the watch; smaller states of the object follow."""
    monkeypatch.setattr(watcher, "BODY_LIMIT", 2**16)
    monkeypatch.setattr(watcher, "SMALL_BODY", 2**14)
    informer, failed = Informer(client, CONFIG_MAPS), asyncio.Event()
    informer.on_state(lambda it: failed.set() if it.error else None)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.put({**config_map("a"), "data": {"a": "x" * 2**20}})
        async with asyncio.timeout(30):
            await failed.wait()
        assert isinstance(informer.error, ResponseTooLarge)
        api.put(config_map("a"))
        api.put(config_map("b"))
        informer.retry_now()
        api.compact()
        async with asyncio.timeout(10):
            while informer.store.keys() != {Key("default", "a"), Key("default", "b")}:
                informer.retry_now()
                await asyncio.sleep(0.01)
