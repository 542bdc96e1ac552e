"""The kubelet API's certificate, signed by home: requested, approved, served, and stored."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged, Limited, joined, usual_options
from e2e.kubectl import get, get_one, is_ready, wait_for
from e2e.kubelet_client import Credentials, endpoint, is_signed_by
from e2e.second_api_server import SecondApiServer, native_control
from e2e.workload_manifests import pod

requests_one = pytest.mark.join("--serving-certificate", "csr")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, clusters: object, tmp_path: Path) -> Path:
    """The bridge's state folder."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def ca(home: Cluster, tmp_path: Path) -> Path:
    """Home's CA, with which an API server with --kubelet-certificate-authority verifies."""
    return Credentials.of(home, tmp_path).ca


@pytest.fixture
def verifying(home: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """Home, through an API server that verifies the kubelet API's certificate."""
    pki = native_control(home).site.pki
    flag = f"--kubelet-certificate-authority={pki / 'ca.crt'}"
    with SecondApiServer(home, tmp_path, flag) as server:
        yield server.write_kubeconfig()


def logs(bridged: Bridged, through: Cluster) -> subprocess.CompletedProcess[str]:
    """``kubectl logs`` of the pod ``web``."""
    return through.kubectl("logs", "web", "-n", bridged.namespace, check=False)


def recorded_certificate(bridged: Bridged) -> str:
    """The source of the certificate in the join record."""
    annotations = get_one(bridged.home, "node", bridged.node)["metadata"]["annotations"]
    return str(json.loads(annotations["cluster-bridge.io/options"])["servingCertificate"])


def waiting(bridged: Bridged) -> str:
    """The name of the request in the log."""
    waiting = re.compile(
        r"waiting for the approval of .*: kubectl certificate approve (kubelet-serving-\S+)"
    )
    found: list[str] = wait_for(
        lambda: waiting.findall(bridged.bridge.log.read_text()), "the log has the request"
    )
    return found[0]


def requests(bridged: Bridged) -> list[str]:
    found = get(bridged.home, "certificatesigningrequests")
    names = [it["metadata"]["name"] for it in found]
    return [name for name in names if name.startswith("kubelet-serving-") and bridged.node in name]


@pytest.mark.core
@requests_one
def test_home_signs_an_approved_certificate(state: Path, bridged: Bridged, ca: Path) -> None:
    at = endpoint(bridged.home, bridged.node)
    bridged.apply(pod(bridged.node, "web"))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    name = waiting(bridged)
    spec = get_one(bridged.home, "certificatesigningrequest", name)["spec"]
    assert spec["signerName"] == "kubernetes.io/kubelet-serving"
    assert spec["usages"] == ["digital signature", "server auth"]
    # Home's API server does not verify the self-signed certificate here.
    bridged.kubectl("logs", "web")
    assert not is_signed_by(at, ca, at[0])

    bridged.home.kubectl("certificate", "approve", name)
    wait_for(lambda: is_signed_by(at, ca, at[0]), "home's certificate is served")
    assert is_signed_by(at, ca, bridged.node)
    assert not is_signed_by(at, ca, "another.example")
    bridged.kubectl("logs", "web")
    wait_for(lambda: list(state.rglob("serving.pem")), "it is kept")

    bridged.bridge.stop()
    bridged.bridge.start()
    at = endpoint(bridged.home, bridged.node)
    assert is_signed_by(at, ca, at[0])
    assert requests(bridged) == [name]


@requests_one
def test_denied_request_falls_back_to_self_signed(bridged: Bridged, ca: Path) -> None:
    name = waiting(bridged)
    bridged.home.kubectl("certificate", "deny", name)
    wait_for(lambda: f"{name} was denied" in bridged.bridge.log.read_text(), "the denial is logged")
    bridged.apply(pod(bridged.node, "web"))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    bridged.kubectl("logs", "web")
    at = endpoint(bridged.home, bridged.node)
    assert not is_signed_by(at, ca, at[0])


def test_join_of_an_administrator_gets_a_certificate_by_itself(
    clusters: dict[str, Cluster],
    verifying: Cluster,
    limited: Limited,
    node_name: str,
    tmp_path: Path,
) -> None:
    bridge = Bridge(
        verifying, limited.remote, tmp_path / "bridge.log", (*usual_options(node_name), "--yes")
    )
    with joined(bridge, node_name, home=clusters["home"], remote=clusters["remote"]) as bridged:
        bridge.wait_for_log("certificate is signed by home")
        (name,) = requests(bridged)
        request = get_one(bridged.home, "certificatesigningrequest", name)
        (condition,) = request["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("Approved", "BridgeJoinApproves")
        bridged.apply(pod(bridged.node, "web"))
        wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
        assert logs(bridged, verifying).returncode == 0


def test_limited_account_reports_the_command_at_the_first_rejected_connection(
    bridged: Bridged, verifying: Cluster
) -> None:
    bridged.apply(pod(bridged.node, "web"))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    # Home's usual API server does not verify the certificate.
    assert logs(bridged, bridged.home).returncode == 0
    assert not requests(bridged)

    rejected = logs(bridged, verifying)
    assert "x509" in rejected.stderr, rejected.stderr
    name = waiting(bridged)
    assert requests(bridged) == [name]
    bridged.home.kubectl("certificate", "approve", name)
    wait_for(lambda: logs(bridged, verifying).returncode == 0, "logs work")
    wait_for(lambda: recorded_certificate(bridged) == "csr", "later joins request one at once")
