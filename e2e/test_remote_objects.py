"""Remotes as objects of home, which `bridge run --remotes` serves, applied as by GitOps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process, service_accounts
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined
from e2e.fleet_objects import NOWHERE, ObjectsRun, create_namespace, differences, remove_all, sync
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import busybox


def _remote(name: str, namespace: str, **spec: object) -> Json:
    return {
        "apiVersion": "cluster-bridge.io/v1alpha1",
        "kind": "Remote",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"kubeconfigSecret": {"name": name}, **spec},
    }


def _secret(name: str, namespace: str, kubeconfig: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {"kubeconfig": kubeconfig},
    }


@pytest.fixture
def namespace(home: Cluster) -> Iterator[str]:
    """Home has the definition, and a namespace for Remotes."""
    definitions = bridge_process.run("crds")
    home.kubectl("apply", "-f", "-", input=definitions.stdout)
    home.kubectl("wait", "--for=condition=Established", "crd/remotes.cluster-bridge.io")
    name = service_accounts.REMOTES_NAMESPACE
    create_namespace(home, name)
    yield name
    remove_all(home, "remotes", name)


@pytest.fixture
def fleet(
    clusters: dict[str, Cluster], limited: Limited, node_name: str, namespace: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A bridge serves the Remotes of the namespace, of which the first is joined."""
    home, remote = clusters["home"], clusters["remote"]
    near = limited.at_home(node_name, f"{node_name}-b", f"{node_name}-c")
    account = str(service_accounts.of_node(node_name))
    granted = bridge_process.run("rbac", "fleet", namespace, "--account", account)
    home.kubectl("apply", "-f", "-", input=granted.stdout)
    kubeconfig = limited.remote.kubeconfig.read_text()
    sync(
        home,
        _secret(node_name, namespace, kubeconfig),
        _remote(node_name, namespace, options={"port": 0, "homeName": "e2e"}),
    )
    source = ("--remotes", namespace)
    run = ObjectsRun(near, limited.remote, tmp_path / "bridge.log", source=source)
    run.env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    try:
        with joined(run, node_name, home=home, remote=remote) as found:
            yield found
    finally:
        print(run.log.read_text())


def _line(fleet: Bridged, namespace: str, name: str) -> str:
    """The object's line of `kubectl get remotes`."""
    lines = fleet.home.kubectl("get", "remotes", "-n", namespace, "--no-headers").stdout
    return next((it for it in lines.splitlines() if it.startswith(f"{name} ")), "")


def _wait_ready(fleet: Bridged, namespace: str, name: str) -> None:
    fleet.home.kubectl(
        *("wait", "-n", namespace, f"remote/{name}", "--for=condition=Ready", "--timeout=60s")
    )


def test_remotes_are_joined_changed_and_left_as_their_objects_say(
    fleet: Bridged, namespace: str
) -> None:
    home, first, second = fleet.home, fleet.node, f"{fleet.node}-b"
    run = fleet.bridge
    _wait_ready(fleet, namespace, first)
    assert _line(fleet, namespace, first).split()[1:4] == [first, "True", "Joined"]
    fleet.apply(busybox(first, "stays", "sleep 3600"))
    fleet.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")

    # A second one, at first without its Secret.
    object_ = _remote(second, namespace, options={"cpu": 1, "port": 0, "homeName": "e2e"})
    sync(home, object_)
    wait_for(lambda: "SecretNotFound" in _line(fleet, namespace, second), "it lacks its Secret")
    sync(home, _secret(second, namespace, run.remote.kubeconfig.read_text()))
    _wait_ready(fleet, namespace, second)
    assert get_one(home, "node", second)["status"]["allocatable"]["cpu"] == "1"
    assert differences(home, object_) == "", "the bridge changes nothing that GitOps applies"

    object_["spec"]["options"]["cpu"] = 2
    sync(home, object_)
    wait_for(
        lambda: get_one(home, "node", second)["status"]["allocatable"]["cpu"] == "2",
        "the changed option is in effect",
    )
    object_["spec"]["options"]["share"] = 7
    sync(home, object_)
    reason = "-o=jsonpath={.status.conditions[?(@.type=='Stalled')].reason}"
    wait_for(
        lambda: (
            home.kubectl("get", "remote", second, "-n", namespace, reason).stdout
            == "OptionsInvalid"
        ),
        "the invalid option is reported",
    )
    assert "True" in _line(fleet, namespace, second), "the join goes on as before"

    home.kubectl("delete", "remote", second, "-n", namespace, "--timeout=60s")
    assert second not in {it["metadata"]["name"] for it in get(home, "nodes")}
    (pod,) = fleet.remote_pods()
    assert is_ready(pod), "the other node has not noticed"
    assert run.log.read_text().count(f"node {first} is registered") == 1
    fleet.kubectl("delete", "pod", "stays", "--grace-period=1")


def test_dead_remote_does_not_keep_its_object_for_ever(fleet: Bridged, namespace: str) -> None:
    home, run, name = fleet.home, fleet.bridge, f"{fleet.node}-c"
    kubeconfig = yaml.safe_load(run.remote.kubeconfig.read_text())
    object_ = _remote(name, namespace, leaveTimeout="1s", options={"port": 0, "homeName": "e2e"})
    sync(home, _secret(name, namespace, yaml.safe_dump(kubeconfig)), object_)
    _wait_ready(fleet, namespace, name)
    # It dies: its address is the only part of it that answers no more.
    kubeconfig["clusters"][0]["cluster"]["server"] = NOWHERE
    sync(home, _secret(name, namespace, yaml.safe_dump(kubeconfig)))
    home.kubectl("delete", "remote", name, "-n", namespace, "--timeout=90s")
    assert name not in {it["metadata"]["name"] for it in get(home, "nodes")}
    wait_for(
        lambda: "bridge prune" in run.log.read_text(), "what may remain in the remote is reported"
    )
