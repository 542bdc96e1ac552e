"""A hostile or broken API server cannot make a client use much memory, or wait for ever."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import orjson
import pytest
from aiohttp import web

from sync.kube import http_upgrade, response_limits, transport
from sync.kube.api_errors import ApiError, MalformedResponse, ResponseTooLarge, Unreachable
from sync.kube.api_resources import CONFIG_MAPS, NODES, Object
from sync.kube.client import KubeClient
from sync.kube.endpoint import Endpoint
from tests.fakeapi import FakeApi
from tests.fakeapi.credentials import credentials_for
from tests.fakeapi.hostile_server import HostileServer, endless, gzip_bomb, head, once
from tests.objects import config_map
from tests.sync.loop_steps import LoopSteps

MIB = 2**20
#: A body, its copies while it is joined, and what aiohttp buffers.
MOST = 3 * response_limits.BODY_LIMIT


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Fails if the block allocates more than ``most`` bytes at once."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak / MIB:.0f} MiB"


@asynccontextmanager
async def hostile_client(server: HostileServer, api: FakeApi) -> AsyncIterator[KubeClient]:
    """A client of the hostile server."""
    credentials = credentials_for(api, "remote")
    async with server, KubeClient(credentials) as client:
        credentials.endpoint = Endpoint(server.url)  # known only now
        yield client


async def test_gzip_bomb_is_not_decompressed(api: FakeApi) -> None:
    """204 KB of gzip once became 451 MB."""
    bomb = gzip_bomb(256 * MIB)
    server = HostileServer(head("Content-Encoding: gzip"), once(bomb))
    async with hostile_client(server, api) as client:
        with (
            memory_below(MOST),
            pytest.raises(ResponseTooLarge, match=rf"remote: GET .*{response_limits.BODY_LIMIT}"),
        ):
            await client.list(NODES, page_size=1)
        assert client.limits.rejected["body"] == 1


async def test_gzip_bomb_is_read_in_turns_of_the_event_loop(api: FakeApi) -> None:
    """It once kept the loop from others for 130 ms."""
    bomb = gzip_bomb(64 * MIB)
    server = HostileServer(head("Content-Encoding: gzip"), once(bomb))
    steps = LoopSteps()
    async with hostile_client(server, api) as client:
        with steps.measured(), pytest.raises(ResponseTooLarge):
            await client.read("/metrics", timeout=20, limit=32 * MIB, turn=client.limits.turn())
    assert steps.longest < 0.04, steps.what


async def test_body_that_breaks_while_it_waits_for_its_turn_is_a_broken_connection(
    api: FakeApi,
) -> None:
    """aiohttp ends a malformed body with a RuntimeError if nothing reads it at that moment."""
    size = response_limits.SMALL_BODY + 1
    body = once(b"%x\r\n%s\r\nno size\r\n" % (size, b"x" * size))
    server = HostileServer(head("Transfer-Encoding: chunked"), body)
    async with hostile_client(server, api) as client:
        held = [client.limits.turn() for _ in range(response_limits.large_bodies())]
        for turn in held:
            await turn.take()
        large = client.limits.turn()
        reading = asyncio.create_task(client.read("/metrics", timeout=20, turn=large))
        await asyncio.sleep(1)
        for turn in held:
            turn.release()
        with pytest.raises(Unreachable, match="the connection broke"):
            await reading


@pytest.mark.parametrize("path", ["request", "read", "stream"])
async def test_endless_body_ends_at_the_limit(api: FakeApi, path: str) -> None:
    status = b"HTTP/1.1 500 No\r\n\r\n"
    server = HostileServer(status if path == "stream" else head(), endless(b" " * 2**16))
    async with hostile_client(server, api) as client:
        with memory_below(2 * MOST):
            if path == "request":
                with pytest.raises(ResponseTooLarge):
                    await client.request("GET", "/version")
            elif path == "read":
                with pytest.raises(ResponseTooLarge):
                    await client.read("/metrics", timeout=10)
            else:
                with pytest.raises(ApiError, match="500"):
                    async with client.stream("/version"):
                        pytest.fail("a failure is no stream")


@pytest.mark.parametrize("dense", [b"{},", b'{"a":0},', b'"ab",', b"[],", b"1.5,", b"[[]],"])
def test_estimate_bounds_the_memory_of_decoded_json(dense: bytes) -> None:
    raw = b'{"items":[' + dense * (MIB // len(dense)) + b"0]}"
    tracemalloc.start()
    decoded = orjson.loads(raw)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert decoded["items"]
    assert used <= response_limits.decoded_size(raw)


def test_largest_object_of_etcd_is_decoded() -> None:
    limits = response_limits.ResponseLimits("remote")
    for text in (b",{[" * 2**19, b"\\u003c" * (3 * 2**19)):  # 1.5 MiB
        raw = b'{"data":{"a":"' + text + b'"}}'
        assert len(raw) < response_limits.BODY_LIMIT
        assert limits.decode(raw, "GET /") is not None


async def test_dense_json_is_not_decoded(api: FakeApi) -> None:
    raw = b'{"items":[' + b"[]," * (3 * MIB) + b"0]}"
    async with hostile_client(HostileServer(head(), once(raw)), api) as client:
        with memory_below(MOST), pytest.raises(ResponseTooLarge, match="decoded"):
            await client.request("GET", "/version")
        assert client.limits.rejected["body"] == 1
        async with asyncio.timeout(30):  # The turn was given back.
            for _ in range(response_limits.large_bodies()):
                await client.limits.turn().take()


@pytest.mark.parametrize(("memory", "at_once"), [(2**29, 1), (2**31, 2)])
async def test_large_bodies_at_once_follow_from_the_memory(
    monkeypatch: pytest.MonkeyPatch, memory: int, at_once: int
) -> None:
    monkeypatch.setattr(response_limits, "memory_limit", lambda: memory)
    limits = response_limits.ResponseLimits("remote")
    for _ in range(at_once):
        await limits.turn().take()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await limits.turn().take()


def test_text_does_not_count_as_values() -> None:
    """The densest ConfigMap, and one whose text looks like JSON, are decoded; as values they are
    not."""
    limits = response_limits.ResponseLimits("home")
    keys = {f"{number:x}": "" for number in range(MIB // 5)}
    for data in (keys, {"a": ",{[" * (MIB // 3)}, {"a": '\\"[,' * (MIB // 4)}, {"a\\": "{,"}):
        assert limits.decode(orjson.dumps({"data": data}), "GET /") == {"data": data}
    for values in (b'"",' * MIB, b'"\\",",' * MIB, b'"\\\\",' * MIB):
        with pytest.raises(ResponseTooLarge):
            limits.decode(b"[" + values + b"0]", "GET /")


async def test_text_with_the_characters_of_many_values_is_decoded(api: FakeApi) -> None:
    """A ConfigMap with a table of numbers, or with JSON."""
    for text in ("1," * 2**19, orjson.dumps([{"a": [1, 2]}] * 2**16).decode()):
        raw = orjson.dumps({"data": {"a": text}})
        async with hostile_client(HostileServer(head(), once(raw)), api) as client:
            assert await client.request("GET", "/version") == {"data": {"a": text}}


async def test_body_that_drips_times_out(api: FakeApi) -> None:
    server = HostileServer(head(), endless(b" ", every=0.01))
    async with hostile_client(server, api) as client:
        with pytest.raises(Unreachable, match="in time"):
            await client.request("GET", "/version", timeout=0.3)


async def test_failure_that_drips_does_not_hold_a_stream(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.kube.response_streams.REQUEST_TIMEOUT", 0.2)
    server = HostileServer(b"HTTP/1.1 500 No\r\n\r\n", endless(b" ", every=0.01))
    async with hostile_client(server, api) as client:
        with pytest.raises(Unreachable, match="in time"):
            async with client.stream("/version"):
                pytest.fail("a failure is no stream")


async def test_large_bodies_take_turns(api: FakeApi) -> None:
    """Twenty responses of 8 MiB each, of which two are in memory at once."""
    raw = b'{"a":"' + b"x" * (8 * MIB) + b'"}'
    async with hostile_client(HostileServer(head(), once(raw)), api) as client:

        async def get() -> None:
            turn = client.limits.turn()
            try:
                await client.request("GET", "/version", turn=turn)
            finally:
                turn.release()

        # orjson reserves twelve times the size of the body that it decodes.
        with memory_below((2 * 2 + 12) * 8 * MIB + 20 * MIB):
            await asyncio.gather(*(get() for _ in range(20)))


@pytest.mark.parametrize(
    "lines",
    [
        b"X-A: " + b"a" * MIB + b"\r\n\r\n",
        b"".join(b"X-%d: a\r\n" % i for i in range(100_000)) + b"\r\n",
        b"X-A: a\r\n" * 100_000 + b"\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"1;" + b"a" * MIB,
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X-A: a\r\n" * 100_000 + b"\r\n",
    ],
    ids=["long", "many", "repeated", "chunk-extension", "trailers"],
)
async def test_endless_heads_are_rejected(api: FakeApi, lines: bytes) -> None:
    server = HostileServer(b"HTTP/1.1 200 OK\r\n" + lines, once())
    async with hostile_client(server, api) as client:
        with memory_below(8 * MIB), pytest.raises(Unreachable):
            await client.request("GET", "/version", timeout=5)


async def test_reason_and_message_of_a_status_are_cut(api: FakeApi) -> None:
    for value in ("x" * 100_000, [1], {"a": "b"}):
        status = orjson.dumps({"kind": "Status", "code": 403, "reason": value, "message": value})
        server = HostileServer(b"HTTP/1.1 403 No\r\nConnection: close\r\n\r\n", once(status))
        async with hostile_client(server, api) as client:
            with pytest.raises(ApiError) as raised:
                await client.request("GET", "/version")
            assert len(raised.value.reason) <= 128
            assert len(str(raised.value)) < 1000


async def test_page_that_is_too_large_is_requested_with_fewer_objects(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 ConfigMaps of a megabyte are no reason to fail."""
    monkeypatch.setattr(transport, "BODY_LIMIT", 2**19)
    monkeypatch.setattr(response_limits, "SMALL_BODY", 2**14)
    for number in range(40):
        api.put({**config_map(f"c{number:02}"), "data": {"a": "x" * 2**17}})
    page = await client.list(CONFIG_MAPS)
    assert [it["metadata"]["name"] for it in page.items] == [f"c{n:02}" for n in range(40)]
    limits = [entry.query.get("limit") for entry in api.log]
    assert limits[:5] == ["500", "62", "7", "1", "1"]
    assert client.limits.rejected["page"] == 3
    assert client.limits.rejected["body"] == 0


