"""`bridge check` finds each broken set-up and names it; `bug-report` and `version` complete it."""

from __future__ import annotations

import base64
import json
import socket
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.certificates import x509_builder
from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.workload_manifests import BUSYBOX

#: Texts that must appear nowhere.
CANARY = "canary-4711"


def check(
    *args: str | Path, home: Cluster, code: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The findings of `bridge check` worse than info, or not ok, by ID."""
    done = bridge_process.run("check", *args, "-o", "json", home=home)
    assert done.stdout, done.stderr
    data = json.loads(done.stdout)
    if code is not None:
        assert done.returncode == code, done.stdout
    assert done.returncode == (1 if data["summary"]["error"] else 0)
    found: dict[str, list[dict[str, Any]]] = {}
    for it in data["findings"]:
        if it["severity"] != "ok":
            found.setdefault(it["id"], []).append(it)
    return found


def troubles(found: dict[str, list[dict[str, Any]]]) -> set[str]:
    """The IDs of findings worse than info, without remains of other tests (`BRG504`)."""
    worse = {"warning", "error"}
    return {it for it in found if worse & {each["severity"] for each in found[it]}} - {"BRG504"}


def assert_finding(
    found: dict[str, list[dict[str, Any]]], check_id: str, severity: str, words: str
) -> None:
    """A finding of the check has this severity and text, and a remedy."""
    bad = [it for it in found.get(check_id, []) if it["severity"] == severity]
    assert any(words in it["found"] for it in bad), (check_id, found)
    assert all(
        it["hint"] and it["docs"] == f"docs/reference/checks.md#{check_id.lower()}" for it in bad
    )


def changed(cluster: Cluster, path: Path, **changes: str) -> Cluster:
    """A handle of the cluster with another token or server."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    if "token" in changes:
        config["users"][0]["user"] = {"token": changes["token"]}
    if "server" in changes:
        config["clusters"][0]["cluster"]["server"] = changes["server"]
    path.write_text(yaml.safe_dump(config))
    return replace(cluster, kubeconfig=path)


def poor(cluster: Cluster, path: Path) -> Cluster:
    """A handle of the cluster for an account without permissions."""
    command = ("create", "token", "-n", "default", "default")
    return changed(cluster, path, token=cluster.kubectl(*command).stdout.strip())


def closed_port() -> int:
    """A handle with an address on which no server listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def pre(remote: Cluster) -> tuple[str | Path, ...]:
    """Options of a check before a join."""
    return ("--pre", "--kubeconfig", remote.kubeconfig, "--port", "0")


# -- before a join -------------------------------------------------------------------------


@pytest.mark.core
def test_precheck_passes_for_two_joinable_clusters(home: Cluster, remote: Cluster) -> None:
    """No finding is worse than info."""
    found = check("fresh", *pre(remote), home=home, code=0)
    assert not troubles(found), found


def test_precheck_reports_obstacles_of_a_join(
    home: Cluster, remote: Cluster, tmp_path: Path
) -> None:
    """Finds a used node name, an expired certificate, unmanaged namespaces and remains of another
    home in one run."""
    name = home.node_names[0]
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    made = x509_builder.self_signed(
        name, ["192.0.2.1"], now=datetime.now(UTC) - timedelta(days=800)
    )
    cert.write_bytes(made.certificate)
    key.write_bytes(made.key)
    files = ("--tls-cert-file", cert, "--tls-private-key-file", key)
    with left_over(remote) as other:
        args = (name, *pre(remote), *files, "--namespace-template", "{namespace}")
        found = check(*args, home=home, code=1)
    assert_finding(found, "BRG301", "error", f"node {name} exists and is not a bridge's")
    assert_finding(found, "BRG402", "error", "it has expired")
    assert_finding(found, "BRG503", "warning", "default")
    assert_finding(found, "BRG504", "info", f"home {other}, node stale")


@contextmanager
def left_over(remote: Cluster) -> Iterator[str]:
    """An object of another home is in the remote."""
    other, name = "f" * 16, "left-over-f"
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {"cluster-bridge.io/home": other, "cluster-bridge.io/node": "stale"},
            "annotations": {"cluster-bridge.io/home-namespace": "left-over"},
        },
    }
    remote.kubectl("apply", "-f", "-", input=json.dumps(namespace))
    try:
        yield other
    finally:
        remote.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.core
def test_precheck_reports_credentials_and_permissions(
    home: Cluster, remote: Cluster, tmp_path: Path
) -> None:
    """Finds expired and rejected credentials, missing permissions on either side, and an
    unreachable API server."""
    body = base64.urlsafe_b64encode(b'{"exp":1}').decode()
    expired = changed(remote, tmp_path / "expired.yaml", token=f"eyJhbGciOiJSUzI1NiJ9.{body}.eA")
    found = check("fresh", *pre(expired), home=poor(home, tmp_path / "home.yaml"), code=1)
    assert_finding(found, "BRG104", "error", "has expired, at 1970-01-01")
    assert_finding(found, "BRG103", "error", "does not accept")
    assert_finding(found, "BRG201", "error", "patch nodes")
    found = check("fresh", *pre(poor(remote, tmp_path / "poor.yaml")), home=home, code=1)
    assert_finding(found, "BRG202", "error", "create namespaces")
    assert "BRG201" not in found
    server = f"https://127.0.0.1:{closed_port()}"
    gone = changed(remote, tmp_path / "gone.yaml", server=server)
    found = check("fresh", *pre(gone), home=home, code=1)
    assert_finding(found, "BRG101", "error", server.removeprefix("https://"))
    assert found["BRG202"][0]["found"] == "not checked: remote was not reached"


# -- a node that exists --------------------------------------------------------------------

_PLANTED = f"""
apiVersion: v1
kind: Secret
metadata: {{name: key}}
stringData: {{password: {CANARY}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web, annotations: {{note: {CANARY}}}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: THE-NODE}}
  tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: {BUSYBOX}
      command: [sh, -c, "echo {CANARY}; exec httpd -f -p 8080"]
      ports: [{{containerPort: 8080}}]
      env: [{{name: PASSWORD, value: {CANARY}}}]
      envFrom: [{{secretRef: {{name: key}}}}]
"""


def test_check_reports_a_node_that_becomes_unhealthy(bridged: Bridged, tmp_path: Path) -> None:
    """Finds a healthy node and a stopped bridge, and writes a report without secrets."""
    home, node = bridged.home, bridged.node
    bridged.apply(_PLANTED.replace("THE-NODE", node))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/web", "--timeout=60s")
    found = check(node, home=home, code=0)
    assert troubles(found) == set(), found
    assert_versions(bridged)
    report_holds_no_secret(bridged, tmp_path)
    bridged.bridge.stop()
    nobody_serves(bridged)


def assert_versions(bridged: Bridged) -> None:
    done = bridge_process.run("version", "-o", "json", home=bridged.home)
    versions = json.loads(done.stdout)
    assert versions["home"]["version"].startswith("v1.")
    [its] = [it for it in versions["nodes"] if it["name"] == bridged.node]
    assert its["bridge"] == versions["client"]["version"]
    assert its["remote"]["version"].startswith("v1.")
    assert "pid" in its["servedBy"]


def report_holds_no_secret(bridged: Bridged, folder: Path) -> None:
    path = folder / "report.tar.gz"
    done = bridge_process.run("bug-report", bridged.node, "-f", path, home=bridged.home)
    assert done.returncode == 0, done.stderr
    assert "check.json" in done.stdout
    assert path.stat().st_mode & 0o777 == 0o600
    text = ""
    with tarfile.open(path) as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                text += member.name + file.read().decode()
    assert f"nodes/{bridged.node}/remote-pods.json" in text
    for cluster in (bridged.home, bridged.remote, bridged.bridge.home, bridged.bridge.remote):
        assert cluster.server not in text
        user = yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]
        assert not [value for value in user.values() if str(value) in text]
    for secret in (CANARY, base64.b64encode(CANARY.encode()).decode()):
        assert secret not in text
        assert secret not in done.stdout + done.stderr


def nobody_serves(bridged: Bridged) -> None:
    """It is reported, and `--wait` returns when it ends."""
    found = check(bridged.node, home=bridged.home, code=1)
    assert_finding(found, "BRG303", "error", "no bridge renews the election Lease")
    bridged.bridge.launch()
    done = bridge_process.run("check", bridged.node, "--wait", "60", home=bridged.home)
    assert done.returncode == 0, done.stdout
    assert "SEVERITY" in done.stdout
    bridged.kubectl("delete", "pod", "web", "--timeout=60s")
