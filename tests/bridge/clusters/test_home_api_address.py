"""The address of home's API server for pods, for each kind of kubeconfig."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.clusters.home_api_address import HomeApiAddress, find_home_api_address
from sync.kube.api_resources import ENDPOINT_SLICES
from sync.kube.client import KubeClient
from sync.kube.credentials import Credentials
from sync.kube.endpoint import Endpoint
from tests.bridge.two_clusters import API_SLICE
from tests.conftest import ClientFor
from tests.fakeapi import FakeApi, credentials_for
from translators.translation_options import HostPort

Change = Callable[[Credentials], None]
ClientWithServer = Callable[[Change], KubeClient]

ENDPOINT = HostPort("192.0.2.1", 6443)


@pytest.fixture
async def client_with(
    home_api: FakeApi, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> ClientWithServer:
    """Creates clients of the fake home with a changed kubeconfig."""
    home_api.put(API_SLICE)
    reached = await client_for(home_api, "home")

    def make(change: Change) -> KubeClient:
        access = credentials_for(home_api, "home")
        access.endpoint = Endpoint("https://home.example.com:8443")
        change(access)
        client = KubeClient(access)
        monkeypatch.setattr(client, "request", reached.request)
        return client

    return make


def server(url: str) -> Change:
    """A kubeconfig with this server."""

    def change(access: Credentials) -> None:
        access.endpoint = Endpoint(url)

    return change


def proxied(access: Credentials) -> None:
    access.endpoint = replace(access.endpoint, proxy="http://proxy.example.com:3128")


def named_by_tls(access: Credentials) -> None:
    access.endpoint = replace(access.endpoint, tls_server_name="kubernetes.default")


def in_cluster(access: Credentials) -> None:
    access.in_cluster = True


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (server("https://home.example.com"), HostPort("home.example.com", 443)),
        (server("https://home.example.com:8443"), HostPort("home.example.com", 8443)),
        (server("https://[2001:db8::1]:6443"), HostPort("2001:db8::1", 6443)),
    ],
)
async def test_dialable_server_is_used_without_a_request(
    home_api: FakeApi, client_with: ClientWithServer, change: Change, at: HostPort
) -> None:
    assert await find_home_api_address(client_with(change)) == HomeApiAddress(at)
    assert home_api.requests() == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (server("https://rancher.example.com/k8s/clusters/c-1"), "the path /k8s/clusters/c-1"),
        (server("http://home.example.com"), "plain http server, and pods need TLS"),
        (server("http://home.example.com:8001"), "plain http server, and pods need TLS"),
        (proxied, "a proxy-url"),
        (named_by_tls, "tls-server-name"),
    ],
    ids=["path prefix", "http", "http with port", "proxy-url", "tls-server-name"],
)
async def test_undialable_server_is_replaced_by_an_endpoint_with_the_reason(
    client_with: ClientWithServer, change: Change, why: str
) -> None:
    found = await find_home_api_address(client_with(change))
    assert found.address == ENDPOINT
    assert why in str(found)
    assert str(found).startswith("192.0.2.1:6443 (")


@pytest.mark.parametrize("change", [server("https://127.0.0.1:6443"), in_cluster])
async def test_loopback_and_in_cluster_servers_are_replaced_silently(
    client_with: ClientWithServer, change: Change
) -> None:
    assert str(await find_home_api_address(client_with(change))) == "192.0.2.1:6443"


async def test_proxy_of_the_environment_is_not_used_by_pods(
    client_with: ClientWithServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example.com:3128")
    assert await find_home_api_address(client_with(proxied)) == HomeApiAddress(
        HostPort("home.example.com", 8443)
    )


async def test_path_prefix_without_endpoints_requires_home_api_address(
    home_api: FakeApi, client_with: ClientWithServer
) -> None:
    home_api.remove(ENDPOINT_SLICES, "kubernetes", "default")
    with pytest.raises(PreflightError) as caught:
        await find_home_api_address(
            client_with(server("https://rancher.example.com/k8s/clusters/c-1"))
        )
    assert "/k8s/clusters/c-1" in str(caught.value)
    assert "--home-api-address HOST:PORT" in str(caught.value)
