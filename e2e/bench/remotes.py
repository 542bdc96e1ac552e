"""Memory and processor time of idle bridges: many remotes of one release of the Helm chart.

Each remote of the list is a Deployment with one replica in the home cluster. All lead to one
cluster with simulated nodes, so each bridge aggregates as many nodes as a remote of its own would
have. The figures are those of the home cluster's kubelet (``stats/summary``, as in `kubectl top`),
one for each bridge.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from e2e import helm_chart
from e2e.bench.report import Report
from e2e.clusters.cluster import Cluster
from e2e.kubectl import create_namespace, get, is_ready, wait_for

NAMESPACE, NAME = "bench-remotes", "bench-remote"
#: Seconds after which a bridge is idle, for Helm, and until all nodes are Ready.
_SETTLE, _HELM, _READY = 120.0, 900.0, 300.0


@dataclass(frozen=True, slots=True)
class Usage:
    """The memory and processor time of a bridge's container at one time."""

    memory: int
    """Bytes of the working set."""
    cpu: float
    """Seconds of the processor since the container's start."""
    at: float
    """When the kubelet read both; seconds."""


def run(
    home: Cluster,
    remote: Cluster,
    say: Callable[[str], None],
    *,
    image: str,
    remotes: int,
    idle_seconds: float,
) -> Report:
    """Installs the release, measures, and uninstalls it."""
    report = Report("remotes", {"remotes": remotes, "nodes_each": len(remote.node_names)})
    names = [f"{NAME}-{number}" for number in range(remotes)]
    kubeconfig = helm_chart.portable_kubeconfig(remote)
    values = {
        "image": image,
        "remotes": [{"name": name, "kubeconfig": kubeconfig} for name in names],
        "defaults": {
            "replicas": 1,
            "options": {"home-name": "bench", "home-identity": "service-account"},
        },
    }
    helm = helm_chart.program()
    create_namespace(home, NAMESPACE)
    try:
        installed = helm_chart.run(
            *(helm, home, NAMESPACE, "upgrade", "--install", "release", str(helm_chart.CHART)),
            values=values,
            timeout=_HELM,
        )
        if installed.returncode:
            raise RuntimeError(f"helm upgrade failed: {installed.stderr}")
        wait_for(lambda: _ready(home) == set(names), "all nodes are Ready", seconds=_READY)
        say(f"{remotes} nodes are Ready")
        time.sleep(_SETTLE)
        before = _usages(home)
        time.sleep(idle_seconds)
        after = _usages(home)
    finally:
        uninstall = ("uninstall", "release", "--timeout", "10m")
        helm_chart.run(helm, home, NAMESPACE, *uninstall, timeout=_HELM)
        home.kubectl("delete", "namespace", NAMESPACE, timeout=120)
    if len(after) != remotes or before.keys() != after.keys():
        raise RuntimeError(f"bridges were restarted: {sorted(before)} and then {sorted(after)}")
    report.add("bridge.memory", "MB", [usage.memory / 1e6 for usage in after.values()])
    shares = [
        (after[pod].cpu - used.cpu) / (after[pod].at - used.at) for pod, used in before.items()
    ]
    report.add("bridge.of_a_core", "%", [share * 100 for share in shares])
    return report


def _ready(home: Cluster) -> set[str]:
    """The virtual nodes that are Ready."""
    nodes = get(home, "nodes", selector="cluster-bridge.io/virtual-node")
    return {node["metadata"]["name"] for node in nodes if is_ready(node)}


def _usages(home: Cluster) -> dict[str, Usage]:
    """The usage of all bridges, by the names of their pods."""
    found = {}
    for node in home.node_names:
        path = f"/api/v1/nodes/{node}/proxy/stats/summary"
        summary = json.loads(home.kubectl("get", "--raw", path).stdout)
        for pod in summary["pods"]:
            if pod["podRef"]["namespace"] != NAMESPACE:
                continue
            (container,) = pod["containers"]
            cpu, memory = container["cpu"], container["memory"]
            found[pod["podRef"]["name"]] = Usage(
                memory["workingSetBytes"], cpu["usageCoreNanoSeconds"] / 1e9, _seconds(cpu["time"])
            )
    return found


def _seconds(text: str) -> float:
    """Seconds of a time such as ``2026-01-31T12:00:00Z``."""
    return datetime.fromisoformat(text).timestamp()
