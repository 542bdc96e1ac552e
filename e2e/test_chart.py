"""The Helm chart on real clusters: one process for each remote of the list, each on its own."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.installed_bridge import KINDS
from e2e.kubectl import create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox

CHART = Path(__file__).parent.parent / "manifests" / "chart"
#: Seconds for Helm to wait: a bridge starts, or leaves, within less.
HELM_TIMEOUT = "4m"


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
    kubeconfig: str
    """Of the remote, without references to files."""
    states: dict[str, str] = field(default_factory=dict)
    """State by short name of the entry."""

    def node(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def upgrade(self, **states: str) -> None:
        """Installs or upgrades the release to these entries and their states, and waits."""
        self.states = states
        remotes = [
            {"name": self.node(name), "kubeconfig": self.kubeconfig, "state": state}
            for name, state in states.items()
        ]
        options = {"home-name": "e2e", "home-identity": "service-account"}
        defaults = {"replicas": 1, "bind": [self.namespace], "options": options}
        values = {"image": self.image, "remotes": remotes, "defaults": defaults}
        done = self._run("upgrade", "--install", "release", str(CHART), "--wait", values=values)
        assert done.returncode == 0, done.stderr

    def uninstall(self) -> subprocess.CompletedProcess[str]:
        """Uninstalls the release."""
        return self._run("uninstall", "release")

    def _run(
        self, *args: str, values: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        cluster = ("--kubeconfig", self.home.kubeconfig, "--namespace", self.place)
        command: list[str | Path] = [self.helm, *args, *cluster, "--timeout", HELM_TIMEOUT]
        if values is not None:
            command += ["--values", "-"]
        text = json.dumps(values) if values is not None else None
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=280
        )

    def bridges(self, *names: str) -> dict[str, str]:
        """UIDs of the bridges' pods of these entries."""
        found: dict[str, str] = {}
        for name in names:
            selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node(name)}"
            found |= uids(get(self.home, "pods", namespace=self.place, selector=selector))
        return found

    def remote_pods(self) -> dict[str, str]:
        return uids(get(self.remote, "pods", namespace=f"{self.namespace}-e2e"))

    def nodes(self) -> set[str]:
        """Short names of the nodes that exist."""
        found = get(self.home, "nodes", selector="cluster-bridge.io/virtual-node")
        names = {node["metadata"]["name"] for node in found}
        return {
            name.removeprefix(f"{self.prefix}-") for name in names if name.startswith(self.prefix)
        }

    def is_node_ready(self, name: str) -> bool:
        return name in self.nodes() and is_ready(get_one(self.home, "node", self.node(name)))

    def run_pod(self, name: str) -> None:
        """A pod on the node, which runs afterwards."""
        manifest = busybox(self.node(name), name, "sleep 3600")
        self.home.kubectl("apply", "-n", self.namespace, "-f", "-", input=manifest)
        ready = ("--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        self.home.kubectl("wait", "-n", self.namespace, *ready)

    def objects(self, name: str) -> list[str]:
        """The kinds of the entry's objects."""
        selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node(name)}"
        found = get(self.home, KINDS, selector=selector, all_namespaces=True)
        return [obj["kind"] for obj in found]


@pytest.fixture
def release(
    loaded: str, home: Cluster, remote: Cluster, node_name: str, tmp_path: Path
) -> Iterator[Release]:
    """A release that is not installed yet; uninstalled afterwards."""
    helm = go_build.programs(go_recipes.helm(), settings_from_environment().cache, silent) / "helm"
    render = ("render", "--kubeconfig", remote.kubeconfig, "--name", "any")
    objects = yaml.safe_load_all(bridge_process.run(*render).stdout)
    secret = next(it for it in objects if it["kind"] == "Secret" and "data" in it)
    kubeconfig = base64.b64decode(secret["data"]["kubeconfig"]).decode()
    digits = node_name.rpartition("-")[2]
    place, namespace = f"bridges-{digits}", f"test-{digits}"
    for name in (place, namespace):
        create_namespace(home, name)
    found = Release(helm, home, remote, node_name, place, namespace, loaded, kubeconfig)
    try:
        yield found
    finally:
        found.uninstall()
        for name in found.nodes():
            leave = ("leave", found.node(name), "--yes", "--force")
            bridge_process.run(*leave, "--kubeconfig", remote.kubeconfig, home=home)
        for name in (place, namespace):
            home.kubectl("delete", "namespace", name, "--wait=false")


def test_remotes_come_and_go_without_an_effect_on_others(release: Release) -> None:
    release.upgrade(a="joined", b="joined")
    wait_for(lambda: all(map(release.is_node_ready, "ab")), "both nodes are Ready")
    for name in "ab":
        release.run_pod(name)

    bridges, pods = release.bridges("a", "b"), release.remote_pods()
    assert len(bridges) == len(pods) == 2
    release.upgrade(a="joined", b="joined", c="joined")
    wait_for(lambda: release.is_node_ready("c"), "the third node is Ready")
    assert release.bridges("a", "b") == bridges
    assert release.remote_pods() == pods

    # An entry that leaves: its node and its pod go, and nothing else.
    release.upgrade(a="leaving", b="joined", c="joined")
    wait_for(lambda: release.nodes() == {"b", "c"}, "the node has left", seconds=120)
    wait_for(lambda: release.remote_pods().keys() == {"b"}, "its pod in the remote has ended")
    assert "Secret" in release.objects("a")
    release.upgrade(b="joined", c="joined")
    assert release.objects("a") == []
    assert release.bridges("b").items() <= bridges.items()

    # An entry that is dropped by mistake orphans nothing for long: added again, it resumes.
    release.upgrade(c="joined")
    wait_for(lambda: not release.is_node_ready("b"), "no bridge serves the node", seconds=120)
    assert release.nodes() == {"b", "c"}
    release.upgrade(b="joined", c="joined")
    wait_for(lambda: release.is_node_ready("b"), "the node is Ready again")
    assert release.remote_pods().items() <= pods.items()
    assert len(release.remote_pods()) == 1

    done = release.uninstall()
    assert done.returncode == 0, done.stderr
    assert release.nodes() == set()
    assert release.objects("b") == release.objects("c") == []
    wait_for(lambda: not release.remote_pods(), "no pod is left in the remote")
