"""A bridge that is installed at home, from its image, and the fixtures that provide it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge_image, bridge_process
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json, create_namespace, get, get_one
from e2e.workload_manifests import shell

#: Resources of an installation.
KINDS = (
    "namespaces,serviceaccounts,clusterroles,roles,clusterrolebindings,rolebindings,secrets,"
    "services,poddisruptionbudgets,networkpolicies,deployments,mutatingwebhookconfigurations,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings"
)


@pytest.fixture(scope="session")
def loaded(clusters: dict[str, Cluster]) -> str:
    """The bridge's image, built from the current sources and loaded into home's node."""
    return bridge_image.load(clusters["home"], settings_from_environment().cache, silent)


@dataclass(frozen=True)
class Install:
    """A virtual node whose bridge runs at home, in its own namespace."""

    home: Cluster
    remote: Cluster
    node: str
    namespace: str
    """Namespace of the workloads."""
    place: str
    """Namespace of the installation."""
    image: str

    @property
    def remote_namespace(self) -> str:
        """The remote namespace of the workloads."""
        return f"{self.namespace}-e2e"

    def install(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Installs, as an administrator, with the remote's kubeconfig."""
        return bridge_process.run(
            *("install", "--kubeconfig", self.remote.kubeconfig),
            *("--name", self.node, "--home-name", "e2e", "--namespace", self.place),
            *("--bind", self.namespace, "--image", self.image, *args),
            home=self.home,
        )

    def upgrade(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Upgrades the installation, with only the node's name and the options that change."""
        return bridge_process.run("upgrade", self.node, *args, home=self.home)

    def leave(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """Leaves, with only the node's name."""
        return bridge_process.run("leave", self.node, "--yes", *args, home=self.home)

    @property
    def state_secret(self) -> Json:
        """The Secret that the bridges write."""
        return get_one(self.home, "secret", f"bridge-state-{self.node}", namespace=self.place)

    def objects(self) -> list[Json]:
        """The installed objects."""
        selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node}"
        return get(self.home, KINDS, selector=selector, all_namespaces=True)

    def bridges(self) -> list[Json]:
        """The pods of the bridge."""
        return self._pods("cluster-bridge")

    def webhooks(self) -> list[Json]:
        """The pods of the webhook."""
        return self._pods("cluster-bridge-offload-webhook")

    def _pods(self, app: str) -> list[Json]:
        selector = f"app.kubernetes.io/name={app}"
        return get(self.home, "pods", namespace=self.place, selector=selector)

    def new_pod(self, name: str = "asked", *, dry: bool = False) -> Json:
        """Creates a pod without a node selector; ``dry``: only sends it through admission."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [shell("main", "sleep 3600")],
            },
        }
        command = ["create", "-f", "-", "-o", "json", *(["--dry-run=server"] if dry else [])]
        made: Json = json.loads(self.home.kubectl(*command, input=json.dumps(pod)).stdout)
        return made

    def is_changed(self) -> bool:
        """Whether admission sends a new pod of the namespace to the virtual node."""
        return "cluster-bridge.io/virtual-node" in json.dumps(self.new_pod(dry=True)["spec"])

    def evict(self, pod: Json) -> None:
        """Requests an eviction like `kubectl drain`; fails if a budget forbids it."""
        name = pod["metadata"]["name"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": self.place},
        }
        path = f"/api/v1/namespaces/{self.place}/pods/{name}/eviction"
        self.home.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))

    def remote_pods(self) -> list[Json]:
        return get(self.remote, "pods", namespace=self.remote_namespace)


@pytest.fixture
def installing(loaded: str, home: Cluster, remote: Cluster, node_name: str) -> Iterator[Install]:
    """Verifies that nothing is installed before and after the block."""
    digits = node_name.rpartition("-")[2]
    namespace = f"test-{digits}"
    create_namespace(home, namespace)
    found = Install(home, remote, node_name, namespace, f"bridges-{digits}", loaded)
    try:
        yield found
    finally:
        left = found.leave("--force", "--kubeconfig", remote.kubeconfig)
        home.kubectl("delete", "namespace", namespace, "--wait=false")
    assert left.returncode == 0, left.stderr
