"""Pods with a nodeName pass the checks of a kubelet, and a deadline counts while they wait."""

from __future__ import annotations

from typing import Any

from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, uids, wait_for
from e2e.workload_manifests import pod, shell

#: activeDeadlineSeconds of the pods that wait.
DEADLINE = 8


def bound(bridged: Bridged, name: str, **spec: Any) -> str:
    """A pod that no scheduler has placed."""
    return pod(bridged.node, name, nodeName=bridged.node, **spec)


def failed(bridged: Bridged, name: str) -> Json:
    """The status of the home pod after it Failed; empty before."""
    found: Json = get_one(bridged.home, "pod", name, namespace=bridged.namespace)["status"]
    return found if found.get("phase") == "Failed" else {}


def test_pod_that_selects_another_node_is_rejected(bridged: Bridged) -> None:
    selector = {"example.com/zone": "nowhere"}
    bridged.apply(bound(bridged, "elsewhere", nodeSelector=selector))
    status = wait_for(lambda: failed(bridged, "elsewhere"), "the pod is rejected")
    assert status["reason"] == "NodeAffinity"
    assert status["message"].startswith("Pod was rejected: Predicate NodeAffinity failed")
    assert not bridged.remote_pods()
    wait_for(lambda: bridged.events("NodeAffinity"), "an Event shows the rejection")

    # The fix of a user: the label exists a moment before the pod.
    label = "example.com/zone=here"
    bridged.home.kubectl("label", "node", bridged.node, label)
    bridged.apply(bound(bridged, "here", nodeSelector={"example.com/zone": "here"}))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/here", "--timeout=60s")


def test_deadline_counts_while_the_remote_finds_no_node(bridged: Bridged) -> None:
    """Two pods request one port of the remote's only node, which `baseline` forbids."""
    privileged = "pod-security.kubernetes.io/enforce=privileged"
    bridged.home.kubectl("label", "namespace", bridged.namespace, privileged)
    port = [{"containerPort": 8080, "hostPort": 18080}]
    for name, more in (("first", {}), ("second", {"activeDeadlineSeconds": DEADLINE})):
        containers = [shell("main", "sleep 3600", ports=port)]
        bridged.apply(bound(bridged, name, containers=containers, **more))
        wait_for(lambda name=name: name in uids(bridged.remote_pods()), f"{name} is there")  # type: ignore[misc]
        if name == "first":
            bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    status = wait_for(lambda: failed(bridged, "second"), "its deadline has passed")
    assert status["reason"] == "DeadlineExceeded"
    wait_for(lambda: [*uids(bridged.remote_pods())] == ["first"], "the remote pod is deleted")
