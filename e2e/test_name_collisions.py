"""Unmanaged objects in the remote stay unchanged, and name collisions are reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.conftest import Bridged, Limited, second_node
from e2e.kubectl import get_one, uids, wait_for
from e2e.workload_manifests import BUSYBOX, busybox

_FOREIGN = f"""
apiVersion: v1
kind: Pod
metadata: {{name: taken, labels: {{app: taken}}}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{{name: main, image: {BUSYBOX}, command: [sleep, "3600"]}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: taken}}
data: {{whose: theirs}}
"""

_NEEDS_CONFIG = f"""
apiVersion: v1
kind: ConfigMap
metadata: {{name: taken}}
data: {{whose: ours}}
---
apiVersion: v1
kind: Pod
metadata: {{name: needs-config}}
spec:
  nodeSelector: {{kubernetes.io/hostname: THE-NODE}}
  tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: {BUSYBOX}
      command: [sleep, "3600"]
      envFrom: [{{configMapRef: {{name: taken}}}}]
"""


def _reason(bridged: Bridged, name: str) -> str:
    pod = get_one(bridged.home, "pod", name, namespace=bridged.namespace)
    return str(pod["status"].get("reason", ""))


@pytest.mark.core
def test_unmanaged_objects_of_the_same_name_are_untouched(bridged: Bridged) -> None:
    """An unmanaged pod and ConfigMap keep UIDs and versions; home's pods wait with a reason."""
    bridged.apply(busybox(bridged.node, "first", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("apply", "-n", namespace, "-f", "-", input=_FOREIGN)
    bridged.remote.kubectl(
        "wait", "-n", namespace, "--for=condition=Ready", "pod/taken", "--timeout=60s"
    )
    before = _spec_and_uid(bridged)

    bridged.apply(busybox(bridged.node, "taken", "echo ours; sleep 3600"))
    bridged.apply(_NEEDS_CONFIG.replace("THE-NODE", bridged.node))
    wait_for(
        lambda: all(_reason(bridged, name) == "RemoteClash" for name in ("taken", "needs-config")),
        "both say that they clash",
    )

    reasons = bridged.wait_for_events("RemoteClash", "Pod", "taken", "needs-config")
    assert len(reasons) == 2
    assert f"remote: pod {namespace}/taken exists" in reasons["taken"]
    assert f"remote: ConfigMap {namespace}/taken exists" in reasons["needs-config"]
    assert _spec_and_uid(bridged) == before

    bridged.kubectl("delete", "pod", "taken", "--wait=false")
    wait_for(
        lambda: "taken" not in {p["metadata"]["name"] for p in bridged.home_pods()},
        "our pod can be deleted",
    )
    assert _spec_and_uid(bridged) == before
    bridged.remote.kubectl("delete", "-n", namespace, "configmap/taken", "pod/taken")
    bridged.kubectl("wait", "--for=condition=Ready", "pod/needs-config", "--timeout=120s")
    output = bridged.kubectl("exec", "needs-config", "--", "sh", "-c", "echo $whose")
    assert output == "ours\n"


def _spec_and_uid(bridged: Bridged) -> list[tuple[str, str, str]]:
    """All labels and annotations that a user can set; a kubelet writes the pod's status."""
    found = []
    for kind in ("pod", "configmap"):
        obj = get_one(bridged.remote, kind, "taken", namespace=bridged.remote_namespace)
        meta = obj["metadata"]
        found.append((meta["uid"], str(meta.get("labels")), str(obj.get("spec", obj.get("data")))))
    return found


@pytest.mark.core
@pytest.mark.join("--accept-namespaces=test-*")
def test_unmanaged_namespace_is_rejected_unless_handed_over(bridged: Bridged) -> None:
    """An unmanaged namespace is not used before its owners hand it over."""
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("create", "namespace", namespace)
    try:
        bridged.apply(busybox(bridged.node, "guest", "sleep 3600"))
        wait_for(lambda: _reason(bridged, "guest") == "RemoteClash", "the namespace is refused")
        assert not bridged.remote_pods()
        bridged.remote.kubectl(
            "annotate", "namespace", namespace, "cluster-bridge.io/accepts-home=e2e"
        )
        bridged.kubectl("wait", "--for=condition=Ready", "pod/guest", "--timeout=120s")
        bridged.kubectl("delete", "pod", "guest", "--timeout=60s")
    finally:
        bridged.remote.kubectl("delete", "namespace", namespace, "--wait=false")


def test_pod_that_moves_between_virtual_nodes_waits_for_its_name(
    bridged: Bridged, limited: Limited, tmp_path: Path
) -> None:
    """Like a StatefulSet's pod that was force-deleted while its first node's bridge was stopped."""
    other = f"{bridged.node}-b"
    with second_node(bridged, limited, other, tmp_path) as bridge:
        bridged.apply(busybox(other, "moved", "sleep 3600"))
        bridged.kubectl("wait", "--for=condition=Ready", "pod/moved", "--timeout=60s")
        assert bridge.stop() == 0
        bridged.kubectl("delete", "pod", "moved", "--force", "--grace-period=0")
        bridged.apply(busybox(bridged.node, "moved", "sleep 3600"))
        wait_for(
            lambda: _reason(bridged, "moved") == "RemotePodTerminating",
            "it waits for the pod of the other node",
        )
        first = uids(bridged.remote_pods())["moved"]
        pod = get_one(bridged.home, "pod", "moved", namespace=bridged.namespace)
        assert f"virtual node {other}" in pod["status"]["message"]
        bridge.start()
        bridged.kubectl("wait", "--for=condition=Ready", "pod/moved", "--timeout=60s")
        assert uids(bridged.remote_pods())["moved"] != first
