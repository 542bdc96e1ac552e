"""Connections of requests, and state shared between requests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from sync.kube import api_errors, response_streams, transport
from sync.kube import credentials as access_module
from sync.kube.api_resources import CONFIG_MAPS, NODES
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.endpoint import Endpoint
from sync.kube.kubeconfig_ref import KubeconfigRef
from sync.kube.leader_write_fence import Fence, clock
from tests.conftest import ClientFor
from tests.fakeapi import Authority, FakeApi, Fault
from tests.fakeapi.credentials import StaticCredentials
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import config_map

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class HangingUp:
    """A server that answers the first requests of each connection and then hangs up: at once, or
    (``late``) when the next one has come, as if it had closed the connection just before."""

    def __init__(self, *, late: bool, answers: int = 1) -> None:
        self.seen: list[str] = []
        """The methods of all requests."""
        self.connections = 0
        self.ended = asyncio.Semaphore(0)
        """One for each connection that is closed."""
        self._late = late
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for _ in range(self._answers):
                await self._request(reader)
                writer.write(_ANSWER)
                await writer.drain()
            if self._late:
                await self._request(reader)
        writer.close()
        self.ended.release()

    async def _request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = head.lower().partition("content-length: ")[2].partition("\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.seen.append(head.partition(" ")[0])


@contextlib.asynccontextmanager
async def client_of(hanging_up: HangingUp) -> AsyncIterator[KubeClient]:
    server = await asyncio.start_server(hanging_up.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    access = StaticCredentials(url, "remote")
    async with server, KubeClient(access) as client:
        yield client


async def test_connections_are_reused() -> None:
    server = HangingUp(late=False, answers=6)
    async with client_of(server) as client:
        for _ in range(3):
            await client.request("POST", NODES.path(), body={})
            await client.request("GET", NODES.path())
    assert server.seen == ["POST", "GET"] * 3
    assert server.connections == 1


async def test_connection_closed_by_the_server_is_not_reused() -> None:
    server = HangingUp(late=False)
    async with client_of(server) as client:
        for _ in range(3):
            await client.request("POST", NODES.path(), body={})
            await server.ended.acquire()
            await asyncio.sleep(0.01)  # for the client to hear of it
    assert server.seen == ["POST"] * 3
    assert server.connections == 3


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_post_and_patch_are_not_sent_twice(method: str) -> None:
    server = HangingUp(late=True)
    async with client_of(server) as client:
        await client.request(method, NODES.path(), body={})
        with pytest.raises(api_errors.Unreachable, match="the server closed it"):
            await client.request(method, NODES.path(), body={})
    assert server.seen == [method] * 2


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_get_and_delete_are_repeated_on_another_connection(method: str) -> None:
    server = HangingUp(late=True)
    async with client_of(server) as client:
        for _ in range(2):
            await client.request(method, NODES.path())
    assert server.seen == [method] * 3


async def test_timeout_includes_the_wait_for_a_connection(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_CONNECTIONS", 1)
    client = await client_for(api)
    api.fail(Fault(delay=0.5))
    first = asyncio.create_task(client.list(NODES))
    await api.until(lambda: api.log)
    with pytest.raises(api_errors.Unreachable, match="in time"):
        await client.request("GET", NODES.path(), timeout=0.02)
    await first
    assert len(api.log) == 1


async def test_request_without_a_response_is_reported(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the server did not begin to respond: neither an error nor a wait of the client
    shows that it hangs."""
    monkeypatch.setattr(transport, "MAX_CONNECTIONS", 1)
    client = await client_for(api)
    reports: list[str] = []
    forget = client.on_unanswered(lambda: reports.append("no response"))
    api.fail(Fault(code=500))
    with pytest.raises(api_errors.ApiError):
        await client.list(NODES)
    api.fail(Fault(delay=0.5))
    api.clear_log()
    slow = asyncio.create_task(client.list(NODES))
    await api.until(lambda: api.log)
    with pytest.raises(api_errors.Unreachable):
        await client.request("GET", NODES.path(), timeout=0.02)
    await slow
    assert reports == []
    api.fail(Fault(delay=60, times=None))
    for _ in range(2):
        with pytest.raises(api_errors.Unreachable):
            await client.fenced(open_fence()).request("PATCH", "/x", body={}, timeout=0.02)
        forget()
    assert reports == ["no response"]


def open_fence() -> Fence:
    """A fence that writes pass for a minute."""
    fence = Fence()
    fence.extend(clock() + 60)
    return fence


