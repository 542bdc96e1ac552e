"""The bridge reports missing permissions, and continues as soon as they are granted."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import yaml

from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited
from e2e.kubectl import Json, get_one, made_by_bridge, wait_for
from e2e.workload_manifests import busybox, config_map, pod, shell

#: Seconds from a RoleBinding to a running pod: the bridge retries at least each half minute.
BOUND_SECONDS = 60.0


def _pod(bridged: Bridged, name: str = "waits") -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)


@pytest.mark.core
@pytest.mark.unbound
def test_pods_of_an_unbound_namespace_wait_for_its_rolebinding(bridged: Bridged) -> None:
    """The pod's status names missing permissions and remedy; the remedy works without a restart."""
    bridged.apply(config_map("conf", {"KEY": "here"}))
    source = {"configMapRef": {"name": "conf"}}
    main = shell("main", "echo $KEY; sleep 3600", envFrom=[source])
    bridged.apply(pod(bridged.node, "waits", containers=[main]))
    wait_for(
        lambda: _pod(bridged)["status"].get("reason") == "HomeForbidden",
        "the status has the reason",
    )
    message = _pod(bridged)["status"]["message"]
    # It may read all EndpointSlices, which a relay needs (`e2e.service_accounts`), and the node
    # reads the ConfigMap.
    assert f"list and watch services in namespace {bridged.namespace}" in message
    events = wait_for(lambda: bridged.events("HomeForbidden"), "an Event has the reason")
    assert [event["message"] for event in events] == [message]
    assert not bridged.remote_pods()

    command = message.rpartition("grants it: ")[2]
    account = f"--account {service_accounts.of_node(bridged.node)}"
    assert command == f"bridge rbac namespace {bridged.namespace} {account} | kubectl apply -f -"
    service_accounts.bind(bridged.home, bridged.node, bridged.namespace)
    bridged.kubectl("wait", "--for=condition=Ready", "pod/waits", f"--timeout={BOUND_SECONDS:.0f}s")
    assert bridged.kubectl("logs", "waits") == "here\n"
    assert "reason" not in _pod(bridged)["status"]


def test_unbound_namespace_does_not_block_others(bridged: Bridged) -> None:
    other = f"unbound-{bridged.namespace}"
    bridged.home.kubectl("create", "namespace", other)
    try:
        manifest = busybox(bridged.node, "waits", "sleep 3600")
        bridged.home.kubectl("apply", "-n", other, "-f", "-", input=manifest)
        bridged.apply(busybox(bridged.node, "goes", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/goes", "--timeout=60s")
        wait_for(
            lambda: (
                get_one(bridged.home, "pod", "waits", namespace=other)["status"].get("reason")
                == "HomeForbidden"
            ),
            "the other one has the reason for waiting",
        )
        # A pod that never ran is deleted at once.
        bridged.home.kubectl("delete", "pod", "waits", "-n", other, "--timeout=20s")
    finally:
        bridged.home.kubectl("delete", "namespace", other, "--wait=false")


@pytest.mark.core
def test_missing_permission_is_named_before_anything_is_created(
    home: Cluster, limited: Limited, tmp_path: Path
) -> None:
    """The command in the message grants it."""
    before = made_by_bridge(home)
    poor = Account("default", "poor")
    home.kubectl("create", "serviceaccount", poor.name, "-n", poor.namespace)
    try:
        token = home.kubectl("create", "token", poor.name, "-n", poor.namespace).stdout.strip()
        config = yaml.safe_load(home.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path = tmp_path / "poor.yaml"
        path.write_text(yaml.safe_dump(config))
        done = bridge_process.run(
            *("join", "--kubeconfig", limited.remote.kubeconfig, "--name", "never", "--port", "0"),
            home=dataclasses.replace(home, kubeconfig=path),
        )
    finally:
        home.kubectl("delete", "serviceaccount", poor.name, "-n", poor.namespace)
    assert done.returncode == 1
    assert "home: the credential may not get namespaces, get nodes, patch nodes" in done.stderr
    assert "`bridge rbac home --name never` prints what to apply there" in done.stderr
    assert made_by_bridge(home) <= before


def test_home_on_loopback_gives_its_endpoint_address_to_pods(
    home: Cluster, limited: Limited, node_name: str, tmp_path: Path
) -> None:
    """As with kind's kubeconfig: the bridge looks up the node's and API server's addresses."""
    granted = limited.at_home(node_name)
    config = yaml.safe_load(granted.kubeconfig.read_text())
    with _forwarded(home.node_ip, 6443) as port:
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
        path = tmp_path / "loopback.yaml"
        path.write_text(yaml.safe_dump(config))
        near = dataclasses.replace(granted, kubeconfig=path)
        args = ("--name", node_name, "--home-name", "e2e", "--port", "0")
        bridge = Bridge(near, limited.remote, tmp_path / "bridge.log", args)
        try:
            bridge.start()
            log = bridge.log.read_text()
            assert f"pods find home's API server at {home.node_ip}:6443" in log
            assert f"will dial this bridge at {home.host_address}" in log
        finally:
            bridge.kill()
            left = bridge_process.run(
                *("leave", node_name, "--yes", "--force"),
                *("--kubeconfig", limited.remote.kubeconfig),
                home=granted,
            )
        assert left.returncode == 0, left.stderr


@contextmanager
def _forwarded(host: str, port: int) -> Iterator[int]:
    """A loopback port that forwards to the address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=_serve, args=(listening, host, port), daemon=True).start()
        yield listening.getsockname()[1]


def _serve(listening: socket.socket, host: str, port: int) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return
        far = socket.create_connection((host, port))
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    finally:
        target.close()
