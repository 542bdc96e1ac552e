"""The bridge's identities at home: its own account in place of the node, or the node.

Other tests' bridges are the node, by a person's approval. The account in place of the node uses
each permission that it needs besides; another bridge becomes the node by a bootstrap token.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process, service_accounts
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined, usual_options
from e2e.kubectl import get, get_one, is_ready, wait_for
from e2e.kubelet_client import endpoint, status_of
from e2e.second_api_server import SecondApiServer, native_control
from e2e.service_accounts import IN_PLACE
from e2e.workload_manifests import config_map, pod, secret, shell


@pytest.fixture
def in_place(
    clusters: dict[str, Cluster], limited_remote: Cluster, node_name: str, tmp_path: Path
) -> Iterator[Bridged]:
    """A join with an account that acts in place of the node."""
    home, remote = clusters["home"], clusters["remote"]
    account = service_accounts.in_place_of_node(home, tmp_path, node_name)
    bridge = Bridge(account, limited_remote, tmp_path / "bridge.log", usual_options(node_name))
    name = f"{node_name}{IN_PLACE}"
    try:
        with joined(bridge, node_name, home=home, remote=remote, account=name) as found:
            yield found
    finally:
        print(bridge.log.read_text())
        service_accounts.take_away_at_home(home, name)


def test_account_in_place_of_the_node_does_the_main_job(in_place: Bridged) -> None:
    """References, a token, status, a repeated Event, logs for a caller with a token, deletion."""
    bridged = in_place
    assert "home: the bridge acts as its own account" in bridged.bridge.log.read_text()
    bridged.apply(config_map("conf", {"KEY": "1"}))
    bridged.apply(secret("key", {"WORD": "2"}))
    sources = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "key"}}]
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    script = f"test -s {token} && echo $KEY$WORD; sleep 3600"
    bridged.apply(pod(bridged.node, "uses", containers=[shell("main", script, envFrom=sources)]))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    wait_for(lambda: bridged.kubectl("logs", "uses") == "12\n", "the pod has all")
    bridged.kubectl("create", "serviceaccount", "stranger")
    stranger = bridged.kubectl("create", "token", "stranger").strip()
    at = endpoint(bridged.home, bridged.node)
    assert status_of(at, "/pods", token=stranger)[0] == 403, "its token was reviewed"
    bridged.apply(config_map("conf", {"KEY": "3"}))
    wait_for(
        lambda: _value(bridged, "conf") == "3", "an edit of the ConfigMap arrives in the remote"
    )
    taken = secret("taken", {"whose": "theirs"})
    bridged.remote.kubectl("apply", "-n", bridged.remote_namespace, "-f", "-", input=taken)
    bridged.apply(secret("taken", {"whose": "ours"}))
    needs = [{"secretRef": {"name": "taken"}}]
    waits = pod(bridged.node, "waits", containers=[shell("main", "sleep 3600", envFrom=needs)])
    bridged.apply(waits)
    bridged.wait_for_events("RemoteClash", "Pod", "waits")
    assert bridged.bridge.stop() == 0
    bridged.bridge.start()
    wait_for(lambda: any(it["count"] > 1 for it in bridged.events("RemoteClash")), "it is counted")
    bridged.kubectl("delete", "pod", "uses", "waits", "--timeout=60s")
    bridged.remote.kubectl("delete", "secret", "taken", "-n", bridged.remote_namespace)

    checked = bridge_process.run("check", bridged.node, "-o", "json", home=bridged.home)
    found = {it["id"]: it for it in json.loads(checked.stdout)["findings"]}
    assert "acts as its own account" in found["BRG206"]["found"]


def _value(bridged: Bridged, name: str) -> str:
    copy = get_one(bridged.remote, "configmap", name, namespace=bridged.remote_namespace)
    return str(copy["data"]["KEY"])


def test_node_is_reported_as_the_identity(bridged: Bridged) -> None:
    assert "home: the bridge acts as node" in bridged.bridge.log.read_text()
    checked = bridge_process.run("check", bridged.node, "-o", "json", home=bridged.home)
    found = {it["id"]: it for it in json.loads(checked.stdout)["findings"]}
    assert f"system:node:{bridged.node}" in found["BRG206"]["found"]
    assert found["BRG207"]["severity"] == "ok", "home enables NodeRestriction"
    requests = get(bridged.home, "certificatesigningrequests")
    names = [it["metadata"]["name"] for it in requests]
    assert [it for it in names if it.startswith(f"kubelet-client-{bridged.node}-")]


#: A bootstrap token, ID and secret, as in the docs.
_TOKEN = ("0a1b2c", "0123456789abcdef")
_BOOTSTRAPPERS = "system:bootstrappers"


@pytest.fixture
def bootstrap(clusters: dict[str, Cluster], tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig of home with a bootstrap token, whose requests home approves."""
    home, (token_id, token_secret) = clusters["home"], _TOKEN
    name = f"bootstrap-token-{token_id}"
    metadata = {"name": name, "namespace": "kube-system"}
    data = {
        "token-id": token_id,
        "token-secret": token_secret,
        "usage-bootstrap-authentication": "true",
    }
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token"}
    home.kubectl(
        "apply", "-f", "-", input=json.dumps({**kind, "metadata": metadata, "stringData": data})
    )
    approval = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
    roles = {"e2e-bootstrap": "system:node-bootstrapper", "e2e-bootstrap-approval": approval}
    try:
        for binding, role in roles.items():
            group = f"--group={_BOOTSTRAPPERS}"
            home.kubectl("create", "clusterrolebinding", binding, f"--clusterrole={role}", group)
        config = yaml.safe_load(home.kubeconfig.read_text())
        for user in config["users"]:
            user["user"] = {"token": f"{token_id}.{token_secret}"}
        path = tmp_path / "bootstrap.yaml"
        path.write_text(yaml.safe_dump(config))
        yield path
    finally:
        home.kubectl("delete", "clusterrolebinding", *roles, "--ignore-not-found")
        home.kubectl("delete", "secret", name, "-n", "kube-system", "--ignore-not-found")


