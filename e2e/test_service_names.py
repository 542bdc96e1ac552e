"""Names of the home cluster's Services in remote pods, with the server block of the manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from e2e import server_block
from e2e.clusters import coredns
from e2e.clusters.cluster import Cluster
from e2e.clusters.native import NativeControl
from e2e.conftest import Bridged
from e2e.kubectl import wait_for
from e2e.test_services import server, wait_until_ready, who_answers

AddBlock = Callable[[Bridged], None]

#: A headless Service, as a StatefulSet has.
_HEADLESS = """
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db-0}, ports: [{port: 8080}]}
"""


@pytest.fixture
def add_block(remote: Cluster) -> Iterator[AddBlock]:
    """Adds the block of a node to the remote's CoreDNS, until the test ends."""
    if not isinstance(remote.control, NativeControl):
        pytest.skip("the Corefile is a file of native clusters")
    site = remote.control.site

    def add(bridged: Bridged) -> None:
        suffix = bridged.remote_namespace.removeprefix(bridged.namespace)
        coredns.add_block(site, "cluster-bridge", server_block.server_block("", suffix))

    yield add
    coredns.add_block(site, "cluster-bridge", None)


def _with(manifest: str, fields: str) -> str:
    return manifest.replace("\nspec:\n  nodeSelector", f"\nspec:\n  {fields}\n  nodeSelector", 1)


@pytest.mark.join("--network=none")
def test_names_with_homes_namespace_resolve_in_remote_pods(
    bridged: Bridged, remote: Cluster, add_block: AddBlock
) -> None:
    node, namespace, there = bridged.node, bridged.namespace, bridged.remote_namespace
    bridged.apply(server("web", node) + server("asks", node))
    own_dns_config = "dnsConfig: {searches: [one.example], options: [{name: ndots, value: '1'}]}"
    bridged.apply(_with(server("asks-once", node), own_dns_config))
    bridged.apply(_with(server("db-0", node), "hostname: db-0\n  subdomain: db"))
    bridged.apply(_HEADLESS)
    wait_until_ready(bridged, 4)

    def reaches(asking: str, host: str, port: int = 80) -> str:
        return who_answers(remote, there, asking, host, port)

    def wait_until_reached(asking: str, host: str, answers: str, port: int = 80) -> None:
        wait_for(lambda: reaches(asking, host, port) == answers, f"{asking} reaches {host}")

    wait_for(lambda: reaches("asks", "web") == "web", "names of the own namespace resolve")
    full = f"web.{namespace}.svc.cluster.local"
    assert reaches("asks", full) == "", "another namespace is meant without the block"

    add_block(bridged)
    for host in (f"web.{namespace}", f"web.{namespace}.svc", full, f"{full}.", "web"):
        for asking in ("asks", "asks-once"):
            wait_until_reached(asking, host, "web")
    for host in (f"db.{namespace}", f"db-0.db.{namespace}.svc.cluster.local", "db-0.db"):
        wait_until_reached("asks", host, "db-0", port=8080)
    remotes_own = f"web.{there}.svc.cluster.local"
    wait_for(lambda: reaches("asks", remotes_own) == "web", "the remote's names stay")
    server_address = _dns_address(remote)
    assert coredns.resolves(remotes_own, server_address), "other clients have the remote's names"
    assert not coredns.resolves(full, server_address), "and no name of home"
    assert coredns.resolves("kubernetes.default.svc.cluster.local", server_address)


def _dns_address(cluster: Cluster) -> str:
    assert isinstance(cluster.control, NativeControl)
    return str(cluster.control.site.plan.dns)
