"""Pods of DaemonSets that tolerate everything land on the virtual node."""

from __future__ import annotations

import time

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workloads import BUSYBOX


def _daemon(bridged: Bridged) -> Json:
    """Applies a DaemonSet for every node; the pod on the virtual one."""
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


def test_they_are_told_and_their_daemon_set_does_not_spin(bridged: Bridged) -> None:
    """The same pod stays Pending, with one Event, and nobody writes to it any more."""
    name = _daemon(bridged)["metadata"]["name"]

    def told() -> Json | None:
        pod = get_one(bridged.home, "pod", name, namespace=bridged.namespace)
        return pod if pod["status"].get("reason") == "DaemonSetSkipped" else None

    pod = wait_for(told, "the pod says why it waits")
    assert pod is not None
    accepted = next(
        c for c in pod["status"]["conditions"] if c["type"] == "cluster-bridge.io/Accepted"
    )
    assert (accepted["status"], accepted["reason"]) == ("False", "DaemonSetSkipped")
    time.sleep(5)
    (again,) = bridged.home_pods()
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"]
    daemon = get_one(bridged.home, "daemonset", "agent", namespace=bridged.namespace)
    assert daemon["metadata"]["generation"] == 1
    events = get(bridged.home, "events", namespace=bridged.namespace)
    assert [e["reason"] for e in events].count("DaemonSetSkipped") == 1
    assert [e["reason"] for e in events].count("SuccessfulCreate") == 1
    assert not bridged.remote_pods()


@pytest.mark.join("--daemonsets=run")
def test_they_run_where_that_is_asked_for(bridged: Bridged) -> None:
    """As any other pod."""
    _daemon(bridged)
    wait_for(lambda: all(map(is_ready, bridged.home_pods())), "the pod is ready")
    assert len(bridged.remote_pods()) == 1
