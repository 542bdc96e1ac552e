"""List and watch against an API server that fails, expires versions, or is unreachable."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from sync.base import clock
from sync.base.background_task import background_task
from sync.cache import informer_health, watcher
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import Unauthorized, Unreachable
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from sync.kube.transport import REQUEST_TIMEOUT
from tests.fakeapi import FakeApi, Fault
from tests.objects import config_map
from tests.sync.informer_harness import (
    ChangeRecorder,
    ShortenedBackoff,
    caught_up,
    running_informer,
)
from translators.object_accessors import Object, name_of


@pytest.fixture
def informer(client: KubeClient, waits: ShortenedBackoff) -> Informer:
    """Of ConfigMaps in all namespaces."""
    return Informer(client, CONFIG_MAPS)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> ShortenedBackoff:
    """The waits of informers after failures; they wait a hundredth of it."""
    return ShortenedBackoff(monkeypatch)


@pytest.fixture
def proven_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch counts as established at once, not after a second."""
    monkeypatch.setattr(watcher, "SHORT_WATCH", 0.02)


async def test_broken_watch_continues_without_a_list(api: FakeApi, informer: Informer) -> None:
    api.put(config_map("gone"))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.clear_log()
        for name in "abc":
            api.break_watches()
            api.put(config_map(name))
            await caught_up(api, informer)
        api.break_watches()
        api.remove(CONFIG_MAPS, "gone", "default")
        await caught_up(api, informer)
        assert recorded.take() == ["+gone", "+a", "+b", "+c", "-gone"]
        assert all(entry.watch for entry in api.log)


async def test_watch_continues_after_a_server_restart(api: FakeApi, informer: Informer) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.put(config_map("a"))
        await caught_up(api, informer)
        api.clear_log()
        await api.stop()
        await asyncio.sleep(0.02)
        api.put(config_map("b"))
        await api.start()
        await caught_up(api, informer)
        assert recorded.take() == ["+a", "+b"]
        assert all(entry.watch for entry in api.log)


async def test_rewatch_continues_from_its_version_or_is_rejected(
    api: FakeApi, client: KubeClient, informer: Informer
) -> None:
    """A credential is revoked: the watch continues, and the server rejects other requests."""
    client.on_unauthorized(informer.rewatch)
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.clear_log()
        informer.rewatch()
        await caught_up(api, informer)
        assert not api.requests("GET"), "it is young"

        await asyncio.sleep(watcher.REWATCH_AGE)
        informer.rewatch()
        api.put(config_map("a"))
        await caught_up(api, informer)
        assert recorded.take() == ["+a"]
        assert all(entry.watch for entry in api.log)
        assert informer.error is None

        await asyncio.sleep(watcher.REWATCH_AGE)
        api.fail(Fault("*", "*", code=401, times=None))
        with pytest.raises(Unauthorized):
            await client.get(CONFIG_MAPS, "a", namespace="default")
        await api.until(lambda: isinstance(informer.error, Unauthorized))
        api.heal()
        await caught_up(api, informer)
        await api.until(lambda: informer.error is None)


async def test_watch_without_bookmarks_is_requested_again(api: FakeApi, informer: Informer) -> None:
    """A server hangs: its connections stay open, and no data arrives."""
    async with running_informer(informer):
        await api.until(api.open_watches)
        api.clear_log()
        await asyncio.sleep(3 * watcher.SILENCE)
        assert not api.requests("GET"), "it may be a server that sends no bookmarks"

        api.bookmark()
        await api.until(lambda: api.requests("GET"))
        assert all(entry.watch for entry in api.log)
        assert informer.error is None, "the server answers"

        api.fail(Fault(watch=True, delay=10 * REQUEST_TIMEOUT, times=None))
        await api.until(lambda: isinstance(informer.error, Unreachable), timeout=300)
        api.heal()
        api.put(config_map("a"))
        await caught_up(api, informer)
        await api.until(lambda: informer.error is None)
        assert informer.store.get(Key("default", "a"))