async def test_cancelled_request_releases_its_slot(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_CONNECTIONS", 1)
    client = await client_for(api)
    api.fail(Fault(delay=10.0))
    request = asyncio.create_task(client.list(NODES))
    await api.until(lambda: api.log)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await client.list(NODES)


async def test_401_retry_uses_the_new_address(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    monkeypatch.setattr(access_module, "RENEW_INTERVAL", 0.0)
    file = tmp_path / "config"
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    insecure = {"insecure-skip-tls-verify": True}
    async with FakeApi(token="new", tls=tls) as old, FakeApi(token="new", tls=tls) as new:
        write(file, kubeconfig(old.url, user={"token": "old"}, cluster=insecure))
        async with KubeClient(await load(KubeconfigRef(file), side="home")) as client:
            write(file, kubeconfig(new.url, user={"token": "new"}, cluster=insecure))
            for name in ("a", "b"):
                await client.create(CONFIG_MAPS, config_map(name), namespace="default")
        assert [entry.code for entry in old.log] == [[401]]
        assert [entry.code for entry in new.log] == [[201], [201]]


async def test_path_prefix_of_the_server_url_is_kept(api: FakeApi, client: KubeClient) -> None:
    client.credentials.endpoint = Endpoint(f"{client.endpoint.server}/k8s/clusters/c%2F1")
    for query in (None, {"labelSelector": "a=b c"}):
        with pytest.raises(api_errors.NotFound):
            await client.request("GET", NODES.path("n%2F1"), query=query)
        assert api.log[-1].path == "/k8s/clusters/c%2F1/api/v1/nodes/n%252F1"
    assert api.log[-1].query == {"labelSelector": "a=b c"}


async def test_request_headers(api: FakeApi, client: KubeClient) -> None:
    heads: list[dict[str, str]] = []

    async def note(request: web.BaseRequest) -> web.Response:
        heads.append({key.lower(): value for key, value in request.headers.items()})
        return web.Response(body=b'{"metadata":{"name":"a"}}')

    path = CONFIG_MAPS.path("a", namespace="default")
    api.route("*", path, note)
    await client.patch(CONFIG_MAPS, "a", {}, namespace="default")
    await client.patch(CONFIG_MAPS, "a", {}, namespace="default", kind="strategic")
    await client.get(CONFIG_MAPS, "a", namespace="default")
    await client.read(path, timeout=5.0)
    assert [head.get("content-type") for head in heads] == [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        None,
        None,
    ]
    assert [head["accept"] for head in heads] == ["application/json"] * 3 + ["*/*"]
    assert {head["accept-encoding"] for head in heads} == {"gzip"}


async def test_gzip_response_is_decoded(api: FakeApi, client: KubeClient) -> None:
    nodes = {"items": [{"metadata": {"name": f"n{i}"}} for i in range(2000)], "metadata": {}}

    async def zipped(_: web.BaseRequest) -> web.Response:
        body = gzip.compress(orjson.dumps(nodes))
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    api.route("GET", NODES.path(), zipped)
    assert len((await client.list(NODES)).items) == 2000
    assert orjson.loads(await client.read(NODES.path(), timeout=5.0)) == nodes


async def test_response_is_not_parsed_without_decode(api: FakeApi, client: KubeClient) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a"), namespace="default", decode=False)
    patch = {"data": {"k": "v"}}
    changed = await client.patch(CONFIG_MAPS, "a", patch, namespace="default", decode=False)
    assert made == changed == {}
    assert api.get(CONFIG_MAPS, "a", "default")["data"] == {"k": "v"}


@pytest.mark.parametrize("raw", [b"<html>login</html>", b"", b"null"])
async def test_html_page_is_no_success(api: FakeApi, client: KubeClient, raw: bytes) -> None:
    uid = api.put(config_map("a"))["metadata"]["uid"]
    api.fail(Fault(raw=raw))
    with pytest.raises(api_errors.Unreachable, match="JSON"):
        await client.delete(CONFIG_MAPS, "a", uid=uid, namespace="default")


@pytest.mark.parametrize("ahead", [response_streams.READ_AHEAD, 2**24])
async def test_stream_buffers_read_ahead_bytes(
    api: FakeApi, client: KubeClient, ahead: int
) -> None:
    """More than the sockets of both ends hold (tcp_rmem and tcp_wmem: 6 and 4 MB by default)."""
    written = asyncio.Event()

    async def big(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2**8):
            await response.write(bytes(2**16))
        written.set()
        return response

    api.route("GET", "/big", big)
    async with client.stream("/big", read_ahead=ahead):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0 if ahead == 2**24 else 0.5):
                await written.wait()
        assert written.is_set() is (ahead == 2**24)
