"""Prepares home with one node for the tests: its real one, or the virtual one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e import bridge_process
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster, Progress
from e2e.clusters.errors import ClusterError

#: The virtual node; helpers of the tests use a kubelet's standard port.
NODE = "virtual"
#: The bridge is the node at home, as a kubelet is; the administrator's join approves its request.
_IDENTITY = ("--home-identity", "node", "--yes")
_JOIN = ("--name", NODE, "--taints", "none", "--port", "10250", *_IDENTITY)
_STORAGE = ("--storage", "provision")

#: Timeout of the node's readiness.
_READY = "60s"


def require_real_alone(home: Cluster) -> None:
    """Verifies that home has its real nodes only.

    :raises ClusterError: home has other nodes, on which tests would run.
    """
    found = json.loads(home.kubectl("get", "nodes", "-o", "json").stdout)["items"]
    others = {node["metadata"]["name"] for node in found} - set(home.node_names)
    if others:
        raise ClusterError(
            f"home has other nodes than its own: {', '.join(sorted(others))}",
            next_step="remove them (`make demo-down`), or use clusters of another prefix: "
            "CLUSTER_BRIDGE_E2E_PREFIX",
        )


@contextmanager
def virtual_alone(
    home: Cluster, remote: Cluster, folder: Path, say: Progress, *, storage: bool = False
) -> Iterator[None]:
    """Cordons home's real nodes, and serves a virtual node without taint. With `storage` the bridge
    provisions volumes.

    Afterwards the bridge has left, and the real nodes are schedulable.

    :raises BridgeFailed: the bridge did not join.
    :raises ClusterError: the node was not Ready in time, or the bridge could not leave.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = (*_JOIN, *(_STORAGE if storage else ()))
    bridge = Bridge(home, remote, folder / "bridge.log", options)
    with ExitStack() as undo:
        undo.callback(home.kubectl, "uncordon", *home.node_names)
        home.kubectl("cordon", *home.node_names)
        undo.callback(_leave, bridge)
        undo.callback(bridge.kill)
        say(f"bridge {' '.join(map(str, bridge.command[1:]))}")
        bridge.start()
        home.kubectl("wait", f"node/{NODE}", "--for=condition=Ready", f"--timeout={_READY}")
        yield


def _leave(bridge: Bridge) -> None:
    # Volumes that tests left behind were reported, and must not hide the results.
    command = ["leave", NODE, "--yes", "--force", "--keep-volumes"]
    left = bridge_process.run(*command, "--kubeconfig", bridge.remote.kubeconfig, home=bridge.home)
    if left.returncode != 0:
        raise ClusterError(f"bridge leave: {left.stderr}", where=str(bridge.log))
