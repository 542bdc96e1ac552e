"""Long-lived responses that share HTTP/2 connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from sync.cache.informer import Informer
from sync.kube import connections
from sync.kube.api_errors import ApiServerCertificateError, Forbidden, Unreachable
from sync.kube.api_resources import CONFIG_MAPS
from sync.kube.client import KubeClient
from sync.kube.credentials import RENEW_INTERVAL, Credentials, load
from sync.kube.http2 import STREAM_WINDOW, Http2Response
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import FakeApi, Fault
from tests.fakeapi.http2_gateway import Http2Gateway
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.fakeapi.tls import Authority
from tests.objects import config_map
from translators.object_accessors import Object

PATH = CONFIG_MAPS.path(namespace="default")
WATCH = {"watch": "1", "timeoutSeconds": "300"}

Connect = Callable[[str], Awaitable[KubeClient]]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def gateway(home_api: FakeApi, authority: Authority) -> AsyncIterator[Http2Gateway]:
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with Http2Gateway(home_api, tls, max_streams=3) as made:
        yield made


@pytest.fixture
async def connect(authority: Authority, tmp_path: Path) -> AsyncIterator[Connect]:
    """Enters a client of the address."""
    async with AsyncExitStack() as stack:

        async def client(url: str) -> KubeClient:
            cluster = {"certificate-authority": str(authority.cert)}
            file = write(tmp_path / "kubeconfig", kubeconfig(url, cluster=cluster))
            config: Credentials = await load(KubeconfigRef(file), side="home")
            return await stack.enter_async_context(KubeClient(config))

        yield client


@asynccontextmanager
async def streams(client: KubeClient, count: int) -> AsyncIterator[list[Http2Response]]:
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            response = await stack.enter_async_context(client.shared_stream(PATH, query=WATCH))
            assert isinstance(response, Http2Response)
            opened.append(response)
        yield opened


async def test_streams_share_connections_as_the_server_permits(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    async with streams(client, 7) as opened:
        assert [len(it.tasks) for it in gateway.connections] == [3, 3, 1]
        gateway.api.put(config_map("conf"))
        for response in opened:
            assert b'"conf"' in await response.readany()
    await gateway.api.until(lambda: not gateway.connections)


async def test_a_place_that_becomes_free_is_taken(gateway: Http2Gateway, connect: Connect) -> None:
    client = await connect(gateway.url)
    async with streams(client, 2):
        async with streams(client, 1):
            pass
        async with streams(client, 1):
            assert len(gateway.connections) == 1


async def test_a_body_that_nobody_reads_does_not_stop_the_others(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    async with streams(client, 2) as (lazy, diligent):
        for number in range(5):
            gateway.api.put(config_map(f"big-{number}", data={"x": "y" * (STREAM_WINDOW // 2)}))
        gateway.api.put(config_map("last"))
        read = b""
        while b'"last"' not in read:
            read += await diligent.readany()
        assert len(await lazy.readany()) <= STREAM_WINDOW
        rest = b""
        while b'"last"' not in rest:
            rest += await lazy.readany()


async def test_a_broken_connection_ends_its_streams_only(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    async with streams(client, 4) as opened:
        gateway.connections[0].transport.abort()
        for response in opened[:3]:
            with pytest.raises(Unreachable), client.map_read_errors(PATH):
                await response.readany()
        gateway.api.put(config_map("conf"))
        assert await opened[3].readany()
        async with streams(client, 1):
            assert len(gateway.connections) == 1


async def test_goaway_ends_the_connection(gateway: Http2Gateway, connect: Connect) -> None:
    client = await connect(gateway.url)
    async with streams(client, 1) as (first,):
        [connection] = gateway.connections
        connection.h2.close_connection(last_stream_id=first.stream_id)
        connection.flush()
        with pytest.raises(ConnectionResetError):
            await first.readany()
        async with streams(client, 1):
            assert gateway.connections != [connection]


@pytest.mark.parametrize("goaway", ["before head", "after head"])
async def test_credential_is_renewed_after_a_401_with_goaway(
    gateway: Http2Gateway,
    connect: Connect,
    tmp_path: Path,
    goaway: Literal["before head", "after head"],
) -> None:
    """Frames after GOAWAY are lost, the 401 among them."""
    client = await connect(gateway.url)
    gateway.goaway, gateway.api.token = goaway, "next"
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace("token: fake", "token: next"))
    await asyncio.sleep(RENEW_INTERVAL)
    async with streams(client, 1):
        assert len(gateway.connections) == 1


async def test_a_reset_stream_leaves_the_others(gateway: Http2Gateway, connect: Connect) -> None:
    client = await connect(gateway.url)
    async with streams(client, 2) as (first, second):
        [connection] = gateway.connections
        connection.tasks[first.stream_id].cancel()
        connection.h2.reset_stream(first.stream_id)
        connection.flush()
        with pytest.raises(ConnectionResetError):
            await first.readany()
        gateway.api.put(config_map("conf"))
        assert await second.readany()


async def test_a_response_that_violates_http2_is_unreachable(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    async with streams(client, 1) as (response,):
        gateway.connections[0].transport.write(b"\x00\x00\x04\x08\x00\x00\x00\x00\x00\xff\xff")
        gateway.connections[0].transport.write(b"\x00" * 64)
        with pytest.raises(Unreachable), client.map_read_errors(PATH):
            await response.readany()


async def test_failures_are_mapped_and_leave_no_stream(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    gateway.api.fail(Fault("GET", PATH, code=403, message="not yours"))
    with pytest.raises(Forbidden, match="not yours"):
        async with client.shared_stream(PATH, query=WATCH):
            pass
    await gateway.api.until(lambda: not gateway.connections)


async def test_silence_is_a_dead_peer(gateway: Http2Gateway, connect: Connect) -> None:
    client = await connect(gateway.url)
    async with client.shared_stream(PATH, query=WATCH, idle_timeout=0.05) as response:
        with pytest.raises(Unreachable), client.map_read_errors(PATH):
            await response.content.readany()


async def test_the_certificate_is_verified(gateway: Http2Gateway, connect: Connect) -> None:
    client = await connect(gateway.url.replace("127.0.0.1", "localhost"))
    with pytest.raises(ApiServerCertificateError):
        async with client.shared_stream(PATH, query=WATCH):
            pass


async def test_a_server_without_http2_gets_http1(
    authority: Authority, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = []
    original = connections.Dialer.connect

    async def counted(*args: Any, **kwargs: Any) -> Any:
        contexts.append(args[1])
        return await original(*args, **kwargs)

    monkeypatch.setattr(connections.Dialer, "connect", counted)
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    tls.set_alpn_protocols(["http/1.1"])
    async with FakeApi(tls=tls) as api:
        client = await connect(api.url)
        for _ in range(2):
            async with client.shared_stream(PATH, query=WATCH) as response:
                api.put(config_map("conf"))
                assert b'"conf"' in await response.content.readany()
                assert not isinstance(response, Http2Response)
            api.remove(CONFIG_MAPS, "conf", "default")
    assert contexts.count(client.credentials.tls_http2) == 1


async def test_a_server_that_permits_no_streams_gets_http1(
    home_api: FakeApi, authority: Authority, connect: Connect
) -> None:
    tls = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with Http2Gateway(home_api, tls, max_streams=0) as gateway:
        client = await connect(gateway.url)
        for _ in range(5):
            async with client.shared_stream(PATH, query=WATCH) as response:
                assert not isinstance(response, Http2Response)
        await home_api.until(lambda: not gateway.connections)


async def test_an_informer_follows_over_http2_and_after_a_cut(
    gateway: Http2Gateway, connect: Connect
) -> None:
    client = await connect(gateway.url)
    informers = [
        Informer(
            client,
            CONFIG_MAPS,
            namespace="default",
            fields=f"metadata.name=conf-{number}",
            shares_connection=True,
        )
        for number in range(5)
    ]
    seen: list[Object] = []
    for informer in informers:
        informer.on_change(lambda _, new: seen.append(new or {}))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(it.run()) for it in informers]
        await gateway.api.until(lambda: len(gateway.api.open_watches()) == 5)
        for number in range(5):
            gateway.api.put(config_map(f"conf-{number}"))
        await gateway.api.until(lambda: len(seen) == 5)
        assert [len(it.store) for it in informers] == [1] * 5
        for connection in list(gateway.connections):
            connection.transport.abort()
        gateway.api.put(config_map("conf-0", data={"new": "value"}))
        await gateway.api.until(lambda: len(seen) == 6)
        for task in tasks:
            task.cancel()


async def test_a_request_on_plain_http_uses_http1(home_api: FakeApi, connect: Connect) -> None:
    client = await connect(home_api.url)
    async with client.shared_stream(PATH, query=WATCH) as response:
        assert not isinstance(response, Http2Response)
