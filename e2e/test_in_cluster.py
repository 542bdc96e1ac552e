"""`bridge join --in-cluster`: the bridge runs in home, from its image, and leaves again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge as bridge_command
from e2e import image
from e2e.clusters.fixture import settings_from_environment
from e2e.clusters.model import Cluster, silent
from e2e.conftest import ACCOUNT_SECONDS
from e2e.kubectl import Json, get, get_one, is_ready, uids, versions, wait_for
from e2e.workloads import busybox

#: All kinds that an installation is made of.
KINDS = (
    "namespaces,serviceaccounts,clusterroles,roles,clusterrolebindings,rolebindings,secrets,"
    "poddisruptionbudgets,networkpolicies,deployments"
)


@pytest.fixture(scope="module")
def loaded(clusters: dict[str, Cluster]) -> str:
    """The bridge's image, made of the sources as they are: home's node has it."""
    return image.load(clusters["home"], settings_from_environment().cache, silent)


@dataclass(frozen=True)
class Install:
    """A virtual node whose bridge is to run at home, in a namespace of its own."""

    home: Cluster
    remote: Cluster
    node: str
    namespace: str
    """Of workloads."""
    place: str
    """The installation's namespace."""
    image: str

    def join(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Joins in the cluster, as an administrator does."""
        return bridge_command.run(
            *("join", "--in-cluster", "--kubeconfig", self.remote.kubeconfig),
            *("--name", self.node, "--home-name", "e2e", "--namespace", self.place),
            *("--bind", self.namespace, "--image", self.image, *args),
            home=self.home,
        )

    def leave(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        """Leaves, with nothing but the node's name."""
        return bridge_command.run("leave", "--name", self.node, "--yes", *args, home=self.home)

    def objects(self) -> list[Json]:
        """What is installed."""
        selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node}"
        return get(self.home, KINDS, selector=selector, every=True)

    def bridges(self) -> list[Json]:
        """The pods of the bridge."""
        return get(self.home, "pods", namespace=self.place)

    def remote_pods(self) -> list[Json]:
        return get(self.remote, "pods", namespace=f"{self.namespace}-e2e")


@pytest.fixture
def installing(loaded: str, home: Cluster, remote: Cluster, node_name: str) -> Iterator[Install]:
    """Nothing is installed yet; afterwards nothing is."""
    digits = node_name.rpartition("-")[2]
    namespace = f"test-{digits}"
    home.kubectl("create", "namespace", namespace)
    wait_for(
        lambda: get(home, "serviceaccounts", namespace=namespace),
        "home makes the service account of a new namespace",
        seconds=ACCOUNT_SECONDS,
    )
    found = Install(home, remote, node_name, namespace, f"bridges-{digits}", loaded)
    try:
        yield found
    finally:
        left = found.leave("--force", "--kubeconfig", remote.kubeconfig)
        home.kubectl("delete", "namespace", namespace, "--wait=false")
    assert left.returncode == 0, left.stderr


def test_it_is_installed_changed_and_removed(installing: Install) -> None:
    it = installing
    joined = it.join()
    assert joined.returncode == 0, joined.stderr
    assert f"node {it.node} is Ready" in joined.stderr
    assert is_ready(get_one(it.home, "node", it.node))
    assert [is_ready(pod) for pod in it.bridges()] == [True, True]
    # Not a right too many: the server would warn of pods that the strictest standard forbids.
    strict = "pod-security.kubernetes.io/enforce=restricted"
    said = it.home.kubectl("label", "namespace", it.place, strict, "--dry-run=server")
    assert "Warning" not in said.stderr

    # A pod bursts; logs and exec come through the bridge's pod.
    command = "echo it runs; sleep 3600"
    it.home.kubectl("apply", "-n", it.namespace, "-f", "-", input=busybox(it.node, "one", command))
    it.home.kubectl("wait", "-n", it.namespace, "--for=condition=Ready", "pod/one", "--timeout=60s")
    assert it.home.kubectl("logs", "-n", it.namespace, "one").stdout == "it runs\n"
    asked = it.home.kubectl("exec", "-n", it.namespace, "one", "--", "echo", "hello")
    assert asked.stdout == "hello\n"

    # Again: nothing changes, and nothing is printed that is secret.
    before = versions([*it.objects()])
    bridges = uids(it.bridges())
    again = it.join()
    assert again.returncode == 0, again.stderr
    assert "is as it should be" in again.stderr
    after = versions(it.objects())
    changed = {key[0] for key, version in after.items() if before[key] != version}
    assert changed <= {"Deployment", "PodDisruptionBudget"}, "but for their status"
    assert uids(it.bridges()) == bridges

    # Another option: asked first, then rolled, and the pod does not notice.
    uid = uids(it.remote_pods())
    dry = it.join("--share", "0.5", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would be changed: spec.template.spec.containers[0].args" in dry.stderr
    assert uids(it.bridges()) == bridges
    whole = int(get_one(it.home, "node", it.node)["status"]["allocatable"]["pods"])
    rolled = it.join("--share", "0.5")
    assert rolled.returncode == 0, rolled.stderr
    old = set(bridges.values())
    wait_for(lambda: not old & set(uids(it.bridges()).values()), "the bridges of before are gone")
    half = int(get_one(it.home, "node", it.node)["status"]["allocatable"]["pods"])
    assert half == whole // 2
    assert uids(it.remote_pods()) == uid
    assert it.home.kubectl("logs", "-n", it.namespace, "one").stdout == "it runs\n"

    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()
    assert it.node not in uids(get(it.home, "nodes"))
    wait_for(lambda: it.place not in uids(get(it.home, "namespaces")), "its namespace is gone")
    ours = f"cluster-bridge.io/node={it.node}"
    kinds = "pods,configmaps,secrets,services,endpointslices"
    wait_for(
        lambda: not get(it.remote, kinds, selector=ours, every=True),
        "nothing of ours is left in the remote",
    )


def test_what_keeps_it_from_serving_is_told_and_it_can_leave(installing: Install) -> None:
    """An image that there cannot be, and without a tag: for such a server chooses to pull always,
    which must not stay. Then a bridge that ends by itself; the node is never there."""
    it = installing
    nowhere = it.join("--image", "NO/image", "--replicas", "1", "--timeout", "30")
    assert nowhere.returncode == 1
    assert "ErrImagePull: " in nowhere.stderr
    assert "--image names another" in nowhere.stderr

    assert json.dumps(it.objects()).count("NO/image") == 1
    told = it.join("--replicas", "1", "--namespace-template", "{nothing}", "--timeout", "110")
    assert told.returncode == 1
    assert "error: --namespace-template" in told.stderr

    left = it.leave()
    assert left.returncode == 0, left.stderr
    assert not it.objects()
