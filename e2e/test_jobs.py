"""Jobs on the virtual node count each completion and failure once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, wait_for
from e2e.workload_manifests import BUSYBOX


def _job(bridged: Bridged, name: str, command: str, *, restart: str, **spec: Any) -> None:
    pod = {
        "nodeSelector": {"kubernetes.io/hostname": bridged.node},
        "tolerations": [{"key": "cluster-bridge.io/virtual-node", "operator": "Exists"}],
        "restartPolicy": restart,
        "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}],
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "template": {"spec": pod}},
    }
    bridged.apply(json.dumps(job))


def _ended(bridged: Bridged, name: str) -> Json:
    def status() -> Json | None:
        found: Json = get_one(bridged.home, "job", name, namespace=bridged.namespace)["status"]
        kinds = {c["type"] for c in found.get("conditions", ()) if c["status"] == "True"}
        return found if kinds & {"Complete", "Failed"} else None

    ended = wait_for(status, f"job {name} has ended", seconds=120)
    assert ended is not None
    return ended


def _reason(status: Json) -> str:
    return next(str(c["reason"]) for c in status["conditions"] if c["type"] == "Failed")


@pytest.mark.core
def test_jobs_complete_and_fail_by_their_policies(bridged: Bridged) -> None:
    """Indexed completion, backoffLimit with both restart policies, podFailurePolicy."""
    _job(
        bridged,
        "indexed",
        "echo index $JOB_COMPLETION_INDEX of $HOSTNAME",
        restart="Never",
        completions=3,
        parallelism=3,
        completionMode="Indexed",
    )
    _job(bridged, "fails", "exit 1", restart="Never", backoffLimit=1)
    _job(bridged, "retries", "exit 1", restart="OnFailure", backoffLimit=1)
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    _job(
        bridged,
        "policy",
        "exit 42",
        restart="Never",
        backoffLimit=5,
        podFailurePolicy={"rules": [rule]},
    )

    indexed = _ended(bridged, "indexed")
    assert (indexed["succeeded"], indexed["completedIndexes"]) == (3, "0-2")
    logs = bridged.kubectl("logs", "-l", "batch.kubernetes.io/job-name=indexed").splitlines()
    assert sorted(line.split()[1] for line in logs) == ["0", "1", "2"]
    assert all(line.split()[3].startswith("indexed-") for line in logs)

    fails = _ended(bridged, "fails")
    assert (fails["failed"], _reason(fails)) == (2, "BackoffLimitExceeded")
    assert _reason(_ended(bridged, "retries")) == "BackoffLimitExceeded"
    policy = _ended(bridged, "policy")
    assert (policy["failed"], _reason(policy)) == (1, "PodFailurePolicy")


def test_disruption_in_the_remote_can_be_ignored_by_a_job(bridged: Bridged) -> None:
    """`podFailurePolicy` ignores DisruptionTarget: the Job gets another pod and no failure."""
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    _job(
        bridged,
        "drained",
        "sleep 3600",
        restart="Never",
        backoffLimit=0,
        podFailurePolicy={"rules": [ignore]},
    )
    (first,) = wait_for(bridged.remote_pods, "the pod is in the remote")
    name = first["metadata"]["name"]
    bridged.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=90s")
    bridged.remote.kubectl(
        *("-n", bridged.remote_namespace, "delete", "pod", name, "--grace-period=0", "--force")
    )
    wait_for(
        lambda: {p["metadata"]["name"] for p in bridged.remote_pods()} - {name},
        "the Job has another pod",
    )
    status = get_one(bridged.home, "job", "drained", namespace=bridged.namespace)["status"]
    assert not status.get("failed")
