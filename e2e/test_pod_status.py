"""A pod's status at home equals that of a pod on a kubelet."""

from __future__ import annotations

import json

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, is_ready, wait_for
from e2e.workload_manifests import busybox


def _pod(bridged: Bridged, name: str) -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)


@pytest.mark.core
def test_readiness_gates_and_conditions_of_others_are_respected(bridged: Bridged) -> None:
    """Home sets a readiness gate; conditions of other writers stay; the address is the node's."""
    gated = busybox(bridged.node, "gated", "sleep 3600").replace(
        "  restartPolicy",
        '  readinessGates: [{conditionType: "example.com/open"}]\n  restartPolicy',
    )
    bridged.apply(gated)
    wait_for(lambda: _pod(bridged, "gated")["status"]["phase"] == "Running", "the pod runs")
    assert not is_ready(_pod(bridged, "gated"))
    now = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("example.com/open", "example.com/other")
    ]
    patch = json.dumps({"status": {"conditions": conditions}})
    bridged.kubectl("patch", "pod", "gated", "--subresource=status", "-p", patch)
    wait_for(lambda: is_ready(_pod(bridged, "gated")), "the gate counts")

    pod = _pod(bridged, "gated")
    kinds = {condition["type"] for condition in pod["status"]["conditions"]}
    assert {"example.com/open", "example.com/other", "PodScheduled", "Initialized"} <= kinds
    node = get_one(bridged.home, "node", bridged.node)
    assert pod["status"]["hostIP"] in {a["address"] for a in node["status"]["addresses"]}
    assert pod["status"]["qosClass"] == "BestEffort"
    assert pod["status"]["startTime"]


def test_observed_generation_follows_the_remote(bridged: Bridged) -> None:
    """Home's own generation, at the start and after a change."""
    bridged.apply(busybox(bridged.node, "moves", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/moves", "--timeout=60s")

    def observed() -> bool:
        pod = _pod(bridged, "moves")
        return bool(pod["status"].get("observedGeneration") == pod["metadata"]["generation"])

    wait_for(observed, "the start is observed")
    bridged.kubectl(
        *("patch", "pod", "moves", "--type=merge", "-p"), '{"spec":{"activeDeadlineSeconds":600}}'
    )
    assert _pod(bridged, "moves")["metadata"]["generation"] > 1
    wait_for(observed, "the change is observed")
    (remote,) = bridged.remote_pods()
    assert remote["spec"]["activeDeadlineSeconds"] == 600
