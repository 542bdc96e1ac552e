"""Selection of the network mode, and the relay address."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import NetworkChoice, RelaySettings
from bridge.clusters import pod_network_probe
from bridge.clusters.bridge_address import relay_address
from bridge.clusters.pod_network_probe import select_network
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import FakeApi
from tests.fakeapi.client_config import client_config_for


def runs(api: FakeApi, name: str, address: str, port: int = 80) -> None:
    """Creates a pod that is ready."""
    its = objects.pod(name, node="worker")
    its["spec"]["containers"][0]["ports"] = [{"containerPort": port}]
    ready = {"type": "Ready", "status": "True"}
    its["status"] = {"phase": "Running", "podIP": address, "conditions": [ready]}
    api.put(its)


async def found(two: Clusters, choice: NetworkChoice = "auto") -> tuple[str, str]:
    """The selected mode, and the reason."""
    async with (
        KubeClient(client_config_for(two.home, "home")) as home,
        KubeClient(client_config_for(two.remote, "remote")) as remote,
    ):
        selected = await select_network(choice, home=home, remote=remote)
    return selected.mode, selected.reason


@pytest.mark.parametrize("choice", ["flat", "relay", "none"])
async def test_configured_mode_dials_no_pods(two: Clusters, choice: NetworkChoice) -> None:
    assert await found(two, choice) == (choice, "")
    assert not two.remote.requests("GET", "*/pods")


async def test_auto_selects_flat_when_pods_accept(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        runs(two.remote, "near", "127.0.0.1", sock.getsockname()[1])
        network, reason = await found(two)
    assert (network, "1 pod(s) of the remote accept a connection" in reason) == ("flat", True)


async def test_auto_selects_relay_when_home_has_the_same_address(two: Clusters) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        runs(two.remote, "near", "127.0.0.1", sock.getsockname()[1])
        runs(two.home, "other", "127.0.0.1")
        network, reason = await found(two)
    assert network == "relay"
    assert "home has pods with the addresses of default/near at 127.0.0.1" in reason


async def test_auto_selects_relay_otherwise(two: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_network_probe, "CONNECT_SECONDS", 0.2)
    network, reason = await found(two)
    assert (network, "no pod of the remote is ready" in reason) == ("relay", True)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        closed = sock.getsockname()[1]
    runs(two.remote, "closed", "127.0.0.1", closed)
    network, reason = await found(two)
    assert (network, "default/closed at 127.0.0.1 refuse" in reason) == ("relay", True)
    runs(two.remote, "far", "224.0.0.1")
    network, reason = await found(two)
    assert (network, "no response from default/far at 224.0.0.1" in reason) == ("relay", True)


def test_relay_address_defaults_to_node_address(two: Clusters) -> None:
    assert relay_address(two.settings, "192.0.2.1") == "192.0.2.1"
    own = replace(two.settings, relay=RelaySettings(address="192.0.2.2"))
    assert relay_address(own, "127.0.0.1") == "192.0.2.2"
    with pytest.raises(PreflightError, match=r"loopback.*--relay-address"):
        relay_address(two.settings, "127.0.0.1")
