"""The handle of a cluster that does not run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from e2e.clusters.cluster import Backend, Cluster, Control


def cluster_handle(folder: Path, *, server: str = "https://192.0.2.1:6443") -> Cluster:
    """A handle whose kubeconfig and kubectl are in ``folder``."""
    return Cluster(
        name="home",
        backend=Backend.NATIVE,
        kubernetes="v1.34.4",
        kubeconfig=folder / "kubeconfig",
        server=server,
        node_ip="192.0.2.1",
        node_names=("home-node-0",),
        pod_cidr="192.0.2.128/26",
        service_cidr="192.0.2.192/26",
        host_address="192.0.2.254",
        kubectl_path=folder / "kubectl",
        control=cast("Control", None),
    )
