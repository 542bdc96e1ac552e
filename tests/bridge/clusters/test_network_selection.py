"""Selection of the network mode, and the relay address."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import NetworkSource, RelaySettings, SelectedNetwork
from bridge.clusters import pod_network_probe
from bridge.clusters.advertised_address import relay_address
from bridge.clusters.network_selection import select_network
from bridge.node import join_record
from sync.kube.api_resources import PODS
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.two_clusters import Clusters
from tests.fakeapi import CLOSED_PORT, FakeApi, Fault
from tests.fakeapi.credentials import credentials_for
from tests.sync.engine_harness import NODE
from translators.object_accessors import Object
from translators.translation_options import Network, Policy
from translators.virtual_node_identity import Identity


@pytest.fixture
def open_port() -> Iterator[int]:
    """A port of 127.0.0.1 that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock.getsockname()[1]


def runs(
    api: FakeApi, name: str, address: str, port: int | None = 80, *, node: str = "worker"
) -> None:
    """A pod that is ready."""
    its = objects.pod(name, node=node)
    if port is not None:
        its["spec"]["containers"][0]["ports"] = [{"containerPort": port}]
    ready = {"type": "Ready", "status": "True"}
    its["status"] = {"phase": "Running", "podIP": address, "conditions": [ready]}
    api.put(its)


def recorded(mode: Network, source: NetworkSource) -> Object:
    """A virtual node that records this mode."""
    policy = Policy(Identity("0" * 16, "h", NODE), "192.0.2.1", network=mode)
    text = join_record.encode_policy(policy, network_source=source)
    node = objects.node(NODE)
    node["metadata"]["annotations"] = {join_record.ANNOTATION_OPTIONS: text}
    return node


async def selected(
    two: Clusters,
    node: Object | None = None,
    *,
    network: str = "auto",
    address: str = "192.0.2.1",
    namespaces: tuple[str, ...] = (),
) -> SelectedNetwork:
    async with (
        KubeClient(credentials_for(two.home, "home")) as home,
        KubeClient(credentials_for(two.remote, "remote")) as remote,
    ):
        settings = two.but(network=network)
        return await select_network(
            settings,
            node=node,
            address=address,
            home=home,
            account=home,
            remote=remote,
            namespaces=namespaces,
        )


@pytest.mark.parametrize("mode", ["flat", "relay", "none"])
async def test_configured_mode_replaces_the_record_and_dials_no_pods(
    two: Clusters, mode: Network
) -> None:
    found = await selected(two, recorded("flat", "probed"), network=mode)
    assert found == SelectedNetwork(mode, "configured")
    assert not two.remote.requests("GET", "*/pods")


async def test_auto_selects_flat_when_pods_accept(two: Clusters, open_port: int) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    found = await selected(two)
    assert (found.mode, found.source) == ("flat", "probed")
    assert str(found) == ("pod networks: flat (probed: 1 pod(s) of the remote accept a connection)")


async def test_only_pods_of_prepared_namespaces_are_dialed(two: Clusters, open_port: int) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    found = await selected(two, namespaces=("a", "b"))
    assert found.reason == "no pod of the remote is ready to be dialed"
    assert not two.remote.requests("GET", "/api/v1/pods")
    assert (await selected(two, namespaces=("a", "default"))).mode == "flat"


async def test_pods_without_ports_are_not_dialed_beside_others(
    two: Clusters, open_port: int
) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    runs(two.remote, "portless", "127.0.0.1", None, node="other")
    assert (await selected(two)).mode == "flat"


@pytest.mark.parametrize("address", ["a..b", "x" * 70, "::1%a..b", "localhost"])
async def test_only_ip_addresses_are_dialed(two: Clusters, address: str) -> None:
    runs(two.remote, "near", address)
    assert (await selected(two)).reason == "no pod of the remote is ready to be dialed"


@pytest.mark.parametrize("port", [-5, 65536, 2**62])
async def test_port_outside_of_the_range_counts_as_none(
    two: Clusters, open_port: int, port: int
) -> None:
    runs(two.remote, "invalid", "127.0.0.1", port, node="other")
    runs(two.remote, "near", "127.0.0.1", open_port)
    found = await selected(two)
    assert str(found) == "pod networks: flat (probed: 1 pod(s) of the remote accept a connection)"


