"""Every termination of a pod equals that on a kubelet."""

from __future__ import annotations

import json

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get_one, uids, wait_for
from e2e.workload_manifests import BUSYBOX, busybox

#: A pod that ignores TERM: only its grace period ends it.
STUBBORN = "trap : TERM; while true; do sleep 1; done"
#: A grace period that nothing here waits for: container runtimes may ignore a later, shorter one
#: (containerd 1.6 does).
LONG_GRACE = 40


def _condition(pod: Json, kind: str) -> Json:
    found = pod["status"].get("conditions", [])
    return next((c for c in found if c["type"] == kind), {})


def _home(bridged: Bridged, name: str) -> Json | None:
    pods = {pod["metadata"]["name"]: pod for pod in bridged.home_pods()}
    return pods.get(name)


def _ready(bridged: Bridged, *names: str) -> None:
    pods = [f"pod/{name}" for name in names]
    bridged.kubectl("wait", "--for=condition=Ready", *pods, "--timeout=90s")


def _with_grace(manifest: str, seconds: int) -> str:
    return manifest.replace(
        "terminationGracePeriodSeconds: 2", f"terminationGracePeriodSeconds: {seconds}"
    )


@pytest.mark.core
def test_graceful_deletion_runs_prestop_and_keeps_the_exit_code(bridged: Bridged) -> None:
    """Home's last status has the exit code of the container's TERM handler."""
    bridged.apply(
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: polite, finalizers: [example.com/look]}}
spec:
  nodeSelector: {{kubernetes.io/hostname: {bridged.node}}}
  tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
  terminationGracePeriodSeconds: 30
  restartPolicy: Never
  containers:
    - name: main
      image: {BUSYBOX}
      command: [sh, -c, 'trap "exit $(cat /tmp/code)" TERM; rm -f /tmp/code;
        while true; do [ -f /tmp/code ] && trap "exit 7" TERM; sleep 0.2; done']
      lifecycle: {{preStop: {{exec: {{command: [sh, -c, "touch /tmp/code; sleep 1"]}}}}}}
"""
    )
    _ready(bridged, "polite")
    bridged.kubectl("delete", "pod", "polite", "--wait=false")
    try:

        def ended() -> int | None:
            status = (_home(bridged, "polite") or {}).get("status", {})
            state = status.get("containerStatuses", [{}])[0].get("state", {})
            code: int | None = state.get("terminated", {}).get("exitCode")
            return code

        assert wait_for(ended, "home knows the exit code") == 7
        wait_for(lambda: not bridged.remote_pods(), "the remote pod was deleted")
    finally:
        patch = '{"metadata":{"finalizers":null}}'
        bridged.kubectl("patch", "pod", "polite", "--type=merge", "-p", patch)
    wait_for(lambda: not bridged.home_pods(), "the home pod was deleted")


def test_grace_period_can_be_shortened_or_zero(bridged: Bridged) -> None:
    """Shortened, force-deleted, and deleted before it could start."""
    for name in ("shortened", "forced"):
        bridged.apply(_with_grace(busybox(bridged.node, name, STUBBORN), LONG_GRACE))
    never = (
        busybox(bridged.node, "unborn", "true")
        .replace(
            "spec:\n",
            "spec:\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
            "{nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, "
            f"values: [{bridged.node}]}}]}}]}}}}}}\n",
            1,
        )
        .replace(BUSYBOX, "registry.invalid/none:1")
    )
    bridged.apply(never)
    _ready(bridged, "shortened", "forced")
    wait_for(lambda: "unborn" in uids(bridged.remote_pods()), "the remote has the pod")
    bridged.kubectl("delete", "pod", "unborn", "--timeout=60s")

    bridged.kubectl("delete", "pod", "shortened", "--wait=false")
    wait_for(lambda: _grace_there(bridged, "shortened") == LONG_GRACE, "the grace is passed on")
    bridged.kubectl("delete", "pod", "shortened", "--grace-period=1", "--wait=false")
    wait_for(lambda: _grace_there(bridged, "shortened") in (1, None), "and so is a shorter one")

    bridged.kubectl("delete", "pod", "forced", "--grace-period=5", "--wait=false")
    bridged.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
    assert _home(bridged, "forced") is None
    wait_for(lambda: not bridged.remote_pods(), "nothing is left in the remote")


def test_forced_deletion_leaves_the_containers_their_grace(bridged: Bridged) -> None:
    """A finalizer keeps the home pod, as of a Job: it ends when its containers have."""
    bridged.apply(_with_grace(busybox(bridged.node, "forced", STUBBORN), LONG_GRACE))
    _ready(bridged, "forced")
    keep = '{"metadata":{"finalizers":["example.com/keeps"]}}'
    bridged.kubectl("patch", "pod", "forced", "--type=merge", "-p", keep)
    bridged.kubectl("delete", "pod", "forced", "--grace-period=0", "--force", "--wait=false")
    try:
        wait_for(lambda: _grace_there(bridged, "forced"), "the remote pod is deleted")
        assert _grace_there(bridged, "forced") == LONG_GRACE
        assert (_home(bridged, "forced") or {})["status"]["phase"] == "Running"
    finally:
        patch = '{"metadata":{"finalizers":null}}'
        bridged.kubectl("patch", "pod", "forced", "--type=merge", "-p", patch)
        there = ("-n", bridged.remote_namespace)
        bridged.remote.kubectl(
            *there, "delete", "pod", "forced", "--grace-period=1", "--wait=false"
        )


def _grace_there(bridged: Bridged, name: str) -> int | None:
    """The grace period of the deletion in the remote; None without a pod or a deletion."""
    pods = {pod["metadata"]["name"]: pod["metadata"] for pod in bridged.remote_pods()}
    grace: int | None = pods.get(name, {}).get("deletionGracePeriodSeconds")
    return grace


@pytest.mark.core
def test_pod_lost_in_the_remote_is_recreated_or_failed(bridged: Bridged) -> None:
    """Deleted manually, and evicted by the API: the restart policy determines the result."""
    bridged.apply(busybox(bridged.node, "again", STUBBORN))
    bridged.apply(busybox(bridged.node, "drained", STUBBORN))
    bridged.apply(busybox(bridged.node, "once", STUBBORN, restart="Never"))
    _ready(bridged, "again", "drained", "once")
    at_home, first = uids(bridged.home_pods()), uids(bridged.remote_pods())

    namespace = bridged.remote_namespace
    bridged.remote.kubectl("-n", namespace, "delete", "pod", "again", "--wait=false")
    for name in ("drained", "once"):
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
        bridged.remote.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))

    def made_again() -> bool:
        now = uids(bridged.remote_pods())
        return all(now.get(name, first[name]) != first[name] for name in ("again", "drained"))

    wait_for(made_again, "both are made again")
    _ready(bridged, "again", "drained")
    assert uids(bridged.home_pods()) == at_home
    assert not _condition(_home(bridged, "drained") or {}, "DisruptionTarget")

    def failed() -> Json | None:
        pod = _home(bridged, "once")
        return pod if pod and pod["status"]["phase"] == "Failed" else None

    ended = wait_for(failed, "the other has failed")
    target = _condition(ended or {}, "DisruptionTarget")
    assert target["reason"] == "EvictionByEvictionAPI"
    assert "in the remote cluster" in target["message"]
    wait_for(lambda: "once" not in uids(bridged.remote_pods()), "it was deleted in the remote")
    wait_for(lambda: bridged.events("RemotePodDeleted"), "an Event shows the deletion")


def test_eviction_by_the_remote_kubelet_is_reported(bridged: Bridged) -> None:
    """Its emptyDir was full: Failed, Evicted, and never restarted."""
    manifest = busybox(bridged.node, "full", "head -c 3000000 /dev/zero > /d/x; sleep 3600")
    volume = "      volumeMounts: [{name: d, mountPath: /d}]\n"
    volume += "  volumes: [{name: d, emptyDir: {sizeLimit: 1Mi}}]\n"
    bridged.apply(manifest + volume)

    def evicted() -> bool:
        pod = _home(bridged, "full")
        return bool(pod and pod["status"].get("reason") == "Evicted")

    wait_for(evicted, "home has the eviction", seconds=150)
    pod = get_one(bridged.home, "pod", "full", namespace=bridged.namespace)
    assert pod["status"]["phase"] == "Failed"
    assert "EmptyDir" in pod["status"]["message"]


def test_deletion_during_a_remote_outage_is_not_lost(bridged: Bridged) -> None:
    """The home pod stays Terminating until the remote is reachable again."""
    bridged.apply(busybox(bridged.node, "goes", "sleep 3600"))
    _ready(bridged, "goes")
    bridged.remote.stop_component("kube-apiserver")
    try:
        bridged.kubectl("delete", "pod", "goes", "--wait=false")
        bridged.kubectl("get", "pod", "goes")
    finally:
        bridged.remote.start_api_server()
    wait_for(lambda: not bridged.home_pods(), "the pod was deleted at home", seconds=120)
    wait_for(lambda: not bridged.remote_pods(), "and in the remote")


def test_statefulset_recreates_its_pod_under_the_same_name(bridged: Bridged) -> None:
    """A new UID at home means a new remote pod."""
    bridged.apply(
        f"""
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {bridged.node}}}
      tolerations: [{{key: cluster-bridge.io/virtual-node, operator: Exists}}]
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: "{BUSYBOX}", command: [sleep, "3600"]}}]
"""
    )
    wait_for(lambda: _home(bridged, "db-0"), "the pod is made")
    _ready(bridged, "db-0")
    before = uids(bridged.home_pods()), uids(bridged.remote_pods())
    bridged.kubectl("delete", "pod", "db-0", "--timeout=60s")
    wait_for(lambda: _home(bridged, "db-0"), "the pod is made again")
    _ready(bridged, "db-0")
    assert uids(bridged.home_pods())["db-0"] != before[0]["db-0"]
    assert uids(bridged.remote_pods())["db-0"] != before[1]["db-0"]
