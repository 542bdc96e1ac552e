"""Simulated nodes: Node objects, and KWOK's controller that keeps them and their pods alive.

No container runs on such a node: its pods become Ready at once and have addresses of the cluster's
pod network. Any number of nodes costs one process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from e2e.clusters.errors import StartFailed
from e2e.clusters.go_recipes import KWOK_STAGES
from e2e.clusters.native_site import Site

KWOK = "kwok"
COMPONENTS = (KWOK,)

# Concurrent requests: the API server's own limit for writes is 200.
_PARALLEL = 16

# On two cores the controller makes about 300 nodes per second Ready.
START_TIMEOUT = 120.0
_TIMEOUT_PER_NODE = 0.05

# A node of a common size that may have more pods than the usual 110.
CAPACITY = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "1000"}


def start(site: Site, folder: Path) -> None:
    """Starts the controller and creates the nodes; needs a ready API server.

    :raises StartFailed: the API server rejected a node.
    """
    site.supervisor.start(KWOK, command(site, folder))
    api = site.api

    def make(name: str) -> None:
        status, answer = api.request("POST", "/api/v1/nodes", node(site, name))
        # 409: an interrupted start had created it.
        if status not in {201, 409}:
            raise StartFailed(
                f"{site.spec.name}: node {name} was rejected: {answer}", where=site.server
            )

    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(make, site.node_names))
    api.close()


def wait(site: Site) -> None:
    """Waits until every node is Ready.

    :raises StartFailed: the controller ended, or nodes were not Ready in time.
    """
    api, wanted = site.api, set(site.node_names)
    site.wait(
        f"{len(wanted)} nodes were Ready",
        lambda: api.ready_nodes() >= wanted,
        (KWOK,),
        START_TIMEOUT + _TIMEOUT_PER_NODE * len(wanted),
    )
    api.close()


def command(site: Site, folder: Path) -> list[str | Path]:
    """The command line of the controller."""
    return [
        folder / KWOK,
        f"--kubeconfig={site.settings.kubeconfig(site.spec.name)}",
        f"--config={folder / KWOK_STAGES}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--node-lease-duration-seconds=40",
        f"--node-ip={site.plan.node.ip}",
        f"--cidr={site.plan.pods}",
    ]


def node(site: Site, name: str) -> dict[str, Any]:
    """A simulated Node object."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "status": {
            "capacity": CAPACITY,
            "allocatable": CAPACITY,
            "nodeInfo": {
                "kubeletVersion": str(site.settings.kubernetes),
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }
