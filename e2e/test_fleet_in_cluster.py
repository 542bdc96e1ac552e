"""`bridge fleet render`: bridges run at home, from their image, and divide the Remotes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bridge.install.fleet_installation import NAME, TOKENS
from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.clusters.cluster import Cluster
from e2e.fleet_objects import remove_all, sync
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import busybox

#: Seconds for the start of a pod of the bridge, and for the joins in it.
START_SECONDS = 120.0
#: Kinds that are installed once for a cluster, and stay.
_SHARED = ("Namespace", "CustomResourceDefinition")


@dataclass(frozen=True)
class InstalledFleet:
    """Two virtual nodes of one remote, whose bridges run at home in a namespace of their own."""

    home: Cluster
    remote: Cluster
    kubeconfig: str
    """The remote's, with a token of ten minutes."""
    nodes: tuple[str, str]
    namespace: str
    """Namespace of the workloads."""
    place: str
    """Namespace of the bridges."""
    watched: str
    """Namespace of the Remotes."""

    def declare(self) -> None:
        """Applies a Secret and a Remote for each node."""
        for node in self.nodes:
            meta = {"name": node, "namespace": self.watched}
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": meta,
                "stringData": {"kubeconfig": self.kubeconfig},
            }
            remote = {
                "apiVersion": "cluster-bridge.io/v1alpha1",
                "kind": "Remote",
                "metadata": meta,
                "spec": {
                    "kubeconfigSecret": {"name": node},
                    "options": {"homeName": "e2e", "network": "flat"},
                },
            }
            sync(self.home, secret, remote)

    def status(self, node: str) -> Json:
        """The status of a node's Remote."""
        found: Json = get_one(self.home, "remote", node, namespace=self.watched).get("status") or {}
        return found

    def bridges(self) -> list[Json]:
        """The pods of the bridge that are not being deleted."""
        selector = f"app.kubernetes.io/name={NAME}"
        pods = get(self.home, "pods", namespace=self.place, selector=selector)
        return [it for it in pods if not it["metadata"].get("deletionTimestamp")]

    def logs(self) -> dict[str, str]:
        """The log of each pod of the bridge."""
        log = ("logs", "-n", self.place)
        return {it: self.home.kubectl(*log, it, check=False).stdout for it in uids(self.bridges())}

    def wait_until_served(self) -> None:
        """Waits until both bridges are ready, and both nodes."""
        wait_for(
            lambda: [is_ready(it) for it in self.bridges()] == [True, True],
            "both bridges are ready",
            seconds=START_SECONDS,
        )
        ready = ("--for=condition=Ready", f"--timeout={START_SECONDS:.0f}s")
        names = [f"remote/{it}" for it in self.nodes]
        self.home.kubectl("wait", "-n", self.watched, *names, *ready)
        self.home.kubectl("wait", *(f"node/{it}" for it in self.nodes), *ready)

    def wait_until_divided(self) -> None:
        """Waits until each bridge has one of the nodes."""

        def is_divided() -> bool:
            found = [it.rpartition(" replicas share 2 remotes; ") for it in self.logs().values()]
            last = [(before[-1:], after[:1]) for before, _, after in found]
            return last == [("2", "1")] * 2

        wait_for(is_divided, "the bridges divide the nodes", seconds=START_SECONDS)

    def kept_tokens(self) -> list[Json]:
        """The renewed tokens in the Secret."""
        data = get_one(self.home, "secret", TOKENS, namespace=self.place).get("data") or {}
        return [json.loads(base64.b64decode(it)) for it in data.values()]


@pytest.fixture
def fleet(
    loaded: str, home: Cluster, remote: Cluster, node_name: str, tmp_path: Path
) -> Iterator[InstalledFleet]:
    """The installation, by the printed objects; it is removed afterwards."""
    digits, own = node_name.rpartition("-")[2], Account("default", node_name)
    short = service_accounts.granted(
        *(remote, tmp_path, *service_accounts.REMOTE_ARGUMENTS),
        account=own,
        token_options=service_accounts.SHORT_LIVED,
    )
    nodes = (node_name, f"{node_name}-b")
    found = InstalledFleet(
        home,
        remote,
        short.kubeconfig.read_text(),
        nodes,
        f"test-{digits}",
        f"bridges-{digits}",
        service_accounts.REMOTES_NAMESPACE,
    )
    create_namespace(home, found.namespace)
    names = (argument for it in nodes for argument in ("--name", it))
    rendered = bridge_process.run(
        *("fleet", "render", found.watched, *names, "--namespace", found.place),
        *("--image", loaded, "--bind", found.namespace),
    )
    assert rendered.returncode == 0, rendered.stderr
    objects = [*yaml.safe_load_all(rendered.stdout)]
    home.kubectl("apply", "--server-side", "-f", "-", input=rendered.stdout)
    home.kubectl("wait", "--for=condition=Established", "crd/remotes.cluster-bridge.io")
    try:
        yield found
    finally:
        for name, log in found.logs().items():
            print(f"{name}:\n{log}")
        remove_all(home, "remotes", found.watched)
        own_objects = yaml.safe_dump_all(it for it in objects if it["kind"] not in _SHARED)
        home.kubectl("delete", "-f", "-", "--ignore-not-found", input=own_objects)
        left = set(nodes) & set(uids(get(home, "nodes")))
        for node in left:
            arguments = ("leave", node, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
            bridge_process.run(*arguments, home=home)
        service_accounts.take_away(remote, own)
        places = (found.namespace, found.place)
        home.kubectl("delete", "namespace", *places, "--ignore-not-found", "--wait=false")
    assert not left, "the nodes have left with their Remotes"


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("limited_remote")
def test_installed_bridges_divide_remotes_and_are_replaced_without_effect_on_pods(
    fleet: InstalledFleet,
) -> None:
    home, (first, second) = fleet.home, fleet.nodes
    # No privilege too many: the server would warn about pods that the restricted standard forbids.
    strict = "pod-security.kubernetes.io/enforce=restricted"
    labelled = home.kubectl("label", "namespace", fleet.place, strict, "--dry-run=server")
    assert "Warning" not in labelled.stderr
    wait_for(
        lambda: [is_ready(it) for it in fleet.bridges()] == [True, True],
        "bridges without a Remote are ready",
        seconds=START_SECONDS,
    )
    fleet.declare()
    fleet.wait_until_served()
    fleet.wait_until_divided()

    pod = busybox(first, "one", "echo it runs; sleep 3600")
    home.kubectl("apply", "-n", fleet.namespace, "-f", "-", input=pod)
    home.kubectl("wait", "-n", fleet.namespace, "--for=condition=Ready", "pod/one", "--timeout=90s")
    log = ("logs", "-n", fleet.namespace, "one")
    assert home.kubectl(*log).stdout == "it runs\n", "home reaches the kubelet API of the pod"
    wait_for(
        lambda: fleet.status(first).get("pods") == 1 and fleet.status(second).get("pods") == 0,
        "the Remotes have the number of pods",
        seconds=START_SECONDS,
    )
    offered = get_one(home, "node", first)["status"]["allocatable"]
    assert fleet.status(first)["allocatable"]["pods"] == offered["pods"]
    line = home.kubectl("get", "remotes", "-n", fleet.watched, first, "--no-headers").stdout
    assert line.split()[:5] == [first, first, "True", "Joined", "1"]

    # Both nodes have one kubeconfig, whose token is renewed at once. Its own would soon be invalid.
    kept = wait_for(fleet.kept_tokens, "the renewed token is kept")
    selector = f"cluster-bridge.io/node={first}"
    remote_pods = uids(get(fleet.remote, "pods", selector=selector, all_namespaces=True))
    old = set(uids(fleet.bridges()))
    for name in old:
        home.kubectl("delete", "pod", "-n", fleet.place, name)
        wait_for(
            lambda: [is_ready(it) for it in fleet.bridges()] == [True, True],
            "another bridge is ready",
            seconds=START_SECONDS,
        )
    assert not old & set(uids(fleet.bridges()))
    fleet.wait_until_served()
    fleet.wait_until_divided()
    # Each bridge renewed it for its node; the last one is kept.
    ends = [it["expires"] for it in (*kept, *fleet.kept_tokens())]
    for text in fleet.logs().values():
        assert any(f"is valid until {it}, and the bridge renews it" in text for it in ends)
    assert remote_pods == uids(get(fleet.remote, "pods", selector=selector, all_namespaces=True))
    assert home.kubectl(*log).stdout == "it runs\n"

    home.kubectl("delete", "remote", first, second, "-n", fleet.watched, "--timeout=120s")
    assert not set(fleet.nodes) & set(uids(get(home, "nodes")))
    assert not get(fleet.remote, "pods", selector=selector, all_namespaces=True)
