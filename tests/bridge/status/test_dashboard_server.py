"""The loopback server: it answers only requests with its secret address."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

import aiohttp
import pytest

from bridge.base.command_error import PreflightError
from bridge.status import dashboard_page, dashboard_server
from bridge.status.dashboard_server import loopback_server
from sync.kube.client import KubeClient
from tests.bridge.running_join import SOON, RunningJoin
from tests.bridge.status import examples
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import Fault
from tests.sync.engine_harness import NODE


async def test_page_and_data_are_forwarded(home: KubeClient, bridged: RunningJoin) -> None:
    async with loopback_server(home, NODE) as url, aiohttp.ClientSession() as session:
        async with session.get(url) as answer:
            assert answer.status == 200
            assert dashboard_page.HEADERS.items() <= dict(answer.headers).items()
            assert f"{NODE} " in await answer.text()
        async with session.get(f"{url}v1/status") as answer:
            assert (await answer.json())["name"] == NODE
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(url)


async def test_other_paths_methods_and_hosts_are_rejected(
    two: Clusters, home: KubeClient, bridged: RunningJoin
) -> None:
    async with loopback_server(home, NODE) as url:
        root = url.removesuffix("bridge/")
        parts = urlsplit(url)
        two.home.clear_log()
        async with aiohttp.ClientSession() as session:
            for other in (
                f"{parts.scheme}://{parts.netloc}/bridge/",
                f"{parts.scheme}://{parts.netloc}/guess/bridge/",
                f"{root}pods",
                f"{root}bridge/../pods",
                f"{root}bridge/v1/other",
                f"{root}exec/default/web/main?command=id",
            ):
                async with session.get(other) as answer:
                    assert answer.status == 404, other
            async with session.get(url, headers={"Host": "evil.example"}) as answer:
                assert answer.status == 404
            async with session.post(url) as answer:
                assert answer.status == 405
        # The dashboard's own probe of the kubelet API may be among them.
        proxied = {it.path.partition("/proxy/")[2] for it in two.home.requests("*", "*/proxy/*")}
        assert proxied <= {"healthz"}


async def test_api_server_error_is_shown(two: Clusters, home: KubeClient) -> None:
    two.home.fail(Fault("GET", "*/proxy/*", code=403, message="you may not"))
    async with (
        loopback_server(home, NODE) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as answer,
    ):
        assert (answer.status, await answer.text()) == (403, "you may not")


async def test_serve_announces_its_address_until_stopped(
    home: KubeClient, bridged: RunningJoin, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    addresses: list[str] = []

    def opens(url: str) -> None:
        opened.append(url)
        loop.call_soon_threadsafe(stop.set)

    monkeypatch.setattr("webbrowser.open", opens)
    async with asyncio.timeout(SOON):
        await dashboard_server.serve(
            home, None, stop=stop, open_browser=True, announce=addresses.append
        )
    assert addresses == [f"node {NODE}: {opened[0]} until Ctrl-C"]


async def test_page_requires_exactly_one_answering_node(two: Clusters, home: KubeClient) -> None:
    stop = asyncio.Event()
    with pytest.raises(PreflightError, match="home has no virtual nodes"):
        await dashboard_server.serve(home, None, stop=stop, open_browser=False, announce=print)
    two.home.put(examples.node())
    with pytest.raises(PreflightError, match="does not serve its page"):
        await dashboard_server.serve(home, None, stop=stop, open_browser=False, announce=print)
    other = examples.node()
    other["metadata"]["name"] = "another"
    two.home.put(other)
    with pytest.raises(PreflightError, match="home has another, remote; name one"):
        await dashboard_server.serve(home, None, stop=stop, open_browser=False, announce=print)


async def test_idle_connections_do_not_block_the_page(home: KubeClient) -> None:
    async with loopback_server(home, NODE) as url, aiohttp.ClientSession() as session:
        port = urlsplit(url).port
        opened = [
            await asyncio.open_connection("127.0.0.1", port)
            for _ in range(dashboard_server.MAX_CONNECTIONS + 5)
        ]
        async with asyncio.timeout(SOON):
            for reader, _ in opened[:5]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b"", "one more ends the oldest"
        async with session.post(url) as answer:
            assert answer.status == 405
        for _, writer in opened:
            writer.transport.abort()


async def test_malformed_request_is_not_logged(
    home: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with loopback_server(home, NODE) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection("127.0.0.1", parts.port)
        writer.write(f"GET {parts.path} HTTP/1.1\r\nX\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
    assert b" 400 " in response.splitlines()[0]
    assert parts.path.split("/")[1].encode() not in response
    assert not [it for it in caplog.records if it.exc_info]
