"""Validation of the range of `--relay-cidr`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.base.command_error import PreflightError
from bridge.base.join_settings import NetworkChoice, RelaySettings
from bridge.checks import network_paths, required_at_join
from bridge.home_identity.identity_selection import HomeClients
from bridge.relay.forward import rtnetlink
from sync.kube.api_resources import SERVICE_CIDRS, Object
from sync.kube.client import KubeClient
from tests import objects
from tests.bridge.two_clusters import Clusters
from tests.fakeapi.credentials import credentials_for
from tests.fakeapi.resource_registry import Kind

CIDR = "198.51.100.0/24"
HERE = "192.0.2.1"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may change this host's routes; there are none."""
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: True)
    monkeypatch.setattr(rtnetlink, "routes", lambda _: [])


async def unusable(two: Clusters, *, in_cluster: bool = False, address: str = HERE) -> str:
    """The reason why the range cannot be used; "" if it can."""
    access = credentials_for(two.home, "home")
    access.in_cluster = in_cluster
    async with KubeClient(access) as home:
        return await network_paths.check_relay_cidr(CIDR, home=home, address=address)


def pod_at(two: Clusters, address: str, **spec: object) -> None:
    made = objects.pod("near", node="worker")
    made["spec"].update(spec)
    made["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    two.home.put(made)


def node_with(two: Clusters, **spec: object) -> None:
    address = {"type": "InternalIP", "address": "203.0.113.1"}
    made: Object = {**objects.node("worker"), "spec": spec, "status": {"addresses": [address]}}
    two.home.put(made)


async def test_unused_range_is_accepted(two: Clusters) -> None:
    pod_at(two, "203.0.113.2")
    node_with(two, podCIDRs=["203.0.113.0/24", "fd00::/64"])
    assert await unusable(two) == ""


async def test_range_of_home_pods_and_nodes_is_rejected(two: Clusters) -> None:
    pod_at(two, "198.51.100.9")
    assert "overlaps with 198.51.100.9/32 of pod default/near" in await unusable(two)


async def test_range_overlapping_node_cidrs_is_rejected(two: Clusters) -> None:
    node_with(two, podCIDRs=["198.51.0.0/16"])
    assert "overlaps with 198.51.0.0/16 of node worker" in await unusable(two)


async def test_range_overlapping_service_cidr_is_rejected(two: Clusters) -> None:
    two.home.store.registry.add(Kind(SERVICE_CIDRS))
    two.home.put(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["198.51.96.0/20"]},
        }
    )
    assert "overlaps with 198.51.96.0/20 of home's Services" in await unusable(two)


async def test_address_of_a_node_that_is_no_ip_is_ignored(two: Clusters) -> None:
    texts = ("not-an-ip", "198.51.100.9")
    addresses = [{"type": "InternalIP", "address": text} for text in texts]
    two.home.put({**objects.node("worker"), "spec": {}, "status": {"addresses": addresses}})
    assert "overlaps with 198.51.100.9/32 of node worker" in await unusable(two)


async def test_home_without_service_cidrs_is_accepted(two: Clusters) -> None:
    assert await unusable(two) == ""
    (request,) = two.home.requests("GET", "*/servicecidrs")
    assert request.code == [404]


async def test_nodes_are_not_listed_without_permission(two: Clusters) -> None:
    node_with(two, podCIDRs=["198.51.0.0/16"])
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "nodes"
    assert await unusable(two) == ""
    assert not two.home.requests("GET", "*/nodes")


async def test_range_with_bridge_address_is_rejected(two: Clusters) -> None:
    assert "the bridge's own address" in await unusable(two, address="198.51.100.9")


async def test_range_is_rejected_in_pod_network(two: Clusters) -> None:
    pod_at(two, HERE)
    reason = await unusable(two, in_cluster=True)
    assert "runs in pod default/near" in reason
    assert "hostNetwork: true" in reason
    assert await unusable(two) == "", "it is a pod's, and not ours"


async def test_range_is_accepted_in_host_network(two: Clusters) -> None:
    pod_at(two, HERE, hostNetwork=True)
    assert await unusable(two, in_cluster=True) == ""


async def check(two: Clusters, network: NetworkChoice) -> tuple[str, list[str]]:
    """The range that a join uses, and the lines that it reports."""
    messages: list[str] = []
    relay = RelaySettings(address=HERE, cidr=CIDR)
    settings = replace(two.settings, network=network, relay=relay)
    async with (
        KubeClient(credentials_for(two.home, "home")) as home,
        KubeClient(credentials_for(two.remote, "remote")) as remote,
    ):
        found = await required_at_join.check_join(
            settings, home=HomeClients.of_account(home, ""), remote=remote, notify=messages.append
        )
    return found.relay_cidr, messages


async def test_join_reports_required_route(two: Clusters) -> None:
    found, messages = await check(two, "relay")
    assert found == CIDR
    assert (
        f"home: pods behind headless Services have addresses in {CIDR}: route that range to {HERE}"
        in messages
    )


async def test_range_is_ignored_without_relay(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: False)
    found, _ = await check(two, "flat")
    assert found == "", "as --network auto may find"


async def test_join_without_cap_net_admin_writes_nothing(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rtnetlink, "can_change_routes", lambda _: False)
    with pytest.raises(PreflightError, match="CAP_NET_ADMIN"):
        await check(two, "relay")
    assert two.writes() == []
