"""A list and watch against an API server that behaves."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sync.cache.informer import Informer
from sync.cache.interning import InternPool
from sync.cache.store import Key, Store
from sync.cache.store_writer import StoreWriter
from sync.cache.watcher import LineSplitter, Watcher
from sync.kube.api_resources import CONFIG_MAPS, PODS
from sync.kube.client import KubeClient
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map, pod
from tests.sync.informer_harness import (
    ChangeRecorder,
    ShortenedBackoff,
    caught_up,
    running_informer,
)
from translators.object_accessors import Object


@pytest.fixture
def informer(client: KubeClient) -> Informer:
    """Of ConfigMaps in all namespaces."""
    return Informer(client, CONFIG_MAPS)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> ShortenedBackoff:
    """The waits of informers after failures; they wait a hundredth of it."""
    return ShortenedBackoff(monkeypatch)


async def test_synced_is_set_after_handlers_of_the_first_list(
    api: FakeApi, informer: Informer
) -> None:
    for name in "abc":
        api.put(config_map(name))
    seen: list[tuple[int, bool]] = []
    informer.on_change(lambda *_: seen.append((len(informer.store), informer.synced.is_set())))
    async with running_informer(informer):
        assert seen == [(1, False), (2, False), (3, False)]


async def test_empty_list_sets_synced(informer: Informer) -> None:
    async with running_informer(informer):
        assert len(informer.store) == 0


async def test_list_in_pages_is_one_state(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.cache.informer.PAGE", 3)
    for number in range(8):
        api.put(config_map(f"c{number}"))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        assert recorded.take() == [f"+c{number}" for number in range(8)]
        assert len(api.requests("GET", "/api/v1/configmaps")) >= 3


async def test_only_selected_objects_are_stored(api: FakeApi, client: KubeClient) -> None:
    api.put(pod("mine", node="virtual"))
    api.put(pod("other", node="real"))
    api.put(pod("later"))
    informer = Informer(client, PODS, fields="spec.nodeName=virtual")
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.bind("later", "virtual")
        api.put(pod("elsewhere", node="real"))
        await caught_up(api, informer)
        assert recorded.take() == ["+mine", "+later"]


async def test_managed_fields_are_dropped(api: FakeApi, informer: Informer) -> None:
    made = api.put({**config_map("a"), "future": [1]})
    api.update(CONFIG_MAPS, "a", {"metadata": {"managedFields": [{"manager": "x"}]}}, "default")
    async with running_informer(informer):
        kept = informer.store.get(Key("default", "a"))
        assert kept is not None
        assert "managedFields" not in kept["metadata"]
        assert kept["metadata"]["uid"] == made["metadata"]["uid"]
        assert kept["future"] == [1]


async def test_refresh_waits_for_the_current_state(api: FakeApi, informer: Informer) -> None:
    api.put(config_map("gone"))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        recorded.take()
        api.mute_watches()
        api.put(config_map("made"))
        api.remove(CONFIG_MAPS, "gone", "default")
        async with asyncio.timeout(30):
            await asyncio.gather(informer.refresh(), informer.refresh())
        assert recorded.take() == ["+made", "-gone"]
        api.unmute_watches()
        api.put(config_map("later"))
        await caught_up(api, informer)
        assert recorded.take() == ["+later"]


async def test_refresh_ignores_lists_that_began_earlier_or_failed(
    api: FakeApi, informer: Informer
) -> None:
    async with running_informer(informer):
        await api.until(api.open_watches)
        api.fail(Fault("GET", "*/configmaps", watch=False, code=500))
        slow = api.fail(Fault("GET", "*/configmaps", watch=False, delay=0.1))
        first = asyncio.create_task(informer.refresh())
        await api.until(lambda: slow.hits)
        second = asyncio.create_task(informer.refresh())
        async with asyncio.timeout(30):
            await first
            assert not second.done()
            await second
        lists = [it for it in api.requests("GET", "/api/v1/configmaps") if not it.watch]
        assert len(lists) == 4


async def test_handlers_receive_the_old_and_the_new_object(
    api: FakeApi, informer: Informer
) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        first = api.put(config_map("a", data={"k": "1"}))
        await caught_up(api, informer)
        second = api.put(config_map("a", data={"k": "2"}))
        await caught_up(api, informer)
        api.remove(CONFIG_MAPS, "a", "default")
        await caught_up(api, informer)
        (none, added), (old, new), (last, gone) = recorded.changes
        assert (none, gone) == (None, None)
        assert added == old == first
        assert new == second
        assert last is not None
        assert last["data"] == {"k": "2"}
        assert len(informer.store) == 0


async def test_unchanged_parts_stay_identical(api: FakeApi, client: KubeClient) -> None:
    made = pod("a", labels={"app": "x"})
    api.put({**made, "status": {"conditions": [{"type": "Ready"}, {"type": "Initialized"}]}})
    informer = Informer(client, PODS, pool=InternPool())
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        change = {
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized"}]}
        }
        api.update(PODS, "a", change, "default")
        await caught_up(api, informer)
        api.update(PODS, "a", {"metadata": {"labels": {"app": "y"}}}, "default")
        await caught_up(api, informer)
        api.remove(PODS, "a", "default")
        await caught_up(api, informer)
    (_, first), (old, ready), (_, moved), (gone, _) = recorded.changes
    assert first is not None
    assert ready is not None
    assert moved is not None
    assert gone is not None
    assert old is first
    assert ready["spec"] is first["spec"]
    assert ready["metadata"]["labels"] is first["metadata"]["labels"]
    assert ready["status"]["conditions"][1] is first["status"]["conditions"][1]
    assert ready["status"]["conditions"][0]["status"] == "True"
    assert moved["status"] is ready["status"]
    assert moved["metadata"]["labels"] == {"app": "y"}
    assert gone["spec"] is first["spec"]


async def test_object_leaving_the_selection_is_deleted(api: FakeApi, client: KubeClient) -> None:
    api.put(config_map("a", labels={"mine": "yes"}))
    informer = Informer(client, CONFIG_MAPS, labels="mine=yes")
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.update(CONFIG_MAPS, "a", {"metadata": {"labels": {"mine": "no"}}}, "default")
        await caught_up(api, informer)
        api.update(CONFIG_MAPS, "a", {"metadata": {"labels": {"mine": "yes"}}}, "default")
        await caught_up(api, informer)
        assert recorded.take() == ["+a", "-a", "+a"]


async def test_object_of_megabytes_is_stored(api: FakeApi, informer: Informer) -> None:
    async with running_informer(informer):
        api.put(config_map("big", data={"k": "x" * 3_000_000}))
        await caught_up(api, informer)
        kept = informer.store.get(Key("default", "big"))
        assert kept is not None
        assert len(kept["data"]["k"]) == 3_000_000


async def test_watch_timeouts_differ(api: FakeApi, informer: Informer) -> None:
    async with running_informer(informer):
        for _ in range(6):
            await caught_up(api, informer)
            api.end_watches()
            await api.until(lambda: not api.open_watches())
    seconds = {entry.query["timeoutSeconds"] for entry in api.log if entry.watch}
    assert len(seconds) > 1
    assert all(300 <= int(value) <= 600 for value in seconds)


async def test_ended_watch_continues_without_a_list(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.put(config_map("a"))
        await caught_up(api, informer)
        api.clear_log()
        api.end_watches()
        api.put(config_map("b"))
        await caught_up(api, informer)
        assert recorded.take() == ["+a", "+b"]
        assert all(entry.watch for entry in api.log)
        assert waits.taken == []
        assert recorded.states == []


async def test_bookmarks_advance_the_version(api: FakeApi, informer: Informer) -> None:
    async with running_informer(informer):
        api.put(pod("of-another-kind"))
        api.compact()
        await caught_up(api, informer)
        api.clear_log()
        api.break_watches()
        await api.until(lambda: api.log)
        await caught_up(api, informer)
        assert [entry.watch for entry in api.log] == [True]


async def test_last_contact_advances_with_each_event(api: FakeApi, informer: Informer) -> None:
    def heard() -> float:
        return informer.last_contact or 0.0

    assert not heard()
    async with running_informer(informer):
        listed = heard()
        assert listed
        await api.until(api.open_watches)
        await asyncio.sleep(1)
        api.bookmark()
        await api.until(lambda: heard() > listed)


async def test_cancellation_leaves_no_task(api: FakeApi, informer: Informer) -> None:
    async with running_informer(informer) as task:
        await caught_up(api, informer)
    assert task.cancelled()
    await api.until(lambda: not api.open_watches())
    left = [task.get_coro() for task in asyncio.all_tasks()]
    assert not [coro for coro in left if "Informer" in repr(coro)]


async def test_observed_write_is_stored_and_reported_once(api: FakeApi, informer: Informer) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.mute_watches()
        made = await informer.client.create(CONFIG_MAPS, config_map("a"), namespace="default")
        informer.observe_write(made)
        assert informer.store.get(Key("default", "a")) == made
        api.unmute_watches()
        await caught_up(api, informer)
        assert recorded.take() == ["+a"]


def test_event_of_an_observed_write_is_not_parsed(
    client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of what an event costs is to parse it, and a third of a pod's are our own writes."""
    parsed: list[bytes] = []
    loads = orjson.loads

    def noted(line: bytes) -> Any:
        parsed.append(line)
        return loads(line)

    monkeypatch.setattr("sync.kube.response_limits.orjson.loads", noted)
    store = Store()
    writer = StoreWriter(client, CONFIG_MAPS, store)
    watcher = Watcher(
        client,
        CONFIG_MAPS,
        path=CONFIG_MAPS.path(),
        query={},
        store=store,
        writer=writer,
        rng=random.Random(0),
        on_alive=lambda: None,
    )

    def written(name: str, version: str) -> Object:
        meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
        meta["resourceVersion"] = version
        return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}

    def line(obj: Object, **changed: str) -> bytes:
        changed_object = {**obj, "metadata": obj["metadata"] | changed}
        return orjson.dumps({"type": "MODIFIED", "object": changed_object})

    writer.put(written("a", "1"))
    writer.put(written("b", "2"))
    changes: list[tuple[Object | None, Object | None]] = []
    writer.on_change(lambda old, new: changes.append((old, new)))
    watcher.handle(line(written("a", "1")))
    assert watcher.resource_version == "1"
    watcher.handle(line(written("b", "2")))
    assert watcher.resource_version == "2"
    assert (parsed, changes) == ([], [])
    watcher.handle(line(written("b", "999")))
    watcher.handle(line(written("b", "1000"), uid="another"))
    assert len(parsed) == 2
    assert [(bool(old), bool(new)) for old, new in changes] == [
        (True, True),
        (True, False),
        (False, True),
    ]


