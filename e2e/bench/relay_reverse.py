"""Connections from the remote to home's pods that the bridge carries, next to a flat network, in
one run: `e2e.bench.relay_forward` in the other direction.

Two ways lead to the same pod at home: ``relay`` (the port of the relay pod that the bridge
publishes in the remote, the bridge, the pod) and ``flat`` (the pod's own address). What begins with
``pod_`` is what the relay pod takes of the remote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.bench import relay_forward
from e2e.bench.relay_forward import NAMESPACE, NODE, SERVICE, Endpoints, Progress, Settings
from e2e.bench.report import Report
from e2e.clusters.cluster import Cluster
from e2e.kubectl import get, get_one, wait_for
from e2e.pod_processes import processes
from e2e.workload_manifests import pod

_THERE = f"{NAMESPACE}-{NODE}"
_OURS = "cluster-bridge.io/relay!=pod,cluster-bridge.io/relay"


def run(
    home: Cluster, remote: Cluster, asked: Settings, say: Progress, log: Path, *, image: str
) -> Report:
    """Joins, measures, and leaves. ``image`` is the bridge's, which the remote's machine has."""
    image = f"--relay-image={image}"
    with (
        relay_forward.joined(home, remote, log, image) as pid,
        _served(home, remote, asked.size) as ways,
    ):
        (made,) = get(remote, "pods", namespace=_THERE, selector="cluster-bridge.io/relay=pod")
        (there,) = processes(made)
        return relay_forward.measure_paths("relay-back", asked, ways, {"": pid, "pod_": there}, say)


@contextmanager
def _served(home: Cluster, remote: Cluster, size: int) -> Iterator[dict[str, Endpoints]]:
    """A pod at home, and the two ways to its ports."""
    with relay_forward.namespace(home):
        (near, *_) = home.node_names
        # Without a pod in the remote nobody there could ask.
        manifest = SERVICE + relay_forward.server(near, size) + f"\n---\n{pod(NODE, 'client')}"
        relay_forward.apply(home, manifest)
        found = wait_for(
            lambda: get(remote, "endpointslices", namespace=_THERE, selector=_OURS), "an endpoint"
        )
        direct = get_one(home, "pod", "bench", namespace=NAMESPACE)["status"]["podIP"]
        yield {"relay": relay_forward.way(found[0]), "flat": relay_forward.flat(direct)}