async def test_refused_connection_does_not_outweigh_an_accepted_one(
    two: Clusters, open_port: int
) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    runs(two.remote, "closed", "127.0.0.1", CLOSED_PORT)
    assert (await selected(two)).mode == "flat"


async def test_auto_selects_relay_when_home_has_the_same_address(
    two: Clusters, open_port: int
) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    runs(two.home, "other", "127.0.0.1")
    found = await selected(two)
    assert (found.mode, found.source) == ("relay", "probed")
    assert "home has pods with the addresses of default/near at 127.0.0.1" in found.reason


async def test_account_that_may_not_look_for_the_addresses_selects_relay(
    two: Clusters, open_port: int
) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    two.home.fail(Fault("GET", "/api/v1/pods", code=403, times=None))
    found = await selected(two)
    assert (found.mode, found.source) == ("relay", "assumed")
    assert "the account may not list home's pods" in found.reason


async def test_auto_selects_relay_without_response(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_network_probe, "CONNECT_SECONDS", 0.2)
    runs(two.remote, "far", "224.0.0.1")
    found = await selected(two)
    assert (found.mode, found.source) == ("relay", "probed")
    assert "no response from default/far at 224.0.0.1" in found.reason


async def test_inconclusive_probe_assumes_relay(two: Clusters) -> None:
    found = await selected(two)
    assert str(found) == (
        "pod networks: relay (not probed: no pod of the remote is ready to be dialed)"
    )
    runs(two.remote, "closed", "127.0.0.1", CLOSED_PORT)
    found = await selected(two)
    assert (found.mode, found.source) == ("relay", "assumed")
    assert "default/closed at 127.0.0.1 refused" in found.reason


async def test_auto_selects_none_where_the_bridge_cannot_relay(two: Clusters) -> None:
    found = await selected(two, address="127.0.0.1")
    assert (found.mode, found.source) == ("none", "assumed")
    assert "loopback" in found.reason
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "endpointslices"
    found = await selected(two)
    assert (found.mode, found.source) == ("none", "assumed")
    assert (
        "relay needs permissions: bridge rbac home --name virtual --network relay" in found.reason
    )


async def test_probed_mode_is_kept_by_later_starts(two: Clusters, open_port: int) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    found = await selected(two, recorded("relay", "probed"))
    assert str(found) == "pod networks: relay (probed: recorded on the Node)"
    assert not two.remote.requests("GET", "*/pods")


@pytest.mark.parametrize("source", ["assumed", "configured"])
async def test_mode_that_no_probe_found_is_kept_while_pods_run_on_the_node(
    two: Clusters, open_port: int, source: NetworkSource
) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    runs(two.home, "web", "192.0.2.9", node=NODE)
    node = recorded("relay", source)
    found = await selected(two, node)
    assert (found.mode, found.source) == ("relay", source)
    assert "kept while pods run on it" in found.reason
    two.home.remove(PODS, "web", "default")
    found = await selected(two, node)
    assert (found.mode, found.source) == ("flat", "probed")


async def test_pods_of_daemonsets_do_not_keep_the_mode(two: Clusters, open_port: int) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    agent = objects.pod("agent", node=NODE)
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "1"}
    agent["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    two.home.put(agent)
    assert (await selected(two, recorded("relay", "assumed"))).mode == "flat"


async def test_mode_of_an_earlier_version_counts_as_assumed(two: Clusters, open_port: int) -> None:
    runs(two.remote, "near", "127.0.0.1", open_port)
    node = objects.node(NODE)
    text = '{"network": "relay"}'
    node["metadata"]["annotations"] = {join_record.ANNOTATION_OPTIONS: text}
    runs(two.home, "web", "192.0.2.9", node=NODE)
    found = await selected(two, node)
    assert (found.mode, found.source) == ("relay", "assumed")


def test_relay_address_defaults_to_node_address(two: Clusters) -> None:
    assert relay_address(two.settings, "192.0.2.1") == "192.0.2.1"
    own = replace(two.settings, relay=RelaySettings(address="192.0.2.2"))
    assert relay_address(own, "127.0.0.1") == "192.0.2.2"
    with pytest.raises(PreflightError, match=r"loopback.*--relay-address"):
        relay_address(two.settings, "127.0.0.1")
