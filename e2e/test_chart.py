"""The Helm chart on real clusters: one process for each remote of the list, each on its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge_process, certificate_approver, helm_chart
from e2e.clusters.cluster import Cluster
from e2e.installed_bridge import KINDS
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.workload_manifests import busybox
from translators.object_accessors import condition_of

#: Seconds for Helm to wait: a bridge starts, or leaves, within less.
HELM_TIMEOUT = "4m"
#: The finding of `bridge check` for a node that no bridge serves.
UNSERVED = ("BRG303", "error")


@dataclass
class Release(helm_chart.Release):
    """A release that Helm installs and upgrades."""

    kubeconfig: str
    """Of the remote, without references to files."""
    identity: str = "service-account"
    """Of the bridges in the home cluster."""

    def upgrade(self, **states: str) -> None:
        """Installs or upgrades the release to these entries and their states, and waits."""
        values = self.values_of(self.identity, {"kubeconfig": self.kubeconfig}, states)
        command = ("upgrade", "--install", "release", str(helm_chart.CHART), "--wait")
        done = self._helm(*command, "--timeout", HELM_TIMEOUT, values=values)
        assert done.returncode == 0, done.stderr

    def uninstall(self, *, within: str = HELM_TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Uninstalls the release."""
        return self._helm("uninstall", "release", "--timeout", within)

    def restore(self) -> None:
        """Keeps the release after an uninstallation that failed."""
        listed = json.loads(self._helm("history", "release", "-o", "json").stdout)
        done = self._helm("rollback", "release", str(listed[-1]["revision"]))
        assert done.returncode == 0, done.stderr

    def _helm(self, *args: str, values: Json | None = None) -> subprocess.CompletedProcess[str]:
        return helm_chart.run(self.helm, self.home, self.place, *args, values=values)

    def selector(self, app: str, name: str) -> str:
        """Selects the entry's pods of this application."""
        instance = f"cluster-bridge-{self.node(name)}"
        return f"app.kubernetes.io/name={app},app.kubernetes.io/instance={instance}"

    def bridges(self, *names: str) -> dict[str, str]:
        """UIDs of the bridges' pods of these entries."""
        found: dict[str, str] = {}
        for name in names:
            selector = self.selector("cluster-bridge", name)
            found |= uids(get(self.home, "pods", namespace=self.place, selector=selector))
        return found

    def remote_pods(self) -> dict[str, str]:
        return uids(get(self.remote, "pods", namespace=f"{self.namespace}-e2e"))

    def run_pod(self, name: str) -> None:
        """A pod on the node, which runs afterwards."""
        manifest = busybox(self.node(name), name, "sleep 3600")
        self.home.kubectl("apply", "-n", self.namespace, "-f", "-", input=manifest)
        ready = ("--for=condition=Ready", f"pod/{name}", "--timeout=60s")
        self.home.kubectl("wait", "-n", self.namespace, *ready)

    def forbid_eviction(self, name: str) -> None:
        """A budget that forbids the eviction of the pod."""
        selected = (f"--selector=app={name}", "--min-available=1")
        self.home.kubectl("create", "-n", self.namespace, "poddisruptionbudget", name, *selected)
        wait_for(
            lambda: (
                get_one(self.home, "poddisruptionbudgets", name, namespace=self.namespace)
                .get("status", {})
                .get("currentHealthy")
                == 1
            ),
            "the budget counts the pod",
        )

    def allow_eviction(self, name: str) -> None:
        self.home.kubectl("delete", "-n", self.namespace, "poddisruptionbudget", name)

    def jobs(self, name: str) -> dict[str, str]:
        """UIDs of the Jobs that remove the entry's node."""
        selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node(name)}"
        return uids(get(self.home, "jobs", namespace=self.place, selector=selector))

    def log_of_leave(self, name: str) -> str:
        selector = self.selector("cluster-bridge-leave", name)
        return self.home.kubectl("logs", "-n", self.place, "-l", selector, "--tail=-1").stdout

    def can(self, name: str, *verb: str) -> bool:
        """Whether the entry's account may do that in the release's namespace."""
        account = f"system:serviceaccount:{self.place}:cluster-bridge-{self.node(name)}"
        command = ("auth", "can-i", *verb, "-n", self.place, f"--as={account}")
        done = self.home.kubectl(*command, check=False)
        return done.stdout.strip() == "yes"

    def objects(self, name: str) -> list[str]:
        """The kinds of the entry's objects."""
        selector = f"app.kubernetes.io/instance=cluster-bridge-{self.node(name)}"
        found = get(self.home, KINDS, selector=selector, all_namespaces=True)
        return [obj["kind"] for obj in found]


