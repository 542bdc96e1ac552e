"""Broken connections, malformed responses, streams, and certificates."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from sync.kube import api_errors, transport
from sync.kube.api_resources import CONFIG_MAPS, NODES, PODS, SECRETS, SERVICES
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.endpoint import Endpoint
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.conftest import ClientFor
from tests.fakeapi import Authority, FakeApi, Fault
from tests.fakeapi.kubeconfig import kubeconfig, write
from tests.objects import config_map, pod


async def test_connection_refused_is_unreachable(api: FakeApi, client: KubeClient) -> None:
    await api.stop()
    with pytest.raises(api_errors.Unreachable, match=r"[Cc]onnect"):
        await client.list(NODES)
    await api.start()
    await client.list(NODES)


async def test_unknown_host_is_unreachable(client: KubeClient) -> None:
    client.credentials.endpoint = Endpoint("http://no-such-host.invalid:1")
    with pytest.raises(api_errors.Unreachable, match="no-such-host"):
        await client.list(NODES)


async def test_request_timeout_is_unreachable(api: FakeApi, client: KubeClient) -> None:
    api.pause()
    with pytest.raises(api_errors.Unreachable, match="in time"):
        await client.request("GET", NODES.path(), timeout=0.05)
    api.resume()
    await client.list(NODES)


async def test_connection_dropped_before_or_after_a_write_is_unreachable(
    api: FakeApi, client: KubeClient
) -> None:
    for drop, stored in (("before", False), ("after", True)):
        name = f"c-{drop}"
        api.fail(Fault(method="POST", drop="after" if stored else "before"))
        with pytest.raises(api_errors.Unreachable):
            await client.create(CONFIG_MAPS, config_map(name), namespace="default")
        assert (api.find(CONFIG_MAPS, name, "default") is not None) is stored


@pytest.mark.parametrize("raw", [b"<html>login</html>", b"", b"[]", b"null", b'"x"', b"{"])
async def test_response_that_is_no_json_object_is_unreachable(
    api: FakeApi, client: KubeClient, raw: bytes
) -> None:
    api.fail(Fault(raw=raw))
    with pytest.raises(api_errors.Unreachable, match="JSON"):
        await client.list(NODES)


async def test_failure_without_status_has_its_code(api: FakeApi, client: KubeClient) -> None:
    api.fail(Fault(raw=b"<html>bad gateway</html>", code=502))
    with pytest.raises(api_errors.ServerError, match="502"):
        await client.list(NODES)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_redirects_are_not_followed(api: FakeApi, client: KubeClient, method: str) -> None:
    async def elsewhere(_: web.BaseRequest) -> web.Response:
        return web.Response(status=302, headers={"Location": "/version"})

    api.route("*", CONFIG_MAPS.path(namespace="default"), elsewhere)
    path = CONFIG_MAPS.path(namespace="default")
    with pytest.raises(api_errors.ApiError, match="302"):
        await client.request(method, path, body=config_map("a") if method == "POST" else None)
    with pytest.raises(api_errors.ApiError, match="302"):
        async with client.stream(path):
            pytest.fail("a login page is no watch")
    assert len(api.log) == 2


async def test_requests_beyond_the_limit_wait(
    api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_CONNECTIONS", 2)
    client = await client_for(api)
    api.fail(Fault(delay=0.02, times=None))
    async with client.stream(NODES.path(), query={"watch": "1"}):
        await asyncio.gather(*(client.list(NODES) for _ in range(6)))


async def test_stream_returns_lines_as_they_arrive(api: FakeApi, client: KubeClient) -> None:
    async with client.stream(PODS.path(), query={"watch": "1"}) as response:
        for i in range(2):
            api.put(pod(f"p{i}"))
            assert f'"p{i}"'.encode() in await response.content.readline()
    await api.until(lambda: not api.open_watches())


async def test_broken_stream_is_unreachable(api: FakeApi, client: KubeClient) -> None:
    path = PODS.path()
    async with client.stream(path, query={"watch": "1"}) as response:
        await api.until(lambda: api.open_watches(PODS))
        api.break_watches()
        with pytest.raises(api_errors.Unreachable), client.map_read_errors(path):
            await response.content.readline()


async def test_silent_stream_times_out(api: FakeApi, client: KubeClient) -> None:
    path = PODS.path()
    api.mute_watches()
    async with client.stream(path, query={"watch": "1"}, idle_timeout=0.05) as response:
        api.put(pod("a"))
        with pytest.raises(api_errors.Unreachable, match="in time"), client.map_read_errors(path):
            await response.content.readline()


async def test_stream_without_response_times_out(api: FakeApi, client: KubeClient) -> None:
    api.pause()
    with pytest.raises(api_errors.Unreachable, match="in time"):
        async with client.stream(PODS.path(), query={"watch": "1"}, idle_timeout=0.05):
            pytest.fail("there is no answer")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (403, api_errors.Forbidden),
        (410, api_errors.Gone),
        (429, api_errors.Throttled),
        (500, api_errors.ApiError),
    ],
)
async def test_rejected_stream_raises_the_error_of_its_code(
    api: FakeApi, client: KubeClient, code: int, expected: type[Exception]
) -> None:
    api.fail(Fault(code=code, watch=True, retry_after=1))
    with pytest.raises(expected):
        async with client.stream(PODS.path(), query={"watch": "1"}):
            pytest.fail("it was refused")


async def test_exception_of_the_reader_passes_unchanged(api: FakeApi, client: KubeClient) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with client.stream(PODS.path(), query={"watch": "1"}):
            raise ValueError("mine")


async def test_https_with_a_client_certificate(tmp_path: Any, authority: Authority) -> None:
    context = authority.server_context(authority.issue("server", address="127.0.0.1"))
    pair = authority.issue("bridge-client")
    user = {"client-certificate": str(pair.cert), "client-key": str(pair.key)}
    async with FakeApi(tls=context) as server:
        config = kubeconfig(
            server.url, user=user, cluster={"certificate-authority": str(authority.cert)}
        )
        access = await load(KubeconfigRef(write(tmp_path / "config", config)), side="home")
        async with KubeClient(access) as client:
            await client.list(SERVICES)
        assert server.log[0].subject == "bridge-client"


@pytest.mark.parametrize("case", ["another authority", "another name"])
async def test_untrusted_certificate_is_a_certificate_error(
    tmp_path: Any, authority: Authority, case: str
) -> None:
    trusted = Authority(tmp_path, "another") if case == "another authority" else authority
    address = "127.0.0.2" if case == "another name" else "127.0.0.1"
    context = authority.server_context(authority.issue("server", address=address))
    async with FakeApi(tls=context) as server:
        cluster = {"certificate-authority": str(trusted.cert)}
        config = write(tmp_path / "config", kubeconfig(server.url, cluster=cluster))
        async with KubeClient(await load(KubeconfigRef(config), side="remote")) as client:
            with pytest.raises(api_errors.ApiServerCertificateError, match="certificate-authority"):
                await client.list(SECRETS)
            with pytest.raises(api_errors.ApiServerCertificateError):
                async with client.stream(SECRETS.path()):
                    pytest.fail("it is not trusted")


async def test_tls_server_name(tmp_path: Any, authority: Authority) -> None:
    context = authority.server_context(authority.issue("server", address="127.0.0.2"))
    async with FakeApi(tls=context) as server:
        cluster = {"certificate-authority": str(authority.cert), "tls-server-name": "127.0.0.2"}
        config = write(tmp_path / "config", kubeconfig(server.url, cluster=cluster))
        async with KubeClient(await load(KubeconfigRef(config), side="remote")) as client:
            await client.list(SECRETS)


async def test_tls_handshake_with_a_plain_http_server_is_unreachable(
    tmp_path: Any, api: FakeApi
) -> None:
    config = write(tmp_path / "config", kubeconfig(api.url.replace("http:", "https:")))
    async with KubeClient(await load(KubeconfigRef(config), side="remote")) as client:
        with pytest.raises(api_errors.Unreachable, match="TLS"):
            await client.list(SECRETS)
