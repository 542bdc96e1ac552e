"""The identity of a remote pod at home's and the remote's API servers."""

from __future__ import annotations

import json

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, is_ready, wait_for
from e2e.workload_manifests import pod

MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def running(bridged: Bridged) -> None:
    """Waits until the test's pod is ready at home."""
    wait_for(lambda: any(map(is_ready, bridged.home_pods())), "the pod is ready")


def read(bridged: Bridged, command: str) -> str:
    """Output of a shell command in the pod."""
    return bridged.kubectl("exec", "asks", "--", "sh", "-c", command)


def review(cluster: Cluster, token: str) -> Json:
    """The user of the token, according to the cluster."""
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token},
    }
    args = ("create", "-f", "-", "-o", "json")
    status: Json = json.loads(cluster.kubectl(*args, input=json.dumps(body)).stdout)["status"]
    return status


def token_secrets(bridged: Bridged) -> list[Json]:
    found = get(bridged.remote, "secrets", namespace=bridged.remote_namespace)
    return [it for it in found if it["metadata"]["name"].startswith("cluster-bridge-token-")]


@pytest.mark.core
def test_pod_has_its_home_identity_at_homes_api_server(bridged: Bridged) -> None:
    bridged.kubectl("create", "serviceaccount", "clerk")
    source = {"audience": "vault", "expirationSeconds": 600, "path": "token"}
    volume = {"name": "vault", "projected": {"sources": [{"serviceAccountToken": source}]}}
    main = {
        "name": "main",
        "image": "registry.k8s.io/e2e-test-images/agnhost:2.56",
        "args": ["pause"],
        "volumeMounts": [{"name": "vault", "mountPath": "/vault"}],
    }
    bridged.apply(
        pod(bridged.node, "asks", serviceAccountName="clerk", containers=[main], volumes=[volume])
    )
    running(bridged)

    name = f"system:serviceaccount:{bridged.namespace}:clerk"
    token = read(bridged, f"cat {MOUNT}/token")
    assert review(bridged.home, token)["user"]["username"] == name
    assert not review(bridged.remote, token).get("authenticated")
    assert read(bridged, f"cat {MOUNT}/namespace") == bridged.namespace
    [ca] = [
        it["data"]["ca.crt"]
        for it in get(bridged.home, "configmaps", namespace=bridged.namespace)
        if it["metadata"]["name"] == "kube-root-ca.crt"
    ]
    assert read(bridged, f"cat {MOUNT}/ca.crt").strip() == ca.strip()
    assert not review(bridged.home, read(bridged, "cat /vault/token")).get("authenticated")
    # The address of home's API server in the environment.
    read(bridged, "/agnhost connect $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT --timeout=5s")

    assert len(token_secrets(bridged)) == 1
    bridged.kubectl("delete", "pod", "asks")
    wait_for(lambda: not token_secrets(bridged), "the tokens were deleted from the remote")
    wait_for(
        lambda: not review(bridged.home, token).get("authenticated"), "home takes the token back"
    )


@pytest.mark.join("--service-accounts", "remote")
def test_pod_can_have_an_identity_of_the_remote(bridged: Bridged) -> None:
    bridged.apply(pod(bridged.node, "asks"))
    running(bridged)
    user = review(bridged.remote, read(bridged, f"cat {MOUNT}/token"))["user"]["username"]
    assert user == f"system:serviceaccount:{bridged.remote_namespace}:default"
    assert token_secrets(bridged) == []


@pytest.mark.join("--service-accounts", "none")
def test_pod_can_have_no_identity(bridged: Bridged) -> None:
    bridged.apply(pod(bridged.node, "asks"))
    running(bridged)
    assert read(bridged, f"ls {MOUNT} 2>/dev/null || echo nothing").strip() == "nothing"
    assert token_secrets(bridged) == []
