"""Connections from the remote to home's pods through the relay, compared with a flat network in one
run: `e2e.bench.relay_forward` in the other direction.

Two paths lead to the same pod at home: ``relay`` (the relay agent's port that the bridge publishes
in the remote, the bridge, the pod) and ``flat`` (the pod's own address). Figures with the prefix
``pod_`` are about the relay agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.bench import relay_forward
from e2e.bench.pods.process_usage import processes
from e2e.bench.relay_forward import NAMESPACE, NODE, SERVICE, Endpoints, Progress, Settings
from e2e.bench.report import Report
from e2e.clusters.cluster import Cluster
from e2e.kubectl import get, get_one, wait_for
from e2e.workload_manifests import pod

_THERE = f"{NAMESPACE}-{NODE}"
_OURS = "cluster-bridge.io/relay!=pod,cluster-bridge.io/relay"


def run(
    home: Cluster, remote: Cluster, settings: Settings, say: Progress, log: Path, *, image: str
) -> Report:
    """Joins, measures, and leaves. ``image`` is the bridge's, loaded into the remote's node."""
    image = f"--relay-image={image}"
    with (
        relay_forward.joined(home, remote, log, image) as pid,
        _served(home, remote, settings.size) as paths,
    ):
        (made,) = get(remote, "pods", namespace=_THERE, selector="cluster-bridge.io/relay=pod")
        (there,) = processes(made)
        return relay_forward.measure_paths(
            "relay-back", settings, paths, {"": pid, "pod_": there}, say
        )


@contextmanager
def _served(home: Cluster, remote: Cluster, size: int) -> Iterator[dict[str, Endpoints]]:
    """A pod at home, and the two paths to its ports."""
    with relay_forward.namespace(home):
        (near, *_) = home.node_names
        # Without a pod in the remote, the bridge publishes nothing there.
        manifest = SERVICE + relay_forward.server(near, size) + f"\n---\n{pod(NODE, 'client')}"
        relay_forward.apply(home, manifest)
        found = wait_for(
            lambda: get(remote, "endpointslices", namespace=_THERE, selector=_OURS),
            "an endpoint exists",
        )
        direct = get_one(home, "pod", "bench", namespace=NAMESPACE)["status"]["podIP"]
        yield {"relay": relay_forward.way(found[0]), "flat": relay_forward.flat(direct)}
