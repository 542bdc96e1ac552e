"""Connections from the remote to home's pods that the bridge carries, next to a flat network, in
one run: `e2e.bench.relay` in the other direction.

Two ways lead to the same pod at home: ``relay`` (the port of the relay pod that the bridge
publishes in the remote, the bridge, the pod) and ``flat`` (the pod's own address). What begins with
``pod_`` is what the relay pod takes of the remote.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.bench import relay
from e2e.bench.figures import Report
from e2e.bench.relay import NAMESPACE, NODE, SERVICE, Progress, Settings, Way
from e2e.clusters.model import Cluster
from e2e.kubectl import get, get_one, wait_for
from e2e.pod_processes import processes
from e2e.workloads import pod

_THERE = f"{NAMESPACE}-{NODE}"
_OURS = "cluster-bridge.io/relay!=pod,cluster-bridge.io/relay"


def run(
    home: Cluster, remote: Cluster, asked: Settings, say: Progress, log: Path, *, image: str
) -> Report:
    """Joins, measures, and leaves. ``image`` is the bridge's, which the remote's machine has."""
    image = f"--relay-image={image}"
    with relay.joined(home, remote, log, image) as pid, _served(home, remote, asked.size) as ways:
        (made,) = get(remote, "pods", namespace=_THERE, selector="cluster-bridge.io/relay=pod")
        (there,) = processes(made)
        return relay.measured("relay-back", asked, ways, {"": pid, "pod_": there}, say)


@contextmanager
def _served(home: Cluster, remote: Cluster, size: int) -> Iterator[dict[str, Way]]:
    """A pod at home, and the two ways to its ports."""
    with relay.namespace(home):
        (near, *_) = home.node_names
        # Without a pod in the remote nobody there could ask.
        manifest = SERVICE + relay.server(near, size) + f"\n---\n{pod(NODE, 'client')}"
        relay.apply(home, manifest)
        found = wait_for(
            lambda: get(remote, "endpointslices", namespace=_THERE, selector=_OURS), "an endpoint"
        )
        direct = get_one(home, "pod", "bench", namespace=NAMESPACE)["status"]["podIP"]
        yield {"relay": relay.way(found[0]), "flat": relay.flat(direct)}
