"""Two virtual nodes for two pools of one remote, the first of which can lose its remote.

Each pool has two of the remote's simulated nodes of 64 CPUs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import another_node, usual_options
from e2e.faulty_server import FaultyServer
from e2e.kubectl import Json, get


@dataclass(frozen=True)
class Pools:
    """Both clusters, and what a test needs to cut the first virtual node from the remote."""

    home: Cluster
    remote: Cluster
    proxy: FaultyServer
    """Between the bridge of the first virtual node and the remote's API server."""

    def apply(self, *objects: Json) -> None:
        """Applies objects in the home cluster."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.home.kubectl("apply", "-f", "-", input=items)

    def pods(self, namespace: str) -> dict[str, Json]:
        """The namespace's home pods, by name."""
        found = get(self.home, "pods", namespace=namespace)
        return {pod["metadata"]["name"]: pod for pod in found}


@contextmanager
def joined_pools(
    simulated: dict[str, Cluster], folder: Path, first: str, second: str, *options: str
) -> Iterator[Pools]:
    """Joins the remote once for each pool; the virtual nodes have the pools' names, also in the
    label ``pool``. ``options`` are further options of both joins."""
    home, remote = simulated["home"], simulated["remote"]
    workers = [node["metadata"]["name"] for node in get(remote, "nodes")]
    for pool, names in ((first, workers[:2]), (second, workers[2:4])):
        remote.kubectl("label", "node", *names, f"pool={pool}", "--overwrite")
    with ExitStack() as stack:
        stack.callback(remote.kubectl, "label", "node", *workers, "pool-")
        proxy, behind_proxy = _behind_proxy(remote, folder)
        stack.callback(proxy.close)
        stack.enter_context(_joined(home, behind_proxy, first, folder, options))
        stack.enter_context(_joined(home, remote, second, folder, options))
        yield Pools(home, remote, proxy)


def _behind_proxy(remote: Cluster, folder: Path) -> tuple[FaultyServer, Cluster]:
    """A proxy whose connections a test can cut, and the remote as its clients see it."""
    config = yaml.safe_load(remote.kubeconfig.read_text())
    [entry] = config["clusters"]
    proxy = FaultyServer(entry["cluster"]["server"])
    entry["cluster"]["server"] = proxy.server
    path = folder / "proxy.yaml"
    path.write_text(yaml.safe_dump(config))
    return proxy, dataclasses.replace(remote, kubeconfig=path)


def _joined(
    home: Cluster, remote: Cluster, pool: str, folder: Path, options: tuple[str, ...]
) -> AbstractContextManager[Bridge]:
    labels = ("--node-selector", f"pool={pool}", "--labels", f"pool={pool}")
    args = (*usual_options(pool), *labels, *options)
    return another_node(Bridge(home, remote, folder / f"{pool}.log", args), pool)