async def test_compact_replaces_the_same_state_only(api: FakeApi, informer: Informer) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.put(config_map("a", data={"k": "1"}))
        await caught_up(api, informer)
        first = informer.store.get(Key("default", "a"))
        assert first is not None
        less = {"metadata": first["metadata"]}
        informer.compact(first, less)
        assert informer.store.get(Key("default", "a")) is less
        assert recorded.take() == ["+a"]
        api.put(config_map("a", data={"k": "2"}))
        await caught_up(api, informer)
        informer.compact(less, {})
        second = informer.store.get(Key("default", "a"))
        assert second is not None
        assert second["data"] == {"k": "2"}


async def test_event_older_than_an_observed_write_is_skipped(
    api: FakeApi, informer: Informer
) -> None:
    api.put(config_map("a", data={"k": "0"}))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.mute_watches()
        api.put(config_map("a", data={"k": "1"}))
        patch = {"data": {"k": "2"}}
        informer.observe_write(
            await informer.client.patch(CONFIG_MAPS, "a", patch, namespace="default")
        )
        api.unmute_watches()
        await caught_up(api, informer)
        assert [new and new["data"]["k"] for _, new in recorded.changes] == ["0", "2"]


async def test_observed_write_older_than_the_watch_is_skipped(
    api: FakeApi, informer: Informer
) -> None:
    async with running_informer(informer):
        old = api.put(config_map("a", data={"k": "1"}))
        api.put(config_map("a", data={"k": "2"}))
        await caught_up(api, informer)
        informer.observe_write(old)
        kept = informer.store.get(Key("default", "a"))
        assert kept is not None
        assert kept["data"] == {"k": "2"}