def test_bootstrap_token_gets_the_nodes_certificate_without_a_person(
    bridged: Bridged, bootstrap: Path, tmp_path: Path
) -> None:
    """A bridge without a certificate requests it by the token, and is the node again."""
    bridge = bridged.bridge
    assert bridge.stop() == 0
    options = ("--home-bootstrap-kubeconfig", str(bootstrap), "--cert-dir", str(tmp_path / "new"))
    again = dataclasses.replace(bridge, args=(*bridge.args, *options), process=None)
    again.start()
    try:
        assert "was requested by the bootstrap credential" in again.log.read_text()
        bridged.apply(pod(bridged.node, "runs"))
        wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    finally:
        again.stop()
    users = {it["spec"]["username"]: it for it in get(bridged.home, "certificatesigningrequests")}
    (approval,) = users[f"system:bootstrap:{_TOKEN[0]}"]["status"]["conditions"]
    assert approval["reason"] == "AutoApproved"


@pytest.fixture
def unrestricted(home: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Home, through an API server without the NodeRestriction admission plugin."""
    native_control(home)
    disable = "--disable-admission-plugins=NodeRestriction"
    enable_none = "--enable-admission-plugins="
    with SecondApiServer(home, tmp_path, disable, enable_none) as server:
        yield server.write_kubeconfig()


def test_home_without_noderestriction_is_a_warning(
    clusters: dict[str, Cluster],
    unrestricted: Cluster,
    limited: Limited,
    node_name: str,
    tmp_path: Path,
) -> None:
    """Of the join and of every later `bridge check`; the dry run leaves no label."""
    options = (*usual_options(node_name), "--yes")
    bridge = Bridge(unrestricted, limited.remote, tmp_path / "bridge.log", options)
    with joined(bridge, node_name, home=clusters["home"], remote=clusters["remote"]) as bridged:
        assert "does not enable the NodeRestriction admission plugin" in bridge.log.read_text()
        checked = bridge_process.run("check", node_name, "-o", "json", home=bridged.home)
        found = {it["id"]: it for it in json.loads(checked.stdout)["findings"]}
        assert found["BRG207"]["severity"] == "warning"
        labels = get_one(bridged.home, "node", node_name)["metadata"]["labels"]
        assert not [it for it in labels if it.startswith("node-restriction.")]
