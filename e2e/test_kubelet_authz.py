"""Authentication and authorisation of the virtual node's kubelet API."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.clusters.certificates import Authority
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import is_ready, wait_for
from e2e.kubelet_client import Credentials, endpoint, status_of
from e2e.workload_manifests import pod

#: Headers of a WebSocket upgrade, as sent by a client of exec.
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}


@pytest.fixture
def admin(home: Cluster, tmp_path: Path) -> tuple[Path, Path]:
    """An administrator's certificate and key, signed by home's CA."""
    found = Credentials.of(home, tmp_path)
    return found.certificate, found.key


def account(bridged: Bridged, name: str) -> str:
    """Creates a service account; returns its token."""
    bridged.kubectl("create", "serviceaccount", name)
    return bridged.kubectl("create", "token", name).strip()


@pytest.fixture
def proxy_role(bridged: Bridged) -> Iterator[str]:
    """A cluster role with read permission for this node only."""
    name = f"e2e-{bridged.node}"
    rule = ("--verb=get", "--resource=nodes/proxy", f"--resource-name={bridged.node}")
    bridged.home.kubectl("create", "clusterrole", name, *rule)
    yield name
    bridged.home.kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")


@pytest.mark.core
def test_unauthenticated_callers_are_rejected(
    bridged: Bridged, admin: tuple[Path, Path], tmp_path: Path
) -> None:
    at = endpoint(bridged.home, bridged.node)
    assert status_of(at, "/pods", pair=admin)[0] == 200
    assert status_of(at, "/pods")[0] == 401
    assert status_of(at, "/no/such/path")[0] == 401
    assert status_of(at, "/pods", token="a.b.c")[0] == 401
    # Same name and group, another CA: the handshake fails.
    other = Authority.create(tmp_path / "other", "ca", "home-ca")
    pair = other.issue("admin", "kubernetes-admin", groups=("system:masters",))
    with pytest.raises(ssl.SSLError, match="unknown ca"):
        status_of(at, "/pods", pair=(pair.certificate, pair.key))


@pytest.mark.core
def test_service_account_is_authorised_until_its_permission_is_removed(
    bridged: Bridged, proxy_role: str
) -> None:
    home, at = bridged.home, endpoint(bridged.home, bridged.node)
    stranger, reader = account(bridged, "stranger"), account(bridged, "reader")
    code, text = status_of(at, "/pods", token=stranger)
    assert code == 403
    assert f"system:serviceaccount:{bridged.namespace}:stranger" in text

    subject = f"--serviceaccount={bridged.namespace}:reader"
    home.kubectl("create", "clusterrolebinding", proxy_role, f"--clusterrole={proxy_role}", subject)
    wait_for(lambda: status_of(at, "/pods", token=reader)[0] == 200, "the reader may")
    assert status_of(at, "/healthz", token=reader)[0] == 200
    assert status_of(at, "/pods", token=stranger)[0] == 403
    # Read permission does not allow exec: home's API server requires "create" for commands.
    assert status_of(at, "/exec/a/b/c?command=id&output=1", method="POST", token=reader)[0] == 403

    home.kubectl("delete", "clusterrolebinding", proxy_role)
    # A kubelet caches allowed requests for five minutes; a new bridge has an empty cache.
    assert status_of(at, "/pods", token=reader)[0] == 200
    bridged.bridge.stop()
    bridged.bridge.start()
    at = endpoint(home, bridged.node)
    assert status_of(at, "/pods", token=reader)[0] == 403


def test_websocket_exec_requires_create(bridged: Bridged, proxy_role: str) -> None:
    """An account with `get nodes/proxy` only, as used by monitoring, cannot run commands."""
    bridged.apply(pod(bridged.node, "target"))
    wait_for(lambda: all(map(is_ready, bridged.home_pods())), "the pod is ready")
    at, home = endpoint(bridged.home, bridged.node), bridged.home
    reader, writer = account(bridged, "reader"), account(bridged, "writer")
    subjects = f"--serviceaccount={bridged.namespace}:reader"
    home.kubectl(
        "create", "clusterrolebinding", proxy_role, f"--clusterrole={proxy_role}", subjects
    )
    wait_for(lambda: status_of(at, "/pods", token=reader)[0] == 200, "the reader may get")
    for path in (
        f"/exec/{bridged.namespace}/target/main?command=/pause&command=-v&output=1",
        f"/attach/{bridged.namespace}/target/main?output=1",
        f"/portForward/{bridged.namespace}/target?port=80",
        f"/run/{bridged.namespace}/target/main?cmd=/pause",
    ):
        assert status_of(at, path, token=reader, headers=WEBSOCKET)[0] == 403, path
    command = f"/exec/{bridged.namespace}/target/main?command=/pause&command=-v&output=1"
    assert status_of(at, command, token=writer, headers=WEBSOCKET)[0] == 403

    name = f"{proxy_role}-create"
    rule = ("--verb=create", "--resource=nodes/proxy", f"--resource-name={bridged.node}")
    home.kubectl("create", "clusterrole", name, *rule)
    subject = f"--serviceaccount={bridged.namespace}:another"
    other = account(bridged, "another")
    try:
        home.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", subject)
        wait_for(
            lambda: status_of(at, command, token=other, headers=WEBSOCKET)[0] == 101,
            "who may create runs it",
            seconds=60,
        )
    finally:
        home.kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")
    # Home's API server has all verbs: kubectl exec works.
    assert "hello" in bridged.kubectl("exec", "target", "--", "echo", "hello")


@pytest.mark.core
def test_only_pods_of_the_node_and_kubelet_paths_are_reachable(
    bridged: Bridged, admin: tuple[Path, Path]
) -> None:
    bridged.apply(pod(bridged.node, "ours"))
    bridged.kubectl("run", "theirs", "--image=registry.k8s.io/pause:3.10.1", "--restart=Never")
    wait_for(lambda: all(map(is_ready, bridged.home_pods())), "both pods are ready")
    at, here = endpoint(bridged.home, bridged.node), bridged.namespace
    assert status_of(at, f"/containerLogs/{here}/ours/main", pair=admin)[0] == 200
    assert status_of(at, f"/containerLogs/{here}/theirs/theirs", pair=admin)[0] == 404
    # Remote names do not resolve here.
    elsewhere = bridged.remote_namespace
    (there,) = bridged.remote_pods()
    assert there["metadata"]["name"] == "ours"
    assert status_of(at, f"/containerLogs/{elsewhere}/ours/main", pair=admin)[0] == 404
    for trick in (
        f"/containerLogs/{here}/..%2f..%2fsecrets/main",
        f"/containerLogs/{here}/ours%2f..%2f..%2f..%2fkube-system%2fpods/main",
        f"/containerLogs/{here}/../{elsewhere}/ours/main",
        f"/containerLogs/{here}%2f..%2f{elsewhere}/ours/main",
        f"/containerLogs/{here}/ours/main%3fcontainer=other",
        f"/containerLogs/{here}/ours/%2e%2e",
        f"/containerLogs/{here}/ours%00/main",
        f"/containerLogs//{here}/ours/main",
        f"//containerLogs/{here}/ours/main",
        f"/%2e%2e/api/v1/namespaces/{elsewhere}/secrets",
        f"/api/v1/namespaces/{elsewhere}/secrets",
        f"https://elsewhere/containerLogs/{here}/ours/main",
    ):
        assert status_of(at, trick, pair=admin)[0] in (400, 404), trick
