"""ClusterProfiles of SIG Multicluster, which `bridge run --cluster-profiles` serves.

The test is their cluster manager: it writes the status. The definition is that of the released
module.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process, service_accounts
from e2e.clusters.cluster import Cluster
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.clusters.versions import CLUSTER_INVENTORY_API
from e2e.conftest import Bridged, Limited, joined
from e2e.fleet_objects import ObjectsRun, create_namespace, remove_all
from e2e.kubectl import Json, get, get_events, get_one, wait_for
from e2e.workload_manifests import busybox

_MODULE = "sigs.k8s.io/cluster-inventory-api"
_DEFINITION = "config/crd/bases/multicluster.x-k8s.io_clusterprofiles.yaml"
_EXEC = "client.authentication.k8s.io/exec"
_REGION = "property.cluster-bridge.io/region"
#: A plugin of the exec protocol: the token of the cluster that it is asked for, from a folder.
_PLUGIN = """#!/bin/sh
name=$(printf '%s' "$KUBERNETES_EXEC_INFO" \\
    | sed -n 's/.*"clusterName": *"\\([a-z0-9-]*\\)".*/\\1/p')
token=$(cat "$TOKENS/$name") || exit 1
printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
printf '"status":{"token":"%s"}}\\n' "$token"
"""


@pytest.fixture
def namespace(home: Cluster) -> Iterator[str]:
    """Home has the definition, and a namespace for ClusterProfiles."""
    go = find_go(settings_from_environment().cache, OLDEST, print)
    definition = go.fetch(_MODULE, CLUSTER_INVENTORY_API).folder / _DEFINITION
    home.kubectl("apply", "-f", str(definition))
    crd = "crd/clusterprofiles.multicluster.x-k8s.io"
    home.kubectl("wait", "--for=condition=Established", crd)
    name = service_accounts.PROFILES_NAMESPACE
    create_namespace(home, name)
    yield name
    remove_all(home, "clusterprofiles", name)


def _publish(home: Cluster, namespace: str, name: str, **status: object) -> None:
    """Creates a profile or changes it, as a cluster manager does."""
    profile = {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"displayName": name, "clusterManager": {"name": "e2e"}},
    }
    apply = ("apply", "--server-side", "--field-manager=cluster-manager", "-f", "-")
    home.kubectl(*apply, input=yaml.safe_dump(profile))
    patch = ("patch", "clusterprofile", name, "-n", namespace, "--subresource=status")
    home.kubectl(*patch, "--type=merge", "-p", json.dumps({"status": status}))


def _access(remote: Cluster, provider: str, cluster_name: str) -> Json:
    """How to reach the remote, without its credential."""
    config = yaml.safe_load(remote.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    extension = {"name": _EXEC, "extension": {"clusterName": cluster_name}}
    return {"name": provider, "cluster": {**cluster, "extensions": [extension]}}


def _token(remote: Cluster) -> str:
    return str(yaml.safe_load(remote.kubeconfig.read_text())["users"][0]["user"]["token"])


@pytest.fixture
def fleet(
    clusters: dict[str, Cluster], limited: Limited, node_name: str, namespace: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A bridge serves the profiles of the namespace, of which the first is joined."""
    home, remote = clusters["home"], clusters["remote"]
    near = limited.at_home(node_name, f"{node_name}-b", f"{node_name}-c")
    account = str(service_accounts.of_node(node_name))
    granted = bridge_process.run(
        "rbac", "fleet", namespace, "--cluster-profiles", "--account", account
    )
    home.kubectl("apply", "-f", "-", input=granted.stdout)
    plugin, providers = tmp_path / "plugin.sh", tmp_path / "providers.json"
    plugin.write_text(_PLUGIN)
    plugin.chmod(0o755)
    exec_config = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin.sh",
        "env": [{"name": "TOKENS", "value": str(tmp_path / "tokens")}],
        "provideClusterInfo": True,
    }
    named = {"providers": [{"name": "e2e-plugin", "execConfig": exec_config}]}
    providers.write_text(json.dumps(named))
    options = tmp_path / "options.yaml"
    options.write_text(yaml.safe_dump({"port": 0, "home-name": "e2e", "network": "flat"}))

    make_secret = ("create", "secret", "generic", node_name, "-n", namespace)
    home.kubectl(*make_secret, f"--from-literal=token={_token(limited.remote)}")
    access = _access(limited.remote, "secretreader", node_name)
    region = {"name": "region", "value": "asia"}
    _publish(home, namespace, node_name, accessProviders=[access], properties=[region])
    source = ("--cluster-profiles", namespace, "--clusterprofile-provider-file", providers)
    run = ObjectsRun(
        near,
        limited.remote,
        tmp_path / "bridge.log",
        source=(*source, "--join-options", options),
        env={"XDG_STATE_HOME": str(tmp_path / "state")},
    )
    try:
        with joined(run, node_name, home=home, remote=remote) as found:
            yield found
    finally:
        print(run.log.read_text())


