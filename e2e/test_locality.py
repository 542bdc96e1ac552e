"""Services with a `trafficDistribution`: clients use pods of their own cluster while there are any.

The nodes of both clusters are in zones of the same name: only the bridge's hints tell them apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from e2e import test_relay, test_relay_reverse
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import get, wait_for

ZONE = "topology.kubernetes.io/zone"
#: Requests by which a preference is judged: without one, each of two pods answers some of them in
#: all but two of a million runs.
REQUESTS = 20


@pytest.fixture(autouse=True)
def zones(home: Cluster, remote: Cluster) -> Iterator[None]:
    """All nodes are in a zone, and have left it afterwards."""
    nodes = [(cluster, name) for cluster in (home, remote) for name in cluster.node_names]
    for cluster, name in nodes:
        cluster.kubectl("label", "node", name, f"{ZONE}=one", "--overwrite")
    yield
    for cluster, name in nodes:
        cluster.kubectl("label", "node", name, f"{ZONE}-")


def _apply(bridged: Bridged, client: str) -> None:
    """A client, and a Service that prefers close pods, with a pod in each cluster."""
    bridged.apply(
        test_relay.service("web")
        + test_relay.deployment("web", "near", bridged.home.node_names[0], 1)
        + test_relay.deployment("web", "far", bridged.node, 1)
        + client
    )
    close = json.dumps({"spec": {"trafficDistribution": "PreferClose"}})
    bridged.kubectl("patch", "service", "web", "--type=merge", "-p", close)
    test_relay.all_ready(bridged, 3)


def _wait_for_hints(cluster: Cluster, namespace: str) -> None:
    """Waits until the Service has an endpoint in each cluster, as its own cluster sees it."""

    def zones_of_hints() -> list[str]:
        slices = get(cluster, "endpointslices", namespace=namespace)
        endpoints = [endpoint for it in slices for endpoint in it.get("endpoints") or ()]
        hints = [it.get("hints", {}).get("forZones", [{"name": ""}]) for it in endpoints]
        return sorted(zone["name"] for zones in hints for zone in zones)

    wait_for(
        lambda: zones_of_hints() == ["one", "other-cluster.cluster-bridge.io"],
        f"all endpoints in {cluster.name} have hints",
    )


def _require_preference(ask: Callable[[], str], own: str, other: Callable[[], str]) -> None:
    """The own pod answers all requests; after ``other`` has removed it, the other cluster's."""
    wait_for(lambda: ask().startswith(own), f"{own} answers")
    assert {ask().rpartition("-")[0].rpartition("-")[0] for _ in range(REQUESTS)} == {own}
    name = other()
    wait_for(lambda: ask().startswith(name), f"{name} answers instead")


def _scale_down(bridged: Bridged, gone: str, remaining: str) -> str:
    bridged.kubectl("scale", f"deployment/{gone}", "--replicas=0")
    return remaining


def test_client_in_the_remote_prefers_pods_there(bridged: Bridged) -> None:
    """With pod networks that are connected: endpoints of home are copied to the remote."""
    _apply(bridged, test_relay_reverse.client(bridged))
    _wait_for_hints(bridged.remote, bridged.remote_namespace)
    _require_preference(
        lambda: test_relay_reverse.ask(bridged),
        "web-far",
        lambda: _scale_down(bridged, "web-far", "web-near"),
    )


@pytest.mark.join("--network=relay")
def test_client_at_home_prefers_pods_there(bridged: Bridged) -> None:
    """The relay forwards only what no pod of home can answer."""
    with without_routes(bridged.home, bridged.remote):
        _apply(bridged, test_relay.client(bridged))
        _wait_for_hints(bridged.home, bridged.namespace)
        host = test_relay.address(bridged, "web")
        _require_preference(
            lambda: test_relay.ask(bridged, host),
            "web-near",
            lambda: _scale_down(bridged, "web-near", "web-far"),
        )
