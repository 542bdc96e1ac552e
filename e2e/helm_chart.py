"""Runs Helm, which installs the chart of this repository, and what tests need of its releases."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready

CHART = Path(__file__).parent.parent / "manifests" / "chart"


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm's program; its first build counts for no test."""
    return program()


def program() -> Path:
    """Helm's program; the first call builds it."""
    return go_build.programs(go_recipes.helm(), settings_from_environment().cache, silent) / "helm"


def run(
    helm: Path,
    home: Cluster,
    namespace: str,
    *args: str,
    values: Json | None = None,
    timeout: float = 280,
) -> subprocess.CompletedProcess[str]:
    """Runs Helm in a namespace of the home cluster, with these values; the caller checks the exit
    status."""
    cluster = ("--kubeconfig", home.kubeconfig, "--namespace", namespace)
    given, text = ((), None) if values is None else (("--values", "-"), json.dumps(values))
    command: list[str | Path] = [helm, *args, *cluster, *given]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, timeout=timeout
    )


def portable_kubeconfig(remote: Cluster) -> str:
    """A kubeconfig of the remote that refers to no files, for the chart's values."""
    render = ("render", "--kubeconfig", remote.kubeconfig, "--name", "any")
    objects = yaml.safe_load_all(bridge_process.run(*render).stdout)
    secret = next(obj for obj in objects if obj["kind"] == "Secret" and "data" in obj)
    return base64.b64decode(secret["data"]["kubeconfig"]).decode()


@dataclass
class Release:
    """A release of the chart, whose nodes have the remote cluster behind them."""

    helm: Path
    home: Cluster
    remote: Cluster
    prefix: str
    """Of the names of the nodes."""
    place: str
    """Namespace of the release."""
    namespace: str
    """Namespace of the workloads."""
    image: str

    def values_of(self, identity: str, credential: Json, states: dict[str, str]) -> Json:
        """Values with these entries and their states."""
        remotes = [
            {"name": self.node(name), **credential, "state": state}
            for name, state in states.items()
        ]
        options = {"home-name": "e2e", "home-identity": identity}
        defaults = {"replicas": 1, "bind": [self.namespace], "options": options}
        return {"image": self.image, "remotes": remotes, "defaults": defaults}

    def node(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def nodes(self) -> set[str]:
        """Short names of the nodes that exist."""
        found = get(self.home, "nodes", selector="cluster-bridge.io/virtual-node")
        names = {node["metadata"]["name"] for node in found}
        return {
            name.removeprefix(f"{self.prefix}-") for name in names if name.startswith(self.prefix)
        }

    def is_node_ready(self, name: str) -> bool:
        return name in self.nodes() and is_ready(get_one(self.home, "node", self.node(name)))

    @contextmanager
    def namespaces(self) -> Iterator[None]:
        """Both namespaces exist in the block; nodes that are left afterwards are removed."""
        for name in (self.place, self.namespace):
            create_namespace(self.home, name)
        try:
            yield
        finally:
            for name in self.nodes():
                leave = ("leave", self.node(name), "--yes", "--force")
                kubeconfig = ("--kubeconfig", self.remote.kubeconfig)
                bridge_process.run(*leave, *kubeconfig, home=self.home)
            for name in (self.place, self.namespace):
                self.home.kubectl("delete", "namespace", name, "--wait=false")
