"""`bridge join --remote-namespaces`: a credential that can read no Secret and write nothing
elsewhere in the remote, or that has Roles in the prepared namespaces alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from e2e import bridge_process, service_accounts
from e2e.bench.pods.audit_log import Requests
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined, usual_options
from e2e.kubectl import Json, create_namespace, get, get_one, wait_for
from e2e.kubectl_streams import forwarded, protocol
from e2e.revisions import with_linger
from e2e.workload_manifests import busybox, config_map, pod, secret, shell

_METRICS = "metrics.k8s.io"
#: Seconds of an idle bridge whose requests are counted.
IDLE_SECONDS = 15.0


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


@pytest.mark.core
def test_join_with_reads_of_the_whole_remote_works_in_prepared_namespaces_alone(
    home: Cluster, remote: Cluster, limited: Limited, node_name: str, tmp_path: Path
) -> None:
    if remote.audit_log is None:
        pytest.skip("this remote has no audit log")
    namespace = f"test-{node_name.rpartition('-')[2]}"
    there, own = f"{namespace}-e2e", service_accounts.in_prepared(node_name)
    elsewhere = f"unbound-{namespace}"
    with _prepared(remote, there):
        account = service_accounts.granted(
            *(remote, tmp_path, "remote", "--namespace", there, "--cluster-reads"), account=own
        )
        assert _may(account, "get", "secrets", "-n", there)
        for what in (("list", "secrets", "-A"), ("create", "pods", "-n", "default")):
            assert not _may(account, *what)
        requests = Requests(remote.audit_log)
        args = (*usual_options(node_name), "--remote-namespaces", there)
        bridge = Bridge(limited.at_home(node_name), account, tmp_path / "bridge.log", args)
        try:
            with joined(
                bridge,
                node_name,
                home=home,
                remote=remote,
                leave_options=("--remote-namespaces", there),
            ) as bridged:
                _burst(bridged)
                _wait_elsewhere(bridged, elsewhere)
                _leave(bridged)
                assert [str(it) for it in requests.all() if it.forbidden] == []
            assert get_one(remote, "namespace", there)["status"]["phase"] == "Active"
        finally:
            print(bridge.log.read_text())
            home.kubectl("delete", "namespace", elsewhere, "--ignore-not-found", "--wait=false")
            service_accounts.take_away(remote, own)


def test_roles_in_two_prepared_namespaces_are_enough(
    home: Cluster, remote: Cluster, limited: Limited, node_name: str, tmp_path: Path
) -> None:
    """Without a ClusterRole: a life of pods in both namespaces, metrics, a restart, an idle bridge,
    and `bridge leave`, without a request that the remote forbids."""
    if remote.audit_log is None:
        pytest.skip("this remote has no audit log")
    namespace = f"test-{node_name.rpartition('-')[2]}"
    first, second = f"{namespace}-e2e", f"{namespace}-too-e2e"
    own = service_accounts.in_prepared(node_name)
    remote.serve_metrics(print)
    with _prepared(remote, first), _prepared(remote, second):
        roles = ("--namespace", first, "--namespace", second)
        account = service_accounts.granted(remote, tmp_path, "remote", *roles, account=own)
        for what in (("list", "nodes"), ("list", "pods", "-A"), ("get", "ns", "kube-system")):
            assert not _may(account, *what)
        for name in (first, second):
            remote.kubectl("create", "quota", "pods", "--hard=pods=10", "-n", name)
        requests = Requests(remote.audit_log)
        near = limited.at_home(node_name)
        options = usual_options(node_name)
        undeclared = bridge_process.run(
            *("join", "--kubeconfig", account.kubeconfig),
            *(*options, "--limits", "cpu=2", "--remote-namespaces", f"{second},{first}"),
            home=near,
        )
        assert undeclared.returncode == 1
        assert "capacity is unknown (memory)" in undeclared.stderr
        assert "join with --limits memory=AMOUNT" in undeclared.stderr
        options = (*options, "--limits", "cpu=2,memory=2Gi", "--remote-namespaces")
        bridge = Bridge(near, account, tmp_path / "bridge.log", (*options, f"{second},{first}"))
        bridge.use(with_linger(1))
        try:
            with joined(
                bridge,
                node_name,
                home=home,
                remote=remote,
                leave_options=("--remote-namespaces", f"{first},{second}"),
            ) as bridged:
                _is_declared(bridged)
                bridge.args = (*options, f"{first},{second}")
                _burst(bridged)
                _use_second_namespace(bridged, f"{namespace}-too", second)
                _claimed_in(remote, first, marker=second)
                _is_idle(requests)
                _checks(bridged, tmp_path)
                _leave(bridged)
                assert [str(it) for it in requests.all() if it.forbidden] == []
        finally:
            print(bridge.log.read_text())
            home.kubectl(
                *("delete", "namespace", f"{namespace}-too", "--ignore-not-found", "--wait=false")
            )
            service_accounts.take_away(remote, own)


def _is_declared(bridged: Bridged) -> None:
    """The Node has the capacity of options and quotas, and reports what it does not know."""
    status = get_one(bridged.home, "node", bridged.node)["status"]
    assert status["capacity"] == {"cpu": "2", "memory": "2Gi", "pods": "20"}
    (ready,) = (it for it in status["conditions"] if it["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "RemoteNodesUnknown")
    log = bridged.bridge.log.read_text()
    assert "no list of all nodes" in log
    assert "no list of all priorityclasses.scheduling.k8s.io" in log


def _use_second_namespace(bridged: Bridged, namespace: str, remote_namespace: str) -> None:
    """A pod in the other prepared namespace, with port-forward, metrics and a priority class."""
    create_namespace(bridged.home, namespace)
    service_accounts.bind(bridged.home, bridged.node, namespace)
    there = replace(bridged, namespace=namespace, remote_namespace=remote_namespace)
    there.apply(pod(there.node, "echo", containers=[shell("main", "nc -ll -p 9000 -e /bin/cat")]))
    there.kubectl("wait", "--for=condition=Ready", "pod/echo", "--timeout=60s")
    with (
        forwarded(there.home, namespace, "pod/echo", 9000, env=protocol(websockets=True)) as at,
        socket.create_connection(at, timeout=30) as connection,
    ):
        connection.sendall(b"hello")
        assert connection.recv(5) == b"hello"
    path = f"/api/v1/nodes/{there.node}/proxy/metrics/resource"
    wait_for(
        lambda: 'pod="echo"' in there.home.kubectl("get", "--raw", path).stdout,
        "the node's kubelet API serves the pod's metrics",
        seconds=120,
    )
    there.kubectl("delete", "pod", "echo", "--timeout=60s")


def _claimed_in(remote: Cluster, namespace: str, *, marker: str) -> None:
    """The claim is in the first namespace by name, whatever the order of the option."""

    def annotations(place: str) -> list[set[str]]:
        return [set(it["metadata"]["annotations"]) for it in get(remote, "lease", namespace=place)]

    assert any("cluster-bridge.io/claim" in it for it in annotations(namespace))
    assert all("cluster-bridge.io/claim-in" in it for it in annotations(marker))
    assert annotations(marker)


def _is_idle(requests: Requests) -> None:
    """An idle bridge renews its claim and holds its watches."""
    forbidden = [str(it) for it in requests.all() if it.forbidden]
    assert forbidden == []
    time.sleep(5)
    begin = time.time()
    time.sleep(IDLE_SECONDS)
    # metrics-server of another test may request the node's metrics.
    sent = {str(it) for it in requests.all() if it.received > begin and it.group != _METRICS}
    assert sent <= {"patch leases"}


def _checks(bridged: Bridged, folder: Path) -> None:
    """`bridge check`, `explain` and `bug-report` of an administrator of home, with the bridge's own
    credential in the remote."""
    done = bridge_process.run("check", bridged.node, "-o", "json", home=bridged.home)
    findings = json.loads(done.stdout)["findings"]
    assert [it for it in findings if it["severity"] == "error"] == []
    by_id = {it["id"]: it for it in findings if it["side"] != "home"}
    assert by_id["BRG306"]["severity"] == "ok"
    assert by_id["BRG202"]["severity"] == "ok"
    assert "no list of all" in by_id["BRG208"]["found"]
    manifest = folder / "pod.json"
    manifest.write_text(busybox(bridged.node, "explained", "sleep 1"))
    what = ("-f", manifest, "-n", bridged.namespace)
    explained = bridge_process.run("explain", *what, home=bridged.home)
    assert explained.returncode == 0, explained.stderr
    report = ("bug-report", bridged.node, "--file", folder / "report.tar.gz")
    reported = bridge_process.run(*report, home=bridged.home)
    assert reported.returncode == 0, reported.stderr


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
