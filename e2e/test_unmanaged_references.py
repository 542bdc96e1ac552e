"""A pod cannot read a remote Secret that home does not have, nor tokens of another pod."""

from __future__ import annotations

import pytest

from e2e import hostile_tenant
from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, wait_for
from e2e.workload_manifests import pod, secret, shell


def _reason(bridged: Bridged, name: str) -> str:
    status = get_one(bridged.home, "pod", name, namespace=bridged.namespace)["status"]
    return str(status.get("reason", ""))


def _reads(name: str, *, optional: bool = False) -> Json:
    """A container with a Secret in its environment."""
    source: Json = {"secretRef": {"name": name, "optional": optional}}
    return shell("main", "env; cat /secret/* /projected/* 2>/dev/null; sleep 1d", envFrom=[source])


def _theirs(bridged: Bridged, namespace: str) -> None:
    bridged.remote.kubectl(
        "create", "-n", namespace, "-f", "-", input=secret("theirs", {"KEY": "canary"})
    )


def test_unmanaged_secret_does_not_replace_a_missing_one_of_home(bridged: Bridged) -> None:
    """In a namespace of the bridge: a pod that requires it waits until home has it."""
    bridged.apply(pod(bridged.node, "first"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=90s")
    _theirs(bridged, bridged.remote_namespace)
    bridged.apply(pod(bridged.node, "thief", containers=[_reads("theirs")]))
    wait_for(lambda: _reason(bridged, "thief") == "RemoteClash", "it waits with the reason")
    assert {it["metadata"]["name"] for it in bridged.remote_pods()} == {"first"}

    token = get_one(bridged.home, "pod", "first", namespace=bridged.namespace)["metadata"]["uid"]
    other = {"name": "v", "secret": {"secretName": f"cluster-bridge-token-{token}"}}
    bridged.apply(pod(bridged.node, "tokens", volumes=[other]))
    wait_for(lambda: _reason(bridged, "tokens") == "FieldRefused", "the name is reserved")
    assert {it["metadata"]["name"] for it in bridged.remote_pods()} == {"first"}

    bridged.remote.kubectl("delete", "-n", bridged.remote_namespace, "secret", "theirs")
    bridged.apply(secret("theirs", {"KEY": "of home"}))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/thief", "--timeout=120s")
    assert "KEY=of home" in bridged.kubectl("logs", "thief")


@pytest.mark.core
@pytest.mark.join("--accept-namespaces=test-*")
def test_pods_cannot_read_secrets_of_tenants_of_a_shared_namespace(bridged: Bridged) -> None:
    """Neither an existing one, nor one that is created while the pod runs."""
    with hostile_tenant.namespace(
        bridged, bridged.remote_namespace, forged=False, accepts="e2e"
    ) as there:
        _theirs(bridged, there)
        bridged.apply(pod(bridged.node, "thief", containers=[_reads("theirs")]))
        bridged.apply(pod(bridged.node, "early", containers=[_reads("later")]))
        maybe = {"secretName": "later", "optional": True}
        projected = {"sources": [{"secret": {"name": "theirs", "optional": True}}]}
        volumes = [{"name": "s", "secret": maybe}, {"name": "p", "projected": projected}]
        mounts = [
            {"name": "s", "mountPath": "/secret"},
            {"name": "p", "mountPath": "/projected"},
        ]
        main = {**_reads("theirs", optional=True), "volumeMounts": mounts}
        optional = pod(
            bridged.node,
            "optional",
            containers=[main],
            volumes=volumes,
            imagePullSecrets=[{"name": "theirs"}],
        )
        bridged.apply(optional)
        bridged.kubectl("wait", "--for=condition=Ready", "pod/optional", "--timeout=90s")
        wait_for(
            lambda: {_reason(bridged, it) for it in ("thief", "early")} == {"ReferenceMissing"},
            "they wait until home has what they require",
        )
        bridged.remote.kubectl(
            "create", "-n", there, "-f", "-", input=secret("later", {"KEY": "canary"})
        )
        [made] = bridged.remote_pods()
        assert made["metadata"]["name"] == "optional"
        assert "theirs" not in str(made["spec"])
        assert "later" not in str(made["spec"])
        assert "canary" not in bridged.kubectl("logs", "optional")

        bridged.remote.kubectl("delete", "-n", there, "secret", "theirs")
        bridged.apply(secret("theirs", {"KEY": "of home"}))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/thief", "--timeout=120s")
        assert "KEY=of home" in bridged.kubectl("logs", "thief")
        bridged.kubectl("delete", "pod", "--all", "--timeout=60s")
