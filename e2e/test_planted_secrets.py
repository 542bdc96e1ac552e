"""A tenant of home gives a Secret an installation's labels: an administrator's commands execute no
plugin of its kubeconfig, send it no credentials, and name the Secret."""

from __future__ import annotations

import base64
import json
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json
from e2e.workload_manifests import busybox

pytestmark = pytest.mark.core

CANARY = "canary-4711"


@dataclass
class Listener:
    """A server that counts connections, as the target of kubeconfigs."""

    port: int
    connected: list[Any] = field(default_factory=list)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Listener(server.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    connection, address = server.accept()
                except OSError:
                    return
                connection.close()
                found.connected.append(address)

        threading.Thread(target=accept, daemon=True).start()
        yield found
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tenant(home: Cluster, node_name: str) -> Iterator[str]:
    """A namespace with an editor account, and a Node whose kubeconfig is elsewhere."""
    name = f"tenant-{node_name.rpartition('-')[2]}"
    home.kubectl("create", "namespace", name)
    home.kubectl(
        "create", "rolebinding", "edit", "-n", name, "--clusterrole=edit", f"--user={name}"
    )
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name,
            "labels": {"cluster-bridge.io/remote": "r", "cluster-bridge.io/virtual-node": "true"},
            "annotations": {"cluster-bridge.io/kubeconfig": "/gone/remote.yaml"},
        },
        "spec": {"taints": [{"key": "test", "effect": "NoSchedule"}]},
    }
    home.kubectl("create", "-f", "-", input=json.dumps(node))
    try:
        yield name
    finally:
        home.kubectl("delete", "node", node_name)
        home.kubectl("delete", "namespace", name, "--wait=false")


def plant(home: Cluster, tenant: str, node: str, users: dict[str, Any], port: int) -> None:
    """Creates Secrets as the tenant does."""
    for name, user in users.items():
        secret = _secret(tenant, node, name, _config(user, port))
        home.kubectl("create", "-f", "-", f"--as={tenant}", input=json.dumps(secret))


def _config(user: dict[str, Any], port: int) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
        "users": [{"name": "c", "user": user}],
    }
    return json.dumps(config)


def _secret(tenant: str, node: str, name: str, config: str) -> Json:
    labels = {
        "app.kubernetes.io/name": "cluster-bridge",
        "app.kubernetes.io/instance": f"cluster-bridge-{node}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": tenant, "labels": labels},
        "data": {"kubeconfig": base64.b64encode(config.encode()).decode()},
    }


def test_planted_kubeconfig_is_used_by_no_command(
    home: Cluster, tenant: str, node_name: str, listener: Listener, tmp_path: Path
) -> None:
    marker, key = tmp_path / "executed", tmp_path / "id_rsa"
    key.write_text(CANARY)
    execute = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "touch",
        "args": [str(marker)],
        "interactiveMode": "Never",
    }
    users = {
        "plugin": {"exec": execute},
        "file": {"tokenFile": str(key)},
        "plain": {"token": "theirs"},
    }
    plant(home, tenant, node_name, users, listener.port)
    pod = busybox(node_name, "asked", "sleep 1")
    report = tmp_path / "report.tar.gz"
    (tmp_path / "pod.yaml").write_text(pod)
    commands: list[list[str | Path]] = [
        ["check", node_name],
        ["version"],
        ["bug-report", node_name, "--file", report],
        ["explain", "pod", "-n", tenant, "-f", tmp_path / "pod.yaml", "--node", node_name],
        ["leave", node_name, "--yes"],
    ]
    for command in commands:
        done = bridge_process.run(*command, home=home)
        output = " ".join((done.stdout + done.stderr).split())
        if command[0] == "bug-report":
            with tarfile.open(report) as archive:
                output += "".join(_text(archive, it) for it in archive.getmembers())
        for secret in users:
            assert f"Secret {tenant}/{secret} is ignored" in output, (command, output)
        assert CANARY not in output
        assert not marker.exists(), command
    assert listener.connected == []


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member)
    return file.read().decode() if file is not None else ""
