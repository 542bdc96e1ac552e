"""Whether the range of `--relay-cidr` can be had, before anything is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.base.errors import PreflightError
from bridge.base.settings import NetworkChoice, RelaySettings
from bridge.checks import join_checks
from bridge.clusters import relay_cidr
from bridge.relay.forward import netlink
from sync.kube.client import KubeClient
from sync.kube.resources import SERVICE_CIDRS, Object
from tests import objects
from tests.bridge.two_clusters import Clusters
from tests.fakeapi.client_config import client_config_for
from tests.fakeapi.resource_registry import Kind

CIDR = "198.51.100.0/24"
HERE = "192.0.2.1"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine may change its routes, and has none."""
    monkeypatch.setattr(netlink, "can_change_routes", lambda _: True)
    monkeypatch.setattr(netlink, "routes", lambda _: [])


async def unusable(two: Clusters, *, in_cluster: bool = False, address: str = HERE) -> str:
    """Why not; "" where it can be had."""
    access = client_config_for(two.home, "home")
    access.in_cluster = in_cluster
    async with KubeClient(access) as home:
        return await relay_cidr.check_relay_cidr(CIDR, home=home, address=address)


def pod_at(two: Clusters, address: str, **spec: object) -> None:
    made = objects.pod("near", node="worker")
    made["spec"].update(spec)
    made["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    two.home.put(made)


def node_with(two: Clusters, **spec: object) -> None:
    address = {"type": "InternalIP", "address": "203.0.113.1"}
    made: Object = {**objects.node("worker"), "spec": spec, "status": {"addresses": [address]}}
    two.home.put(made)


async def test_a_range_that_nobody_has_can_be_had(two: Clusters) -> None:
    pod_at(two, "203.0.113.2")
    node_with(two, podCIDRs=["203.0.113.0/24", "fd00::/64"])
    assert await unusable(two) == ""


async def test_pods_and_nodes_of_home_are_in_the_way(two: Clusters) -> None:
    pod_at(two, "198.51.100.9")
    assert "overlaps with 198.51.100.9/32 of pod default/near" in await unusable(two)


async def test_so_are_ranges_of_homes_nodes(two: Clusters) -> None:
    node_with(two, podCIDRs=["198.51.0.0/16"])
    assert "overlaps with 198.51.0.0/16 of node worker" in await unusable(two)


async def test_so_is_that_of_homes_services(two: Clusters) -> None:
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


async def test_an_older_home_does_not_tell_its_services(two: Clusters) -> None:
    assert await unusable(two) == ""
    (asked,) = two.home.requests("GET", "*/servicecidrs")
    assert asked.code == [404]


async def test_who_may_not_see_nodes_does_not_ask(two: Clusters) -> None:
    node_with(two, podCIDRs=["198.51.0.0/16"])
    two.home.api.authorize = lambda spec: spec["resourceAttributes"]["resource"] != "nodes"
    assert await unusable(two) == ""
    assert not two.home.requests("GET", "*/nodes")


async def test_the_bridges_own_address_is_not_for_pods(two: Clusters) -> None:
    assert "the bridge's own address" in await unusable(two, address="198.51.100.9")


async def test_a_pod_with_a_network_of_its_own_cannot_have_a_range(two: Clusters) -> None:
    pod_at(two, HERE)
    said = await unusable(two, in_cluster=True)
    assert "runs in pod default/near" in said
    assert "hostNetwork: true" in said
    assert await unusable(two) == "", "it is a pod's, and not ours"


async def test_one_in_its_machines_network_can(two: Clusters) -> None:
    pod_at(two, HERE, hostNetwork=True)
    assert await unusable(two, in_cluster=True) == ""


async def check(two: Clusters, network: NetworkChoice) -> tuple[str, list[str]]:
    """The range that a join found, and its lines."""
    told: list[str] = []
    relay = RelaySettings(address=HERE, cidr=CIDR)
    settings = replace(two.settings, network=network, relay=relay)
    async with (
        KubeClient(client_config_for(two.home, "home")) as home,
        KubeClient(client_config_for(two.remote, "remote")) as remote,
    ):
        found = await join_checks.check_join(settings, home=home, remote=remote, notify=told.append)
    return found.relay_cidr, told


async def test_a_join_tells_what_is_to_be_routed(two: Clusters) -> None:
    found, told = await check(two, "relay")
    assert found == CIDR
    assert (
        f"home: pods behind headless Services have addresses in {CIDR}: route that range to {HERE}"
        in told
    )


async def test_where_there_is_no_relay_there_is_no_range(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "can_change_routes", lambda _: False)
    found, _ = await check(two, "flat")
    assert found == "", "as --network auto may find"


async def test_a_join_without_the_right_ends_before_anything_is_written(
    two: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(netlink, "can_change_routes", lambda _: False)
    with pytest.raises(PreflightError, match="CAP_NET_ADMIN"):
        await check(two, "relay")
    assert two.writes() == []