async def test_single_object_that_is_too_large_is_an_error(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "BODY_LIMIT", 2**16)
    monkeypatch.setattr(response_limits, "SMALL_BODY", 2**14)
    api.put({**config_map("c"), "data": {"a": "x" * 2**17}})
    with pytest.raises(ResponseTooLarge):
        await client.list(CONFIG_MAPS)


def serve_pages(api: FakeApi, tokens: Iterator[object], items: int = 1) -> None:
    """Serves ConfigMaps in pages with these tokens."""
    number = iter(range(10**9))

    async def page(_: web.BaseRequest) -> web.Response:
        objects = [config_map(f"c{next(number)}") for _ in range(items)]
        meta = {"resourceVersion": "1", "continue": next(tokens)}
        return web.Response(body=orjson.dumps({"metadata": meta, "items": objects}))

    api.route("GET", CONFIG_MAPS.path(), page)


@pytest.mark.parametrize("tokens", [["same"] * 3, ["a", "b", "a"], ["x" * 10_000]])
async def test_continue_tokens_that_do_not_end_are_an_error(
    api: FakeApi, client: KubeClient, tokens: list[object]
) -> None:
    serve_pages(api, iter(tokens))
    with pytest.raises(MalformedResponse, match="continue token"):
        await client.list(CONFIG_MAPS)
    assert client.limits.rejected["list"] == 1