async def test_observed_write_does_not_restore_a_deleted_object(
    api: FakeApi, informer: Informer
) -> None:
    """The answer can come after the event of a deletion that followed the write."""
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        written = api.put(config_map("a"))
        api.remove(CONFIG_MAPS, "a", "default")
        await caught_up(api, informer)
        informer.observe_write(written)
        assert len(informer.store) == 0
        assert recorded.take() == ["+a", "-a"]


async def test_object_created_and_deleted_during_a_list_is_removed(
    api: FakeApi, informer: Informer
) -> None:
    api.fail(Fault(watch=False, method="GET", delay=0.05))

    async def meanwhile() -> None:
        await api.until(lambda: api.log)
        informer.observe_write(api.put(config_map("ghost")))
        api.remove(CONFIG_MAPS, "ghost", "default")
        informer.observe_write(api.put(config_map("real")))

    writing = asyncio.create_task(meanwhile())
    async with running_informer(informer):
        await writing
        assert informer.store.keys() == {Key("default", "real")}


async def test_events_of_a_previous_object_do_not_replace_its_successor(
    api: FakeApi, informer: Informer
) -> None:
    api.put(config_map("a", data={"k": "stale"}))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.mute_watches()
        api.put(config_map("a", data={"k": "changed"}))
        api.remove(CONFIG_MAPS, "a", "default")
        informer.observe_write(
            await informer.client.create(CONFIG_MAPS, config_map("a"), namespace="default")
        )
        assert recorded.take() == ["+a", "-a", "+a"]
        api.unmute_watches()
        await caught_up(api, informer)
        assert recorded.take() == []
        assert len(informer.store) == 1


