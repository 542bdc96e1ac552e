"""Two real clusters and a bridge between them, for the tests of this folder.

The clusters are started once for a run (`e2e.clusters.fixture`); each test that asks for
``bridged`` gets a virtual node of its own name, a home namespace of its own, and leaves nothing
behind in either cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge as bridge_command
from e2e.bridge import Bridge
from e2e.clusters.fixture import clusters  # noqa: F401  # a fixture
from e2e.clusters.model import Cluster
from e2e.kubectl import Json, get, wait_for

#: Seconds for a test on real clusters, without its fixtures: the first one may build the clusters'
#: programs for minutes, and each step of them has a limit of its own.
TEST_SECONDS = 300
#: The kinds that the bridge makes objects of in the remote.
_OURS = "pods,configmaps,secrets,services,endpointslices"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real clusters have other limits of time than the tests without."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS, func_only=True))


@dataclass(frozen=True)
class Bridged:
    """A virtual node with a running bridge, and a namespace at home to work in."""

    home: Cluster
    remote: Cluster
    bridge: Bridge
    node: str
    namespace: str
    remote_namespace: str

    def apply(self, manifest: str) -> None:
        """Applies YAML at home, in the test's namespace."""
        self.home.kubectl("apply", "-n", self.namespace, "-f", "-", input=manifest)

    def kubectl(self, *args: str, check: bool = True) -> str:
        """Runs kubectl at home, in the test's namespace; its standard output."""
        return self.home.kubectl("-n", self.namespace, *args, check=check).stdout

    def home_pods(self) -> list[Json]:
        """The pods of the test's namespace at home."""
        return get(self.home, "pods", namespace=self.namespace)

    def remote_pods(self) -> list[Json]:
        """The pods that stand for them."""
        return get(self.remote, "pods", namespace=self.remote_namespace)


@pytest.fixture
def home(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster that people use."""
    return clusters["home"]


@pytest.fixture
def remote(clusters: dict[str, Cluster]) -> Cluster:  # noqa: F811
    """The cluster that workloads burst to."""
    return clusters["remote"]


@pytest.fixture
def node_name() -> str:
    """A name that no other test has used."""
    return f"virtual-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def bridged(
    request: pytest.FixtureRequest, home: Cluster, remote: Cluster, node_name: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A joined remote. Afterwards it has left, and nothing is left over in the remote.

    ``@pytest.mark.join("--option", …)`` adds options to the command.
    """
    namespace = f"test-{node_name.rpartition('-')[2]}"
    home.kubectl("create", "namespace", namespace)
    options = [option for mark in request.node.iter_markers("join") for option in mark.args]
    args = ("--name", node_name, "--home-name", "e2e", "--port", "0", *options)
    bridge = Bridge(home, remote, tmp_path / "bridge.log", args)
    bridge.start()
    try:
        yield Bridged(home, remote, bridge, node_name, namespace, f"{namespace}-e2e")
    finally:
        bridge.kill()
        # With the kubeconfig named: a test may have left already, so that no Node remembers it.
        left = bridge_command.run(
            *("leave", "--name", node_name, "--yes", "--force", "--kubeconfig", remote.kubeconfig),
            home=home,
        )
        home.kubectl("delete", "namespace", namespace, "--wait=false")
        print(bridge.log.read_text(), left.stderr)
    assert left.returncode == 0, left.stderr
    selector = f"cluster-bridge.io/node={node_name}"
    wait_for(
        lambda: not get(remote, _OURS, selector=selector, every=True),
        "nothing of ours is left in the remote",
    )
