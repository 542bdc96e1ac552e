"""`bridge join --remote-namespaces`: a credential that can read no Secret and write nothing
elsewhere in the remote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bench.pods.audit_log import Requests
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined, usual_options
from e2e.kubectl import Json, get, get_one, wait_for
from e2e.workload_manifests import busybox, config_map, pod, secret, shell


@contextmanager
def _prepared(remote: Cluster, name: str) -> Iterator[None]:
    """A namespace of the remote's administrator, handed over to every home."""
    meta = {"name": name, "annotations": {"cluster-bridge.io/accepts-home": "*"}}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": meta}
    remote.kubectl("create", "-f", "-", input=json.dumps(body))
    try:
        yield
    finally:
        remote.kubectl("delete", "namespace", name, "--wait=false")


def _may(remote: Cluster, *what: str) -> bool:
    return remote.kubectl("auth", "can-i", *what, check=False).stdout.strip() == "yes"


def test_join_with_prepared_namespaces_works_in_these_alone(
    home: Cluster, remote: Cluster, limited: Limited, node_name: str, tmp_path: Path
) -> None:
    if remote.audit_log is None:
        pytest.skip("this remote has no audit log")
    namespace = f"test-{node_name.rpartition('-')[2]}"
    there, own = f"{namespace}-e2e", Account("default", node_name)
    elsewhere = f"unbound-{namespace}"
    with _prepared(remote, there):
        account = service_accounts.granted(
            *(remote, tmp_path, "remote", "--namespace", there), account=own
        )
        assert _may(account, "get", "secrets", "-n", there)
        for what in (("list", "secrets", "-A"), ("create", "pods", "-n", "default")):
            assert not _may(account, *what)
        requests = Requests(remote.audit_log)
        args = (*usual_options(node_name), "--remote-namespaces", there)
        bridge = Bridge(limited.at_home(node_name), account, tmp_path / "bridge.log", args)
        try:
            with joined(bridge, node_name, home=home, remote=remote) as bridged:
                _burst(bridged)
                _wait_elsewhere(bridged, elsewhere)
                _leave(bridged)
                assert [str(it) for it in requests.all() if it.forbidden] == []
            assert get_one(remote, "namespace", there)["status"]["phase"] == "Active"
        finally:
            print(bridge.log.read_text())
            home.kubectl("delete", "namespace", elsewhere, "--ignore-not-found", "--wait=false")
            service_accounts.take_away(remote, own)


def _burst(bridged: Bridged) -> None:
    """A pod with a ConfigMap, a Secret and a Service; logs, exec, an update and a deletion."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    for manifest in (config_map("conf", {"A": "1"}), secret("key", {"B": "2"})):
        bridged.apply(manifest)
    bridged.apply(json.dumps(service))
    sources = [{"configMapRef": {"name": "conf"}}, {"secretRef": {"name": "key"}}]
    main = shell("main", "echo $A$B; sleep 3600", envFrom=sources)
    bridged.apply(pod(bridged.node, "uses", containers=[main]))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/uses", "--timeout=60s")
    assert bridged.kubectl("logs", "uses") == "12\n"
    assert bridged.kubectl("exec", "uses", "--", "echo", "hello") == "hello\n"
    wait_for(lambda: _remote(bridged, "service", "web"), "the Service is copied")
    bridged.apply(config_map("conf", {"A": "3"}))
    wait_for(
        lambda: _remote(bridged, "configmap", "conf")[0]["data"] == {"A": "3"}, "the copy follows"
    )
    assert bridged.bridge.stop() == 0
    bridged.bridge.start()
    bridged.kubectl("delete", "pod", "uses", "--timeout=60s")
    assert bridged.remote_pods() == []


def _remote(bridged: Bridged, kind: str, name: str) -> list[Json]:
    found = get(bridged.remote, kind, namespace=bridged.remote_namespace)
    return [it for it in found if it["metadata"]["name"] == name]


def _wait_elsewhere(bridged: Bridged, namespace: str) -> None:
    """A pod whose remote namespace is not prepared waits, with the command that prepares it."""
    bridged.home.kubectl("create", "namespace", namespace)
    service_accounts.bind(bridged.home, bridged.node, namespace)
    manifest = busybox(bridged.node, "waits", "sleep 3600")
    bridged.home.kubectl("apply", "-n", namespace, "-f", "-", input=manifest)

    def status() -> Json:
        found: Json = get_one(bridged.home, "pod", "waits", namespace=namespace)["status"]
        return found

    wait_for(lambda: status().get("reason") == "RemoteNamespaceMissing", "the pod waits")
    assert f"bridge rbac remote --namespace {namespace}-e2e" in status()["message"]


def _leave(bridged: Bridged) -> None:
    """With the bridge's own credential; a copy is left to be removed."""
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    assert bridged.bridge.stop() == 0
    left = bridge_process.run("leave", bridged.node, "--yes", home=bridged.bridge.home)
    assert left.returncode == 0, left.stderr
    assert bridged.remote_pods() == []
    assert not _remote(bridged, "configmap", "conf")