async def test_stale_deletion_from_the_selection_is_skipped(
    api: FakeApi, client: KubeClient
) -> None:
    api.put(config_map("a", labels={"mine": "yes"}))
    informer = Informer(client, CONFIG_MAPS, labels="mine=yes")
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.mute_watches()
        api.update(CONFIG_MAPS, "a", {"metadata": {"labels": {"mine": "no"}}}, "default")
        patch = {"metadata": {"labels": {"mine": "yes"}}, "data": {"k": "v"}}
        informer.observe_write(await client.patch(CONFIG_MAPS, "a", patch, namespace="default"))
        api.unmute_watches()
        await caught_up(api, informer)
        assert recorded.take() == ["+a", "~a"]


@given(
    lines=st.lists(st.binary(min_size=1, max_size=8).map(lambda b: b.replace(b"\n", b"."))),
    cuts=st.lists(st.integers(0, 60)),
)
def test_lines_are_complete_wherever_chunks_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})

    splitter = LineSplitter()
    found = [splitter.feed(data[begin:end]) for begin, end in itertools.pairwise(places)]
    assert [line for some in found for line in some] == lines
    assert splitter.partial == 0


async def test_last_contact_is_set_when_a_watch_begins(api: FakeApi, informer: Informer) -> None:
    never = informer.last_contact
    assert never is None
    async with running_informer(informer):
        await api.until(lambda: api.open_watches(CONFIG_MAPS))
        api.put(config_map("a"))
        await api.until(lambda: len(informer.store) == 1)
        first = informer.last_contact
        assert first is not None
        await asyncio.sleep(0.02)
        assert informer.last_contact == first
        api.end_watches(CONFIG_MAPS)  # and no event afterwards
        await api.until(lambda: (informer.last_contact or 0) > first)
        assert len(informer.store) == 1
