"""The proxy of a server by the environment, and requests through a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync.kube.api_errors import ClientConfigError, Unreachable
from sync.kube.api_resources import SERVICES
from sync.kube.client import KubeClient
from sync.kube.credentials import load
from sync.kube.endpoint import Endpoint, proxy_of_environment
from sync.kube.http_upgrade import open_upgrade
from sync.kube.kubeconfig import Sources, read_files, select
from sync.kube.kubeconfig_ref import KubeconfigRef
from tests.fakeapi import Authority, FakeApi
from tests.fakeapi.http_proxy import proxying
from tests.fakeapi.kubeconfig import kubeconfig, write

PROXY = "http://proxy.test:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own settings do not count."""
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# The table of UseProxyTests and of NoProxy's documentation in golang.org/x/net/http/httpproxy.
@pytest.mark.parametrize(
    ("server", "no_proxy", "uses"),
    [
        ("https://example.com", "", True),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://127.3.4.5", "", False),
        ("https://[::1]:6443", "", False),
        ("https://[::2]", "", True),
        ("https://barbaz.net", "barbaz.net", False),
        ("https://a.barbaz.net", "barbaz.net", False),
        ("https://notbarbaz.net", "barbaz.net", True),
        ("https://barbaz.net", ".barbaz.net", True),
        ("https://a.barbaz.net", ".barbaz.net", False),
        ("https://a.barbaz.net", "*.barbaz.net", False),
        ("https://barbaz.net", "*.barbaz.net", True),
        ("https://BarBaz.net", " barbaz.NET , other", False),
        ("https://barbaz.net:6443", "barbaz.net:6443", False),
        ("https://barbaz.net:443", "barbaz.net:6443", True),
        ("https://barbaz.net", "barbaz.net:443", False),
        ("https://192.168.1.2", "192.168.0.0/16", False),
        ("https://192.169.1.2", "192.168.0.0/16", True),
        ("https://10.0.0.1:6443", "10.0.0.1", False),
        ("https://10.0.0.1:6443", "10.0.0.1:6443", False),
        ("https://10.0.0.1:6443", "10.0.0.1:443", True),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", False),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://example.com", "*", False),
        ("https://example.com", "a,*", False),
        ("https://example.com", ",,  ,:80", True),
        ("https://example.com", "10.0.0.0/99", True),
    ],
)
def test_no_proxy_matches_as_in_go(server: str, no_proxy: str, *, uses: bool) -> None:
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert proxy_of_environment(server, environ) == (PROXY if uses else None)


def test_scheme_of_the_server_chooses_the_variable() -> None:
    environ = {"https_proxy": "https://s.test", "HTTP_PROXY": "plain.test:8080"}
    assert proxy_of_environment("https://a.test", environ) == "https://s.test"
    assert proxy_of_environment("http://a.test", environ) == "http://plain.test:8080"
    assert proxy_of_environment("https://a.test", {"HTTP_PROXY": PROXY}) is None


async def test_proxy_of_the_kubeconfig_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://env.test:1")
    monkeypatch.setenv("NO_PROXY", "*")
    path = write(tmp_path / "c", kubeconfig("https://a.test", cluster={"proxy-url": PROXY}))
    assert (await load(KubeconfigRef(path), side="home")).endpoint.proxy == PROXY
    path = write(tmp_path / "c", kubeconfig("https://a.test"))
    assert (await load(KubeconfigRef(path), side="home")).endpoint.proxy is None
    monkeypatch.delenv("NO_PROXY")
    assert (await load(KubeconfigRef(path), side="home")).endpoint.proxy == "http://env.test:1"


def test_no_password_in_a_repr(tmp_path: Path) -> None:
    assert "s3cret" not in repr(Endpoint("https://a.test", proxy="http://me:s3cret@p.test"))
    config = kubeconfig("https://a.test", user={"token": "s3cret"})
    configs = read_files(Sources(), [write(tmp_path / "c", config)])
    assert "s3cret" not in repr(select(configs, None))


@pytest.mark.parametrize("proxy", ["socks5://me:s3cret@s.test:1080", "ftp://s.test", "http://"])
@pytest.mark.parametrize("where", ["kubeconfig", "environment"])
async def test_unsupported_proxy_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, where: str
) -> None:
    cluster = {"proxy-url": proxy} if where == "kubeconfig" else {}
    if where == "environment":
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    path = write(tmp_path / "c", kubeconfig("https://a.test", cluster=cluster))
    with pytest.raises(ClientConfigError, match="proxy") as caught:
        await load(KubeconfigRef(path), side="home")
    assert "s3cret" not in str(caught.value)
    if proxy.startswith("socks5"):
        assert "unsupported scheme socks5" in str(caught.value)


async def test_requests_watches_and_upgrades_go_through_the_proxy(
    tmp_path: Path, authority: Authority
) -> None:
    context = authority.server_context(authority.issue("server", address="127.0.0.1"))
    async with FakeApi(tls=context) as api, proxying() as (proxy, port):
        cluster = {
            "certificate-authority": str(authority.cert),
            "proxy-url": f"http://me:p%40ss@127.0.0.1:{port}",
        }
        config = kubeconfig(api.url, user={"token": "t"}, cluster=cluster)
        access = await load(KubeconfigRef(write(tmp_path / "c", config)), side="remote")
        async with KubeClient(access) as client:
            await client.list(SERVICES)
            async with client.stream(SERVICES.path(), query={"watch": "1"}):
                pass
        path = "/api/v1/namespaces/default/pods/a/exec"
        await open_upgrade(KubeClient(access), "POST", path, [], [("Upgrade", "SPDY/3.1")])
        assert len(api.log) == 3
        assert len(proxy.heads) == 3
        for head in proxy.heads:
            assert head.startswith(f"CONNECT 127.0.0.1:{api.port} HTTP/1.1\r\n")
            assert "Proxy-Authorization: Basic bWU6cEBzcw==" in head
            assert "Bearer" not in head


async def test_proxy_rejection_does_not_contain_the_password(
    tmp_path: Path, authority: Authority
) -> None:
    async with proxying() as (proxy, port):
        proxy.connect_response = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        cluster = {"proxy-url": f"http://me:s3cret@127.0.0.1:{port}"}
        config = kubeconfig("https://a.test", cluster=cluster)
        access = await load(KubeconfigRef(write(tmp_path / "c", config)), side="remote")
        async with KubeClient(access) as client:
            with pytest.raises(Unreachable, match="the proxy answered 403") as caught:
                await client.list(SERVICES)
        assert "s3cret" not in str(caught.value)
