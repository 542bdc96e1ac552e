"""The kubelet API's certificate, signed by home: requested, approved, served, and stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import get, get_one, is_ready, wait_for
from e2e.kubelet_client import Credentials, endpoint, is_signed_by
from e2e.workload_manifests import pod

pytestmark = pytest.mark.join("--serving-certificate", "csr")


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


def waiting(bridged: Bridged) -> str:
    """The name of the request in the log."""
    waiting = re.compile(r"waiting for the approval of .*: kubectl certificate approve (\S+)")
    found: list[str] = wait_for(
        lambda: waiting.findall(bridged.bridge.log.read_text()), "the log has the request"
    )
    return found[0]


def requests(bridged: Bridged) -> list[str]:
    found = get(bridged.home, "certificatesigningrequests")
    names = [it["metadata"]["name"] for it in found]
    return [name for name in names if bridged.node in name]


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


def test_denied_request_falls_back_to_self_signed(bridged: Bridged, ca: Path) -> None:
    name = waiting(bridged)
    bridged.home.kubectl("certificate", "deny", name)
    wait_for(lambda: f"{name} was denied" in bridged.bridge.log.read_text(), "the denial is logged")
    bridged.apply(pod(bridged.node, "web"))
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")
    bridged.kubectl("logs", "web")
    at = endpoint(bridged.home, bridged.node)
    assert not is_signed_by(at, ca, at[0])
