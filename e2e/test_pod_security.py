"""Pods that could take over the remote's nodes: by their security context, tolerations, or labels
and annotations."""

from __future__ import annotations

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import get_one, wait_for
from e2e.workload_manifests import pod, shell

LABEL = "pod-security.kubernetes.io/enforce"
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
#: Seconds until a rejected pod is tried again, with a margin for its start.
RETRY_SECONDS = 100


def _label_home(bridged: Bridged, level: str) -> None:
    bridged.home.kubectl("label", "namespace", bridged.namespace, f"{LABEL}={level}", "--overwrite")


def _level(bridged: Bridged) -> str:
    there = get_one(bridged.remote, "namespace", bridged.remote_namespace)
    return str(there["metadata"]["labels"][LABEL])


def _privileged(bridged: Bridged, name: str) -> str:
    container = shell("main", "sleep 3600", securityContext={"privileged": True})
    return pod(bridged.node, name, containers=[container])


def _rejection(bridged: Bridged, name: str) -> str:
    """The message of the home pod's rejection, which its status and an Event have."""
    [message] = bridged.wait_for_events("RemotePodSecurity", "Pod", name).values()
    status = get_one(bridged.home, "pod", name, namespace=bridged.namespace)["status"]
    assert (status["phase"], status["reason"]) == ("Pending", "RemotePodSecurity")
    assert status["message"] == message
    return message


@pytest.mark.core
def test_privileged_pod_runs_once_home_labels_its_namespace(bridged: Bridged) -> None:
    bridged.apply(pod(bridged.node, "plain"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/plain", "--timeout=90s")
    assert _level(bridged) == "baseline"
    bridged.apply(_privileged(bridged, "root"))
    message = _rejection(bridged, "root")
    assert 'violates PodSecurity "baseline:latest"' in message
    assert "securityContext.privileged=true" in message
    assert f"kubectl label namespace {bridged.namespace} {LABEL}=privileged" in message

    _label_home(bridged, "privileged")
    bridged.kubectl("wait", "--for=condition=Ready", "pod/root", f"--timeout={RETRY_SECONDS}s")
    assert _level(bridged) == "privileged"

    # The bridge reads the label again within a minute; home rejects the pod at once by itself.
    _label_home(bridged, "restricted")

    def follows() -> bool:
        bridged.kubectl("delete", "pod", "probe", "--ignore-not-found", "--timeout=60s")
        strict = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        strict |= {"runAsNonRoot": True, "runAsUser": 1000}
        strict |= {"seccompProfile": {"type": "RuntimeDefault"}}
        containers = [shell("main", "sleep 3600", securityContext=strict)]
        bridged.apply(pod(bridged.node, "probe", containers=containers))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/probe", "--timeout=60s")
        return _level(bridged) == "restricted"

    wait_for(follows, "the level follows home's label", seconds=RETRY_SECONDS)


@pytest.mark.join("--pod-security", "baseline")
def test_option_caps_the_level_of_home(bridged: Bridged) -> None:
    _label_home(bridged, "privileged")
    bridged.apply(_privileged(bridged, "root"))
    message = _rejection(bridged, "root")
    assert "enforces baseline" in message
    assert "was joined with --pod-security baseline" in message
    assert "kubectl label" not in message
    bridged.apply(pod(bridged.node, "plain"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/plain", "--timeout=90s")
    assert _level(bridged) == "baseline"


def test_pod_that_tolerates_everything_stays_off_the_control_plane(bridged: Bridged) -> None:
    """And loses the annotations and labels that act on networks and identities."""
    [node] = bridged.remote.node_names
    taint = f"{CONTROL_PLANE}=:NoSchedule"
    bridged.remote.kubectl("taint", "node", node, taint)
    try:
        meta = {
            "annotations": {"k8s.v1.cni.cncf.io/networks": "kube-system/x", "note": "kept"},
            "labels": {"sidecar.istio.io/inject": "true", "app": "kept"},
        }
        everything = [{"operator": "Exists"}, {"key": CONTROL_PLANE, "operator": "Exists"}]
        # Bound by hand: the virtual node offers nothing without this node of the remote.
        spec = {"nodeName": bridged.node, "tolerations": everything}
        bridged.apply(pod(bridged.node, "greedy", meta, **spec))

        def waits() -> bool:
            status = get_one(bridged.home, "pod", "greedy", namespace=bridged.namespace)["status"]
            conditions = {it["type"]: it for it in status.get("conditions") or ()}
            scheduled = conditions.get("cluster-bridge.io/RemoteScheduled", {})
            return scheduled.get("status") == "False" and "taint" in scheduled["message"]

        wait_for(waits, "the remote's scheduler finds no node")
        [message] = bridged.wait_for_events("FieldDropped", "Pod", "greedy").values()
        for field in (
            "spec.tolerations[0]",
            "spec.tolerations[1]",
            "metadata.annotations[k8s.v1.cni.cncf.io/networks]",
            "metadata.labels[sidecar.istio.io/inject]",
        ):
            assert field in message
        [remote] = bridged.remote_pods()
        there = remote["metadata"]
        assert there["annotations"]["note"] == there["labels"]["app"] == "kept"
        assert "k8s.v1.cni.cncf.io/networks" not in there["annotations"]
        assert "sidecar.istio.io/inject" not in there["labels"]
    finally:
        bridged.remote.kubectl("taint", "node", node, f"{CONTROL_PLANE}-")
    bridged.kubectl("wait", "--for=condition=Ready", "pod/greedy", "--timeout=90s")
