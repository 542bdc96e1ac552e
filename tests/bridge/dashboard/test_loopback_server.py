"""The dashboard's server: it answers only requests of its own page, and forwards no others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from bridge.base.command_error import PreflightError
from bridge.dashboard import loopback_server as dashboard
from bridge.dashboard.loopback_server import loopback_server
from bridge.dashboard.page_responses import HEADERS, read_files
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.bridge.dashboard import example_fleet
from tests.fakeapi import FakeApi, Fault, credentials_for
from tests.fakeapi.kubeconfig import kubeconfig, write

SOON = 15.0


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    """Home with three remotes and 30 pods."""
    async with FakeApi() as server:
        example_fleet.put_fleet(server, remotes=3, pods=30)
        yield server


@pytest.fixture
async def home(api: FakeApi) -> AsyncIterator[KubeClient]:
    """A user's client of home."""
    async with KubeClient(credentials_for(api, "home")) as client:
        yield client


@pytest.fixture
def ref(api: FakeApi, tmp_path: Path) -> KubeconfigRef:
    """The user's kubeconfig."""
    content = kubeconfig(api.url, user={"token": api.token or "none"}, context="home")
    return KubeconfigRef(write(tmp_path / "home.yaml", content))


@pytest.fixture
async def url(home: KubeClient, ref: KubeconfigRef) -> AsyncIterator[str]:
    """The address of the page."""
    async with loopback_server(home, None, ref=ref) as address:
        yield address


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A browser."""
    async with aiohttp.ClientSession() as client:
        yield client


async def test_page_consists_of_its_own_files(url: str, session: aiohttp.ClientSession) -> None:
    for path, (_, kind) in read_files().items():
        async with session.get(url + path.removeprefix("/")) as answer:
            assert answer.status == 200
            assert answer.content_type == kind
            assert HEADERS.items() <= dict(answer.headers).items()
            text = await answer.text()
            for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="):
                assert word not in text, path
            addresses = text.replace("http://www.w3.org/2000/svg", "").replace("^https?://", "")
            assert "http://" not in addresses.replace("\\/", "/"), path
            assert "https://" not in addresses, path


async def test_headers_permit_own_files_alone() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy


async def test_other_paths_methods_hosts_and_origins_are_rejected(
    url: str, session: aiohttp.ClientSession, api: FakeApi
) -> None:
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    for other in (
        f"{root}/",
        f"{root}/guess/",
        url.removesuffix("/"),
        f"{url}../api/v1/nodes",
        f"{url}api/v1/secrets",
        f"{url}api/v1/pods/shop/../explain",
        f"{url}api/v1/pods/shop/UPPER/explain",
        f"{url}api/v1/pods/shop/web%2f..%2fx/events",
        f"{url}static/../loopback_server.py",
    ):
        async with session.get(other) as answer:
            assert answer.status == 404, other
    for headers in (
        {"Host": "evil.example"},
        {"Host": f"127.0.0.1.evil.example:{parts.port}"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        async with session.get(f"{url}api/v1/pods", headers=headers) as answer:
            assert answer.status == 404, headers
    for headers in (
        {"Host": "localhost:8080"},
        {"Origin": root},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ):
        async with session.get(f"{url}api/v1/pods", headers=headers) as answer:
            assert answer.status == 200, headers
    for method in ("POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"):
        async with session.request(method, url) as answer:
            assert answer.status == 405
    assert not api.writes()


async def test_details_of_a_pod_are_explanation_and_events(
    url: str, session: aiohttp.ClientSession, api: FakeApi
) -> None:
    row = example_fleet.pod(1, "")["metadata"]
    stored = api.find(PODS, row["name"], row["namespace"])
    assert stored is not None
    api.put(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "one", "namespace": row["namespace"]},
            "involvedObject": {"kind": "Pod", "name": row["name"], "namespace": row["namespace"]},
            "reason": "Started",
            "message": example_fleet.HOSTILE,
        }
    )
    pod = f"{url}api/v1/pods/{row['namespace']}/{row['name']}"
    async with session.get(f"{pod}/explain") as answer:
        report = await answer.json()
        assert answer.status == 200
        assert f"pod {row['namespace']}/{row['name']}" in report["summary"]
        assert [it["name"] for it in report["nodes"]] == [stored["spec"]["nodeName"]]
    async with session.get(f"{pod}/events") as answer:
        [event] = (await answer.json())["events"]
        assert (event["reason"], event["message"]) == ("Started", example_fleet.HOSTILE)
        assert answer.content_type == "application/json"


async def test_failure_of_a_detail_has_its_cause(
    url: str, session: aiohttp.ClientSession, api: FakeApi
) -> None:
    async with session.get(f"{url}api/v1/pods/shop/missing/explain") as answer:
        assert answer.status == 404
        assert "missing" in (await answer.json())["error"]
    api.fail(Fault("GET", "*/events*", code=403, message="you may not"))
    async with session.get(f"{url}api/v1/pods/shop/web/events") as answer:
        assert answer.status == 403
        assert "you may not" in (await answer.json())["error"]


async def test_serve_announces_its_address_until_stopped(
    home: KubeClient, ref: KubeconfigRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    addresses: list[str] = []
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def opens(address: str) -> None:
        opened.append(address)
        loop.call_soon_threadsafe(stop.set)

    monkeypatch.setattr("webbrowser.open", opens)
    async with asyncio.timeout(SOON):
        await dashboard.serve(
            home, None, ref=ref, port=0, stop=stop, open_browser=True, announce=addresses.append
        )
    assert addresses == [f"dashboard: {opened[0]} until Ctrl-C"]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(opened[0])


async def test_unknown_node_and_taken_port_are_errors(
    home: KubeClient, ref: KubeconfigRef, url: str
) -> None:
    async def serve(name: str | None, port: int) -> None:
        await dashboard.serve(
            home, name, ref=ref, port=port, stop=asyncio.Event(), open_browser=False, announce=print
        )

    with pytest.raises(PreflightError, match="there is no node x"):
        await serve("x", 0)
    with pytest.raises(PreflightError, match="choose another --port"):
        await serve(None, urlsplit(url).port or 0)


async def test_idle_connections_do_not_block_the_page(
    url: str, session: aiohttp.ClientSession
) -> None:
    port = urlsplit(url).port
    opened = [
        await asyncio.open_connection("127.0.0.1", port)
        for _ in range(dashboard.MAX_CONNECTIONS + 5)
    ]
    async with asyncio.timeout(SOON):
        for reader, _ in opened[:5]:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b"", "one more ends the oldest"
    async with session.post(url) as answer:
        assert answer.status == 405
    for _, writer in opened:
        writer.transport.abort()