def _labels(home: Cluster, node: str) -> dict[str, str]:
    return dict(get_one(home, "node", node)["metadata"]["labels"])


def _events(home: Cluster, namespace: str, profile: str) -> dict[str, Json]:
    """The Events of a profile, by their reason."""
    return {it["reason"]: it for it in get_events(home, profile, namespace=namespace)}


def test_profiles_are_joined_followed_and_left_as_their_manager_publishes(
    fleet: Bridged, namespace: str, tmp_path: Path
) -> None:
    home, first, second = fleet.home, fleet.node, f"{fleet.node}-b"
    run = fleet.bridge
    before = get_one(home, "clusterprofile", first, namespace=namespace)
    wait_for(lambda: _labels(home, first).get(_REGION) == "asia", "a property is a label")
    wait_for(lambda: "Joined" in _events(home, namespace, first), "an Event shows the join")
    fleet.apply(busybox(first, "stays", "sleep 3600"))
    fleet.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")

    # The second one's credential is from the operator's program.
    access = _access(run.remote, "e2e-plugin", second)
    _publish(home, namespace, second, accessProviders=[access])
    # The program has no token for it yet, as while a cloud's permissions are being set up.
    wait_for(lambda: "Retrying" in _events(home, namespace, second), "the failure is shown")
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / second).write_text(_token(run.remote))
    wait_for(lambda: "Joined" in _events(home, namespace, second), "the program is called")

    # Invalid for a while; the join goes on.
    _publish(home, namespace, second, accessProviders=[])
    # Its first state, without a status, may have been reported as well, without a join.
    wait_for(
        lambda: any(
            it["reason"] == "NoAccessProvider" and "the last valid join goes on" in it["message"]
            for it in get_events(home, second, namespace=namespace)
        ),
        "the invalid profile is reported",
    )
    _publish(home, namespace, second, accessProviders=[access])
    wait_for(
        lambda: _events(home, namespace, second)["Joined"]["count"] == 2,
        "it is valid again, with the same Event",
    )
    assert run.log.read_text().count(f"node {second} is registered") == 1

    home.kubectl("delete", "clusterprofile", second, "-n", namespace, "--timeout=60s")
    assert second not in {it["metadata"]["name"] for it in get(home, "nodes")}

    moved = [{"name": "region", "value": "peru"}]
    after = get_one(home, "clusterprofile", first, namespace=namespace)
    assert after["status"] == before["status"], "the status is its cluster manager's"
    assert after["spec"] == before["spec"]
    _publish(home, namespace, first, properties=moved)
    wait_for(lambda: _labels(home, first)[_REGION] == "peru", "the label follows", seconds=90)
    assert run.log.read_text().count(f"node {first} is registered") == 1, "without a restart"
    fleet.kubectl("delete", "pod", "stays", "--grace-period=1")


def test_profile_cannot_have_the_credential_of_another_cluster(
    fleet: Bridged, namespace: str
) -> None:
    home, first, thief = fleet.home, fleet.node, f"{fleet.node}-c"
    access = _access(fleet.bridge.remote, "secretreader", first)
    access["cluster"]["server"] = "https://192.0.2.1:6443"
    _publish(home, namespace, thief, accessProviders=[access])
    wait_for(lambda: "SecretRejected" in _events(home, namespace, thief), "it is rejected")
    assert thief not in {it["metadata"]["name"] for it in get(home, "nodes")}
    home.kubectl("delete", "clusterprofile", thief, "-n", namespace, "--timeout=60s")