async def test_endless_pages_are_an_error(
    api: FakeApi, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.kube.client.MAX_PAGES", 20)
    serve_pages(api, (f"t{n}" for n in range(10**6)))
    with pytest.raises(MalformedResponse, match="more than 20 pages"):
        await client.list(CONFIG_MAPS)


@pytest.mark.parametrize("slim", [None, lambda _: {}])
async def test_endless_objects_are_an_error(
    api: FakeApi, client: KubeClient, slim: Callable[[Object], Object] | None
) -> None:
    serve_pages(api, (f"t{n}" for n in range(10**6)), items=100)
    with pytest.raises(ResponseTooLarge, match="list"):
        await client.list(CONFIG_MAPS, slim=slim, most=100_000)


@pytest.mark.parametrize("wrong", [5, [], {}, True, None])
async def test_malformed_token_or_version_ends_the_list(
    api: FakeApi, client: KubeClient, wrong: object
) -> None:
    serve_pages(api, iter([wrong]))
    assert len((await client.list(CONFIG_MAPS)).items) == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_never_followed(
    api: FakeApi, home_api: FakeApi, client: KubeClient, status: int
) -> None:
    """Requests, text, streams, shared streams, WebSockets and upgrades."""

    async def elsewhere(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status, headers={"Location": f"{home_api.url}/version"})

    api.route("*", "/version", elsewhere)
    for method in ("GET", "POST", "PATCH", "DELETE"):
        with pytest.raises(ApiError, match=str(status)):
            await client.request(method, "/version")
    with pytest.raises(ApiError, match=str(status)):
        await client.read("/version", timeout=5)
    for opened in (client.stream, client.shared_stream):
        with pytest.raises(ApiError, match=str(status)):
            async with opened("/version"):
                pytest.fail("a redirect is no stream")
    with pytest.raises(ApiError, match=str(status)):
        async with client.websocket("/version", query={}, protocol="v4.channel.k8s.io"):
            pytest.fail("a redirect is no WebSocket")
    with pytest.raises(Unreachable, match=str(status)):
        await http_upgrade.open_upgrade(client, "GET", "/version", (), ())
    assert not home_api.log


async def test_connection_is_not_read_while_nobody_reads_the_body(api: FakeApi) -> None:
    """A watch that waits for its turn costs what is buffered, and no more."""
    server = HostileServer(head(), endless(b"x" * 2**16))
    async with (
        hostile_client(server, api) as client,
        client.stream("/watch", read_ahead=2**18) as response,
    ):
        with memory_below(8 * MIB):
            await asyncio.sleep(0.3)
        sent = server.sent
        await asyncio.sleep(0.2)
        assert server.sent == sent
        assert isinstance(response, aiohttp.ClientResponse)