@pytest.fixture
def release(
    helm: Path, loaded: str, home: Cluster, remote: Cluster, node_name: str
) -> Iterator[Release]:
    """A release that is not installed yet; uninstalled afterwards."""
    kubeconfig = helm_chart.portable_kubeconfig(remote)
    digits = node_name.rpartition("-")[2]
    place, namespace = f"bridges-{digits}", f"test-{digits}"
    found = Release(helm, home, remote, node_name, place, namespace, loaded, kubeconfig)
    with found.namespaces():
        try:
            yield found
        finally:
            home.kubectl("delete", "poddisruptionbudgets", "--all", "-n", namespace)
            found.uninstall()


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

    # An entry that leaves: its node and its pod are removed, and nothing else.
    release.upgrade(a="leaving", b="joined", c="joined")
    own, other = (f"cluster-bridge-{release.node(name)}" for name in "ab")
    assert release.can("a", "patch", f"deployments/{own}", "--subresource=scale")
    assert not release.can("a", "patch", f"deployments/{own}"), "its pods could mount any Secret"
    assert not release.can("a", "patch", f"deployments/{other}", "--subresource=scale")
    assert release.can("a", "get", f"secrets/bridge-state-{release.node('a')}")
    for secret in (own, other, f"bridge-state-{release.node('b')}"):
        assert not release.can("a", "get", f"secrets/{secret}")
    wait_for(lambda: release.nodes() == {"b", "c"}, "the node has left", seconds=120)
    wait_for(lambda: release.remote_pods().keys() == {"b"}, "its pod in the remote has ended")
    assert "Secret" in release.objects("a")
    release.upgrade(b="joined", c="joined")
    assert release.objects("a") == []
    assert release.bridges("b").items() <= bridges.items()

    # An entry that is dropped by mistake is reported, and resumes once it is added again.
    release.upgrade(c="joined")
    wait_for(lambda: not release.is_node_ready("b"), "no bridge serves the node", seconds=120)
    assert release.nodes() == {"b", "c"}
    node = get_one(release.home, "node", release.node("b"))
    ready = condition_of(node, "Ready")["status"]
    seen = (ready, node["status"]["nodeInfo"]["osImage"].split()[0])
    assert seen == ("Unknown", "cluster-bridge"), "the alert reads both from kube-state-metrics"
    found = json.loads(bridge_process.run("check", "-o", "json", home=release.home).stdout)
    unserved = {
        finding["node"]
        for finding in found["findings"]
        if (finding["id"], finding["severity"]) == UNSERVED
    }
    assert release.node("b") in unserved
    assert release.node("c") not in unserved
    release.upgrade(b="joined", c="joined")
    wait_for(lambda: release.is_node_ready("b"), "the node is Ready again")
    assert release.remote_pods().items() <= pods.items()
    assert len(release.remote_pods()) == 1

    done = release.uninstall()
    assert done.returncode == 0, done.stderr
    assert release.nodes() == set()
    assert release.objects("b") == release.objects("c") == []
    wait_for(lambda: not release.remote_pods(), "no pod is left in the remote")


def test_bridge_serves_until_budgets_let_its_pods_leave(release: Release) -> None:
    """The bridges are the nodes in the home cluster: their accounts have the fewest permissions."""
    release.identity = "node"
    with certificate_approver.approving(release.home):
        release.upgrade(a="joined", b="joined")
    wait_for(lambda: all(map(release.is_node_ready, "ab")), "both nodes are Ready")
    for name in "ab":
        release.run_pod(name)
        release.forbid_eviction(name)
    bridges, pods = release.bridges("a"), release.remote_pods()

    def is_waiting() -> bool:
        return "cannot be evicted yet" in release.log_of_leave("a")

    release.upgrade(a="leaving", b="joined")
    wait_for(is_waiting, "the Job waits for the budget")
    release.upgrade(a="joined", b="joined")
    assert release.jobs("a") == {}, "it is cancelled"
    release.home.kubectl("uncordon", release.node("a"))

    release.upgrade(a="leaving", b="joined")
    wait_for(is_waiting, "the Job waits for the budget")
    job = release.jobs("a")
    with certificate_approver.approving(release.home):
        release.upgrade(a="leaving", b="joined", c="joined")
    assert release.jobs("a") == job, "an upgrade does not start it again"
    assert release.bridges("a") == bridges
    assert release.is_node_ready("a")
    assert release.remote_pods() == pods
    executed = release.home.kubectl("exec", "-n", release.namespace, "a", "--", "echo", "hello")
    assert executed.stdout == "hello\n", "its pod is served"

    release.allow_eviction("a")
    wait_for(lambda: release.nodes() == {"b", "c"}, "the node has left", seconds=120)
    wait_for(lambda: release.remote_pods().keys() == {"b"}, "its pod in the remote has ended")
    complete = ("--for=condition=Complete", f"job/{next(iter(job))}", "--timeout=60s")
    release.home.kubectl("wait", "-n", release.place, *complete)
    assert release.bridges("a") == {}
    release.upgrade(a="leaving", b="joined", c="joined")
    assert release.bridges("a") == {}, "an upgrade does not start its bridge again"

    # A remote that cannot leave keeps the release.
    failed = release.uninstall(within="25s")
    assert failed.returncode != 0
    assert "cannot be evicted yet" in failed.stdout + failed.stderr
    assert release.is_node_ready("b")
    assert len(release.bridges("b")) == 1
    assert release.remote_pods().keys() == {"b"}
    release.restore()
    wait_for(lambda: release.is_node_ready("c"), "the release continues")
    assert release.bridges("a") == {}
    assert release.remote_pods().keys() == {"b"}

    release.allow_eviction("b")
    done = release.uninstall()
    assert done.returncode == 0, done.stderr
    assert release.nodes() == set()
    assert not any(map(release.objects, "abc"))
    assert not any(map(release.jobs, "abc"))
    wait_for(lambda: not release.remote_pods(), "no pod is left in the remote")
