"""`bridge drain`: evicted pods, and the handling of pods that cannot be evicted."""

from __future__ import annotations

import subprocess

from e2e import bridge_process
from e2e.conftest import Bridged
from e2e.kubectl import get_one, uids
from e2e.workload_manifests import BUSYBOX, busybox

#: A Deployment whose pod has an emptyDir volume.
SCRATCH = f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: scratch}}
spec:
  selector: {{matchLabels: {{app: scratch}}}}
  template:
    metadata: {{labels: {{app: scratch}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: THE-NODE}}
      tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
      terminationGracePeriodSeconds: 2
      volumes: [{{name: scratch, emptyDir: {{}}}}]
      containers:
        - name: main
          image: {BUSYBOX}
          command: [sh, -c, "sleep 3600"]
          volumeMounts: [{{name: scratch, mountPath: /scratch}}]
"""


def _drain(bridged: Bridged, *args: str) -> subprocess.CompletedProcess[str]:
    return bridge_process.run("drain", bridged.node, *args, home=bridged.home)


def test_drain_takes_kubectl_options_and_evicts_every_evictable_pod(
    bridged: Bridged,
) -> None:
    bridged.apply(SCRATCH.replace("THE-NODE", bridged.node))
    bridged.apply(busybox(bridged.node, "bare", "sleep 3600"))
    bridged.apply(busybox(bridged.node, "two-budgets", "sleep 3600"))
    bridged.kubectl("rollout", "status", "deployment/scratch", "--timeout=90s")
    bridged.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
    before = uids(bridged.remote_pods())

    refused = _drain(bridged)
    assert refused.returncode == 1
    for why in (
        f"{bridged.namespace}/bare",
        f"{bridged.namespace}/scratch-",
        "--force evicts them",
        "--delete-emptydir-data evicts them",
    ):
        assert why in refused.stderr
    refused = _drain(bridged, "--force")
    assert refused.returncode == 1
    assert f"{bridged.namespace}/bare" not in refused.stderr
    assert uids(bridged.remote_pods()) == before
    assert not get_one(bridged.home, "node", bridged.node)["spec"].get("unschedulable")

    # The API server cannot evict a pod that two budgets select.
    for name in ("one", "other"):
        bridged.kubectl(
            *("create", "pdb", name, "--selector=app=two-budgets", "--max-unavailable=1")
        )
    drained = _drain(bridged, "--force", "--delete-emptydir-data", "--timeout", "120")
    assert drained.returncode == 1
    assert f"1 pod(s) could not be evicted ({bridged.namespace}/two-budgets: " in drained.stderr
    assert "more than one PodDisruptionBudget" in drained.stderr
    assert uids(bridged.remote_pods()) == {"two-budgets": before["two-budgets"]}

    # Drain waits for a single exhausted budget.
    bridged.kubectl("delete", "pdb", "one", "other")
    bridged.kubectl("create", "pdb", "strict", "--selector=app=two-budgets", "--min-available=1")
    kept = _drain(bridged, "--force", "--timeout", "6")
    assert kept.returncode == 1
    assert f"1 pod(s) are still blocked ({bridged.namespace}/two-budgets: " in kept.stderr
    bridged.kubectl("delete", "pdb", "strict")
    drained = _drain(bridged, "--force", "--grace-period", "1")
    assert drained.returncode == 0, drained.stderr
    assert not bridged.remote_pods()