async def test_watch_with_events_is_not_requested_again(api: FakeApi, informer: Informer) -> None:
    async with running_informer(informer):
        await api.until(api.open_watches)
        api.clear_log()
        # Not longer than the watch: it lasts `WATCH_SECONDS` at least.
        for _ in range(3):
            api.bookmark()
            await asyncio.sleep(0.9 * watcher.SILENCE)
        assert not api.requests("GET")


@pytest.mark.usefixtures("proven_soon")
async def test_state_handlers_are_called_at_begin_and_end_of_failures(
    api: FakeApi, informer: Informer, caplog: pytest.LogCaptureFixture
) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        before = asyncio.get_running_loop().time()
        await api.stop()
        await api.until(lambda: informer.error is not None)
        since = informer.failing_since
        assert since is not None
        assert since >= before
        await asyncio.sleep(0.05)
        assert [informer.failing_since, *recorded.states] == [since, False]
        assert "Unreachable" in repr(informer)
        await api.start()
        await api.until(lambda: informer.error is None)
        assert recorded.states == [False, True]
        assert "Unreachable" not in repr(informer)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1


async def test_server_is_found_soon_after_a_long_outage(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    """The back-off stays short, also while the server responds that it is not ready yet."""
    async with running_informer(informer):
        await api.stop()
        await api.until(lambda: len(waits.taken) > 8)
        assert max(waits.taken) <= informer_health.UNREACHABLE_CAP
        starting = api.fail(Fault(code=500, times=2))
        await api.start()
        await api.until(lambda: informer.error is None)
        assert starting.hits == 2
        assert max(waits.taken[-2:]) <= 1.6, "the first two waits after a refusal"


@pytest.mark.parametrize("code", [403, 500, 503])
@pytest.mark.parametrize("on_watch", [True, False], ids=["the watch", "the list"])
async def test_rejections_back_off(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff, code: int, on_watch: bool
) -> None:
    fault = api.fail(Fault(code=code, watch=on_watch, times=4))
    api.put(config_map("a"))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await api.until(lambda: fault.hits == 4 and api.open_watches())
        assert recorded.take() == ["+a"]
    assert len(waits.taken) == 4
    assert waits.taken[3] > waits.taken[0]


async def test_throttled_list_honors_retry_after(api: FakeApi, informer: Informer) -> None:
    api.fail(Fault(code=429, retry_after=7, times=2))
    started = clock.now()
    async with running_informer(informer):
        assert clock.now() - started == pytest.approx(14)


async def test_a_slow_list_is_waited_for(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    api.put(config_map("a"))
    api.fail(Fault(delay=0.05, times=2))
    async with running_informer(informer):
        assert informer.store.keys() == {Key("default", "a")}
    assert waits.taken == []


def answer_watches(api: FakeApi, monkeypatch: pytest.MonkeyPatch, *lines: bytes) -> None:
    """Each watch is answered with the lines and ends, as by a proxy; lists are as they are."""

    async def answer(request: web.Request, *_: object) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        await response.write_eof()
        return response

    monkeypatch.setattr(api.watches, "serve", answer)


async def test_short_watches_back_off(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_watches(api, monkeypatch)
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await api.until(lambda: len(waits.taken) >= 5)
        assert waits.taken[4] > 4 * waits.taken[0]
        assert informer.failing_since is not None
        assert recorded.states == [False], "it neither works nor recovers in between"


@pytest.mark.parametrize(
    "line",
    [
        b"<html>login</html>\n",
        b'"text"\n',
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":null}\n',
        b'{"type":"ADDED","object":[]}\n',
        b'{"type":"NEWS","object":{"kind":"ConfigMap","metadata":{}}}\n',
    ],
    ids=["a page", "a string", "no object", "a null object", "a list for an object", "a new type"],
)
async def test_malformed_event_backs_off(
    api: FakeApi,
    informer: Informer,
    waits: ShortenedBackoff,
    line: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_watches(api, monkeypatch, line)
    async with running_informer(informer) as task:
        await api.until(lambda: len(waits.taken) >= 2)
        assert not task.done()
        assert informer.error is not None
        assert "login" not in str(informer.error)


async def test_error_event_other_than_410_backs_off_without_a_list(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    async with running_informer(informer):
        await caught_up(api, informer)
        api.clear_log()
        status = {"kind": "Status", "code": 500, "reason": "InternalError", "message": "oh"}
        for watch in api.open_watches():
            watch.send({"type": "ERROR", "object": status}, last=True)
        await api.until(lambda: waits.taken and api.log)
        assert all(entry.watch for entry in api.log)


@pytest.mark.parametrize(
    "in_stream", [True, False], ids=["as an event of the stream", "as the answer's code"]
)
async def test_expired_version_lists_again_and_reports_differences_only(
    api: FakeApi, informer: Informer, in_stream: bool, waits: ShortenedBackoff
) -> None:
    api.watches.gone_in_stream = in_stream
    for name in ("same", "gone", "changed"):
        api.put(config_map(name))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        recorded.take()
        await api.stop()
        api.remove(CONFIG_MAPS, "gone", "default")
        api.put(config_map("changed", data={"k": "v"}))
        api.put(config_map("new"))
        api.compact()
        await api.start()
        await caught_up(api, informer)
        assert sorted(recorded.take()) == ["+new", "-gone", "~changed"]
        assert informer.store.keys() == {Key("default", n) for n in ("same", "changed", "new")}


async def test_expired_watch_lists_again_at_once(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.put(config_map("a"))
        await caught_up(api, informer)
        recorded.take()
        api.clear_log()
        api.expire_watches()
        await api.until(lambda: len(api.log) >= 2)
        assert [entry.watch for entry in api.log] == [False, True]
        assert recorded.take() == []
        assert waits.taken == []
        assert recorded.states == []


async def test_unobserved_replacement_is_reported_as_deletion_and_creation(
    api: FakeApi, informer: Informer
) -> None:
    api.put(config_map("a", data={"k": "1"}))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        await caught_up(api, informer)
        recorded.take()
        await api.stop()
        api.remove(CONFIG_MAPS, "a", "default")
        api.put(config_map("a", data={"k": "2"}))
        api.compact()
        await api.start()
        await caught_up(api, informer)
        assert recorded.take() == ["-a", "+a"]


async def test_list_that_expires_between_pages_restarts(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.cache.informer.PAGE", 2)
    for number in range(5):
        api.put(config_map(f"c{number}"))
    expired = api.fail(Fault(when=lambda entry: "continue" in entry.query, code=410))
    async with running_informer(informer):
        assert expired.hits == 1
        assert len(informer.store) == 5


async def test_lists_back_off_if_versions_expire_during_them(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_watches(api, monkeypatch, EXPIRED)
    async with running_informer(informer):
        await api.until(lambda: len(api.requests()) >= 12)
        lists = [entry for entry in api.log if not entry.watch]
        assert len(waits.taken) >= len(lists) - 2
        assert waits.taken[3] > 2 * waits.taken[0]


EVENT = (
    b'{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":'
    b'{"name":"a","namespace":"default","uid":"u","resourceVersion":"9"}}}\n'
)
EXPIRED = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'


@pytest.mark.parametrize("lines", [[EVENT], [EVENT, EXPIRED]], ids=["ended", "expired"])
async def test_watches_that_end_after_one_event_are_requested_at_growing_intervals(
    api: FakeApi,
    informer: Informer,
    waits: ShortenedBackoff,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[bytes],
) -> None:
    answer_watches(api, monkeypatch, *lines)
    async with running_informer(informer):
        await api.until(lambda: len([entry for entry in api.log if entry.watch]) >= 8)
        assert len(waits.taken) >= 6
        assert waits.taken[5] > 8 * waits.taken[0]
        assert informer.error is None


async def test_watches_that_end_normally_or_once_early_are_requested_without_a_wait(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff
) -> None:
    async with running_informer(informer):
        for seconds in (250, 250, 0, 2, 2, 250, 0, 250):
            await api.until(api.open_watches)
            api.put(config_map(f"after-{asyncio.get_running_loop().time():.0f}"))
            await caught_up(api, informer)
            await asyncio.sleep(seconds)
            api.end_watches()
            await api.until(lambda: not api.open_watches())
        await api.until(api.open_watches)
        assert waits.taken == []


async def test_refresh_ends_the_wait_after_early_ends(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ShortenedBackoff(monkeypatch, shortened=1)
    informer = Informer(client, CONFIG_MAPS)
    answer_watches(api, monkeypatch, EVENT)
    async with running_informer(informer):
        await asyncio.sleep(60)
        monkeypatch.undo()
        api.put(config_map("made"))
        async with asyncio.timeout(0.2):
            await informer.refresh()
        assert informer.store.get(Key("default", "made")) is not None


async def test_server_restored_from_a_backup_is_listed_again(
    api: FakeApi, informer: Informer
) -> None:
    api.put(config_map("kept", data={"k": "old"}))
    recorded = ChangeRecorder(informer)
    async with running_informer(informer):
        api.store.history.revision += 100
        api.put(config_map("kept", data={"k": "new"}))
        api.put(config_map("lost"))
        await caught_up(api, informer)
        recorded.take()
        await api.stop()
        api.remove(CONFIG_MAPS, "lost", "default")
        api.store.history.revision -= 50
        api.compact()
        api.store.history.compacted = 0
        api.put(config_map("kept", data={"k": "old"}))
        await api.start()
        await api.until(lambda: len(informer.store) == 1 and api.open_watches())
        assert sorted(recorded.take()) == ["-lost", "~kept"]
        kept = informer.store.get(Key("default", "kept"))
        assert kept is not None
        assert kept["data"] == {"k": "old"}
        api.put(config_map("kept", data={"k": "newer"}))
        await api.until(lambda: recorded.take() == ["~kept"])


async def test_two_rewatches_in_consecutive_loop_turns_request_one_watch(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests are refused with 401 almost at once."""
    monkeypatch.setattr(watcher, "REWATCH_AGE", 0.0)
    async with running_informer(informer) as task:
        await caught_up(api, informer)
        api.clear_log()
        for _ in range(4):
            informer.rewatch()
            await asyncio.sleep(0)
        api.put(config_map("a"))
        await caught_up(api, informer)
        assert not task.done()
        assert informer.error is None
        assert all(entry.watch for entry in api.log)


async def test_rewatch_leaves_a_watch_without_a_response(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its timeout shows that the server hangs, and would never come."""
    monkeypatch.setattr(watcher, "REWATCH_AGE", 0.0)
    async with running_informer(informer):
        await caught_up(api, informer)
        api.fail(Fault(delay=10 * REQUEST_TIMEOUT, times=None))

        async def impatient() -> None:
            while True:
                informer.rewatch()
                await asyncio.sleep(REQUEST_TIMEOUT / 30)

        async with background_task(impatient(), name="rewatch"):
            await api.until(lambda: informer.error is not None)
        api.heal()
        await api.until(lambda: informer.error is None)


async def test_two_retries_in_consecutive_loop_turns_end_one_wait(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_informer(informer) as task:
        await caught_up(api, informer)
        api.fail(Fault(code=500, times=None))
        ShortenedBackoff(monkeypatch, shortened=1)
        api.break_watches()
        await api.until(lambda: informer.error is not None)
        for _ in range(4):
            informer.retry_now()
            await asyncio.sleep(0)
        api.heal()
        informer.retry_now()
        await api.until(lambda: informer.error is None)
        assert not task.done()


async def test_refresh_while_the_watch_is_being_ended_returns(
    api: FakeApi, informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "REWATCH_AGE", 0.0)
    async with running_informer(informer):
        await caught_up(api, informer)
        informer.rewatch()
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await informer.refresh()


async def test_state_handler_that_raises_is_logged_once_and_counted(
    api: FakeApi, informer: Informer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Informer) -> None:
        raise ValueError("canary-4711")

    informer.on_state(broken)
    recorded = ChangeRecorder(informer)
    async with running_informer(informer) as task:
        for _ in range(2):
            await caught_up(api, informer)
            await api.stop()
            await api.until(lambda: informer.error is not None)
            await api.start()
            await api.until(lambda: informer.error is None)
        assert not task.done()
    assert recorded.states == [False, True] * 2, "the other handlers hear it all the same"
    assert informer.client.metrics.defects[str(CONFIG_MAPS)] == 4
    errors = [it.getMessage() for it in caplog.records if it.levelname == "ERROR"]
    assert len(errors) == 1
    assert "broken" in errors[0]
    assert "canary-4711" not in errors[0]


async def test_object_whose_processing_raises_leaves_the_store_incomplete(
    api: FakeApi, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(obj: Object) -> Object:
        if "broken" in obj["metadata"]["name"]:
            raise ValueError("canary-4711")
        return obj

    informer = Informer(client, CONFIG_MAPS, slim=broken)
    async with running_informer(informer):
        for name in ("broken-a", "broken-b", "c"):
            api.put(config_map(name))
        await caught_up(api, informer)
        assert [name_of(obj) for obj in informer.store] == ["c"]
        assert client.metrics.defects[str(CONFIG_MAPS)] == 2
        assert informer.is_complete is False
        errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
        assert len(errors) == 1
        assert "broken-a" in errors[0]
        assert "canary-4711" not in errors[0]
        api.delete(CONFIG_MAPS, "broken-a", "default")
        api.delete(CONFIG_MAPS, "broken-b", "default")
        await informer.refresh()
        completed: bool = informer.is_complete
        assert completed


async def test_raising_unauthorized_handler_does_not_change_the_error(
    api: FakeApi, client: KubeClient
) -> None:
    def broken() -> None:
        raise ValueError

    client.on_unauthorized(broken)
    api.fail(Fault("*", "*", code=401, times=None))
    with pytest.raises(Unauthorized):
        await client.get(CONFIG_MAPS, "a", namespace="default")


async def test_server_that_stops_sending_bookmarks_is_not_rewatched_for_ever(
    api: FakeApi, informer: Informer
) -> None:
    """For example Events, which have no watch cache, after the server was replaced."""
    async with running_informer(informer):
        await api.until(api.open_watches)
        api.bookmark()
        await asyncio.sleep(0.02)
        api.clear_log()
        # The requests of silent watches; each other one follows `WATCH_SECONDS` later.
        await asyncio.sleep((watcher.SILENT_WATCHES + 1.5) * watcher.SILENCE)
        assert 1 <= len(api.requests("GET")) <= watcher.SILENT_WATCHES
        api.put(config_map("a"))
        await caught_up(api, informer)
        assert informer.store.get(Key("default", "a"))
        assert informer.error is None


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ADDED","object":{"metadata":"canary"}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":["canary"],"resourceVersion":7}}}\n',
        b'{"type":"DELETED","object":{"metadata":[1]}}\n',
        b'{"type":"BOOKMARK","object":{"metadata":5}}\n',
        b'{"type":"ERROR","object":{"kind":"Status","code":"x","details":5}}\n',
        b'{"type":["canary"],"object":{}}\n',
    ],
)
async def test_event_of_another_shape_does_not_end_the_informer(
    api: FakeApi,
    informer: Informer,
    line: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as hostile:
        answer_watches(api, hostile, line)
        async with running_informer(informer) as task:
            await asyncio.sleep(0.1)
            assert not task.done()
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    "body", [b'{"items":5}', b'{"items":{"a":1}}', b'{"metadata":5,"items":[]}']
)
async def test_malformed_list_backs_off(
    api: FakeApi, informer: Informer, waits: ShortenedBackoff, body: bytes
) -> None:
    api.put(config_map("a"))
    fault = api.fail(Fault(raw=body, watch=False, times=2))
    async with running_informer(informer):
        assert fault.hits == 2
        assert len(waits.taken) == 2
        assert informer.store.keys() == {Key("default", "a")}
        assert informer.error is None
        assert informer.client.limits.rejected["malformed"] == 2


async def test_handler_of_renewed_credentials_is_removed_with_the_informer(
    client: KubeClient, informer: Informer
) -> None:
    """Namespaces come and go, and the client stays."""
    before = len(client.credentials.renewed)
    async with running_informer(informer):
        assert len(client.credentials.renewed) == before + 1
    assert len(client.credentials.renewed) == before
