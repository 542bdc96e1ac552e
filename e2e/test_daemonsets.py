"""Pods of DaemonSets with all tolerations on the virtual node."""

from __future__ import annotations

import time

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, versions, wait_for
from e2e.workload_manifests import AGNHOST, BUSYBOX


def _daemon(bridged: Bridged) -> Json:
    """Applies a DaemonSet for every node; the pod on the virtual node."""
    bridged.apply(
        f"""
apiVersion: apps/v1
kind: DaemonSet
metadata: {{name: agent}}
spec:
  selector: {{matchLabels: {{app: agent}}}}
  template:
    metadata: {{labels: {{app: agent}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {bridged.node}}}
      tolerations: [{{operator: Exists}}]
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: "{BUSYBOX}", command: [sleep, "3600"]}}]
"""
    )
    return wait_for(bridged.home_pods, "the DaemonSet has made a pod")[0]


@pytest.mark.core
def test_skipped_pod_is_available_and_written_once(bridged: Bridged) -> None:
    """The pod is Ready, with one Event, without address and remote pod, and not written again; logs
    and exec return the reason."""
    name = _daemon(bridged)["metadata"]["name"]

    def skipped() -> Json | None:
        pod = get_one(bridged.home, "pod", name, namespace=bridged.namespace)
        return pod if pod["status"].get("reason") == "DaemonSetSkipped" else None

    pod = wait_for(skipped, "the pod's status states that it is skipped")
    assert pod is not None
    assert is_ready(pod)
    accepted = next(
        c for c in pod["status"]["conditions"] if c["type"] == "cluster-bridge.io/Accepted"
    )
    assert (accepted["status"], accepted["reason"]) == ("False", "DaemonSetSkipped")
    assert not pod["status"].keys() & {"podIP", "containerStatuses"}
    assert "DaemonSetSkipped" in bridged.kubectl("get", "pod", name)
    for command in (("logs", name), ("exec", name, "--", "true")):
        refused = bridged.home.kubectl("-n", bridged.namespace, *command, check=False)
        assert "DaemonSetSkipped" in refused.stderr, refused
    bridged.kubectl("rollout", "status", "daemonset/agent", "--timeout=30s")
    time.sleep(5)
    (again,) = bridged.home_pods()
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    daemon = get_one(bridged.home, "daemonset", "agent", namespace=bridged.namespace)
    assert daemon["metadata"]["generation"] == 1
    assert [event["type"] for event in bridged.events("DaemonSetSkipped")] == ["Normal"]
    assert len(bridged.events("SuccessfulCreate")) == 1
    assert not bridged.remote_pods()


_EVERYWHERE = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: everywhere}
spec:
  minReadySeconds: 1
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}
  selector: {matchLabels: {app: everywhere}}
  template:
    metadata: {labels: {app: everywhere}}
    spec:
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "IMAGE", command: [sleep, "3600"]}]
---
apiVersion: v1
kind: Service
metadata: {name: everywhere}
spec: {selector: {app: everywhere}, ports: [{port: 80}]}
"""


def _rolled_out(bridged: Bridged, image: str) -> dict[str, Json]:
    """Rolls the DaemonSet to an image and waits for the rollout; its pods by node."""
    bridged.apply(_EVERYWHERE.replace("IMAGE", image))
    bridged.kubectl("rollout", "status", "daemonset/everywhere", "--timeout=90s")
    status = get_one(bridged.home, "daemonset", "everywhere", namespace=bridged.namespace)["status"]
    wanted = status["desiredNumberScheduled"]
    assert wanted == len(bridged.home.node_names) + 1
    numbers = ("numberAvailable", "numberReady", "updatedNumberScheduled")
    assert [status.get(number) for number in numbers] == [wanted] * 3, status
    pods = [it for it in bridged.home_pods() if "deletionTimestamp" not in it["metadata"]]
    found = {it["spec"]["nodeName"]: it for it in pods}
    assert {it["spec"]["containers"][0]["image"] for it in found.values()} == {image}
    return found


def test_daemonset_of_every_node_rolls_out_beside_a_bridge(bridged: Bridged) -> None:
    """Home's own pod is replaced by a running one; a restart of the bridge writes nothing."""
    first = _rolled_out(bridged, BUSYBOX)
    second = _rolled_out(bridged, AGNHOST)
    (own,) = bridged.home.node_names
    assert first[own]["metadata"]["uid"] != second[own]["metadata"]["uid"]
    (container,) = second[own]["status"]["containerStatuses"]
    assert "running" in container["state"]
    assert second[bridged.node]["status"]["reason"] == "DaemonSetSkipped"
    (slice_,) = get(bridged.home, "endpointslices", namespace=bridged.namespace)
    (endpoint,) = slice_["endpoints"]
    assert endpoint["nodeName"] == own
    before = versions(bridged.home_pods())
    bridged.bridge.stop()
    bridged.bridge.start()
    time.sleep(5)
    assert versions(bridged.home_pods()) == before
    third = _rolled_out(bridged, BUSYBOX)
    assert third[own]["metadata"]["uid"] != second[own]["metadata"]["uid"]


@pytest.mark.join("--daemonsets=run")
def test_daemonset_pods_run_with_the_option(bridged: Bridged) -> None:
    """Like any other pod."""
    _daemon(bridged)
    wait_for(lambda: all(map(is_ready, bridged.home_pods())), "the pod is ready")
    assert len(bridged.remote_pods()) == 1
