"""Pods that home's scheduler binds to the virtual node and the remote's scheduler cannot place.

Here they request a spread over racks. The virtual node has the label of a rack, the remote's only
node has none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, wait_for
from e2e.workload_manifests import pod, shell
from translators.timestamps import parse_time

RACK = "example.com/rack"
SECONDS = 12
#: Seconds after the timeout until a pod is given up: turns of a scheduler and the bridge.
SLACK = 8.0
SOFT = {"key": "cluster-bridge.io/unschedulable", "effect": "PreferNoSchedule"}
#: Seconds that the taint stays after the last pod, with a margin.
SOFT_SECONDS = 60.0

pytestmark = pytest.mark.join("--unschedulable-timeout", str(SECONDS), "--labels", f"{RACK}=v")

_SPREAD = {
    "topologyKey": RACK,
    "maxSkew": 5,
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "spread"}},
}
_META = {"labels": {"app": "spread"}}


@contextmanager
def _in_a_rack(cluster: Cluster) -> Iterator[None]:
    """The cluster's own node has the label of a rack."""
    nodes = get(cluster, "nodes")
    name = next(it["metadata"]["name"] for it in nodes if "type" not in it["metadata"]["labels"])
    cluster.kubectl("label", "node", name, f"{RACK}=own")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", name, f"{RACK}-")


def _conditions(pod: Json) -> dict[str, Json]:
    return {c["type"]: c for c in pod["status"].get("conditions") or ()}


def _waits(pod: Json) -> bool:
    scheduled = _conditions(pod).get("cluster-bridge.io/RemoteScheduled", {})
    return bool(scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable")


def _given_up(pod: Json) -> bool:
    return bool(pod["status"].get("reason") == "RemoteUnschedulable")


def _one(bridged: Bridged, name: str) -> Json:
    return get_one(bridged.home, "pod", name, namespace=bridged.namespace)


@pytest.mark.core
def test_deployment_fails_over_to_homes_own_node(bridged: Bridged) -> None:
    """It prefers the virtual node, and its condition has the reason why it cannot stay there."""
    preference = {
        "matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [bridged.node]}
        ]
    }
    wish = {"weight": 100, "preference": preference}
    spec = {
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]},
        },
        "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
        "topologySpreadConstraints": [_SPREAD],
        "terminationGracePeriodSeconds": 1,
        "containers": [shell("main", "sleep 3600")],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spread"},
        "spec": {
            "selector": {"matchLabels": {"app": "spread"}},
            "template": {"metadata": _META, "spec": spec},
        },
    }
    bridged.wait_until_schedulable()
    with _in_a_rack(bridged.home):
        bridged.apply(json.dumps(deployment))
        wait_for(lambda: any(map(_waits, bridged.home_pods())), "home has the condition")
        (first,) = bridged.home_pods()
        assert first["spec"]["nodeName"] == bridged.node
        assert _conditions(first)["PodScheduled"]["status"] == "True"
        message = _conditions(first)["cluster-bridge.io/RemoteScheduled"]["message"]
        assert "topology spread constraints" in message
        name = first["metadata"]["name"]
        wait_for(
            lambda: "FailedScheduling" in bridged.kubectl("describe", "pod", name),
            "the remote scheduler's Event is mirrored",
        )
        wait_for(lambda: SOFT in _taints(bridged), "other pods are kept away")

        wait_for(lambda: _given_up(_one(bridged, name)), "it is given up")
        assert not bridged.remote_pods()
        assert _conditions(_one(bridged, name))["DisruptionTarget"]["status"] == "True"
        wait_for(lambda: any(map(is_ready, bridged.home_pods())), "another one runs")
        (other,) = filter(is_ready, bridged.home_pods())
        assert other["spec"]["nodeName"] != bridged.node
        wait_for(lambda: SOFT not in _taints(bridged), "the taint goes", seconds=SOFT_SECONDS)


def _taints(bridged: Bridged) -> list[Json]:
    found: list[Json] = get_one(bridged.home, "node", bridged.node)["spec"].get("taints") or []
    return found


def test_job_ignores_a_pod_that_was_given_up(bridged: Bridged) -> None:
    """Its next pod is scheduled on another node, and the Job completes without a failure."""
    made = json.loads(
        pod(
            bridged.node,
            "unused",
            topologySpreadConstraints=[_SPREAD],
            restartPolicy="Never",
            containers=[shell("main", "true")],
        )
    )
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "spread"},
        "spec": {
            "backoffLimit": 0,
            "podFailurePolicy": {"rules": [ignore]},
            "template": {"metadata": _META, "spec": made["spec"]},
        },
    }
    bridged.apply(json.dumps(job))
    wait_for(lambda: any(map(_given_up, bridged.home_pods())), "the first is given up")
    with _in_a_rack(bridged.remote):
        bridged.kubectl("wait", "--for=condition=Complete", "job/spread", "--timeout=120s")
    status = get_one(bridged.home, "job", "spread", namespace=bridged.namespace)["status"]
    assert (status["succeeded"], status.get("failed", 0)) == (1, 0)


def test_pod_scheduled_before_the_timeout_stays(bridged: Bridged) -> None:
    """The timeout ends while it runs."""
    bridged.apply(pod(bridged.node, "late", _META, topologySpreadConstraints=[_SPREAD]))
    wait_for(lambda: _waits(_one(bridged, "late")), "home has the condition")
    with _in_a_rack(bridged.remote):
        bridged.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=60s")
        time.sleep(SECONDS)
        late = _one(bridged, "late")
        assert is_ready(late)
        assert _conditions(late)["cluster-bridge.io/RemoteScheduled"]["status"] == "True"
        assert "DisruptionTarget" not in _conditions(late)


@pytest.mark.parametrize(
    "down",
    [
        pytest.param(1, id="shortly"),
        pytest.param(SECONDS + 3, id="longer than its time"),
    ],
)
def test_restart_does_not_reset_the_timeout(bridged: Bridged, down: int) -> None:
    """The bridge crashes while a pod waits."""
    bridged.apply(pod(bridged.node, "waits", _META, topologySpreadConstraints=[_SPREAD]))
    wait_for(lambda: _waits(_one(bridged, "waits")), "home has the condition")
    since = _conditions(_one(bridged, "waits"))["cluster-bridge.io/RemoteScheduled"]
    time.sleep(SECONDS / 2)
    bridged.bridge.kill()
    time.sleep(down)
    bridged.bridge.start()
    back = datetime.now(UTC)
    wait_for(lambda: _given_up(_one(bridged, "waits")), "it is given up")
    over = _conditions(_one(bridged, "waits"))["DisruptionTarget"]
    began, ended = (parse_time(c["lastTransitionTime"]) for c in (since, over))
    waited = (ended - began).total_seconds()
    assert SECONDS <= waited <= max(SECONDS, (back - began).total_seconds()) + SLACK
    assert not bridged.remote_pods()
