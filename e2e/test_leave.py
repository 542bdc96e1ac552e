"""`bridge leave` removes managed objects from both sides, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from e2e import bridge_process
from e2e.clusters.cluster import Cluster
from e2e.conftest import Bridged
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import BUSYBOX, busybox, web


@pytest.mark.core
def test_leave_removes_managed_objects_and_keeps_others(bridged: Bridged) -> None:
    """It is rejected while a bridge serves the node; then it prints its plan and removes all."""
    bridged.apply(busybox(bridged.node, "one", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=60s")
    namespace = bridged.remote_namespace
    bridged.remote.kubectl("create", "configmap", "-n", namespace, "theirs")

    served = bridge_process.run("leave", bridged.node, "--yes", home=bridged.bridge.home)
    assert served.returncode == 1
    assert "a bridge serves node" in served.stderr
    assert uids(bridged.remote_pods())
    assert bridged.bridge.stop() == 0
    unasked = bridge_process.run("leave", bridged.node, home=bridged.bridge.home)
    assert unasked.returncode == 2

    left = bridge_process.run("leave", bridged.node, "--yes", home=bridged.bridge.home)
    assert left.returncode == 0, left.stderr
    assert f"home:   Pod {bridged.namespace}/one" in left.stderr
    assert f"remote: Pod {namespace}/one" in left.stderr
    assert f"namespace {namespace} stays: it holds ConfigMap theirs" in left.stderr
    assert bridged.node not in uids(get(bridged.home, "nodes"))
    assert not bridged.home_pods()
    assert not bridged.remote_pods()
    assert "theirs" in uids(get(bridged.remote, "configmaps", namespace=namespace))

    bridged.remote.kubectl("delete", "configmap", "-n", namespace, "theirs")
    again = bridge_process.run(
        *(
            "leave",
            bridged.node,
            "--yes",
            "--kubeconfig",
            bridged.bridge.remote.kubeconfig,
        ),
        home=bridged.bridge.home,
    )
    assert again.returncode == 0, again.stderr
    wait_for(
        lambda: namespace not in uids(get(bridged.remote, "namespaces")),
        "the empty namespace was deleted",
    )


# -- managed objects -------------------------------------------------------------------------


def is_marked(obj: Json) -> bool:
    """Whether it has a label, annotation or finalizer of the bridge."""
    meta = obj["metadata"]
    keys = [*(meta.get("labels") or {}), *(meta.get("annotations") or {})]
    return any("cluster-bridge.io/" in key for key in [*keys, *meta.get("finalizers", ())])


def leftovers(cluster: Cluster, *named: str) -> list[str]:
    """All objects of all resources with a mark of the bridge that contain one of these words,
    except Events, which are history."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "-o", "name").stdout.split()
    kinds = [kind for kind in kinds if not kind.startswith("events") and "metrics.k8s" not in kind]
    found = get(cluster, ",".join(kinds), all_namespaces=True)
    return [
        f"{obj['kind']} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
        for obj in found
        if is_marked(obj) and any(word in json.dumps(obj) for word in named)
    ]


def is_clean(bridged: Bridged) -> bool:
    """Whether neither side has an object of the node."""
    words = (bridged.node, bridged.remote_namespace)
    at_home = leftovers(bridged.home, *words)
    leases = uids(get(bridged.home, "leases", all_namespaces=True))
    of_node = [name for name in leases if bridged.node in name]
    return not (at_home or leftovers(bridged.remote, *words) or of_node)


def leave(bridged: Bridged, *args: str | Path) -> subprocess.CompletedProcess[str]:
    """`bridge leave --yes` of the node, with the bridge's permissions."""
    home = bridged.bridge.home
    return bridge_process.run("leave", bridged.node, "--yes", *args, home=home)


def serving_request(bridged: Bridged) -> str:
    """The name of the request for the serving certificate, which follows the node's."""
    prefix = f"kubelet-serving-{bridged.node}"
    found = wait_for(
        lambda: [it for it in uids(get(bridged.home, "csr")) if it.startswith(prefix)],
        "the serving certificate is requested",
    )
    return found[0]


def prune(bridged: Bridged, *args: str) -> subprocess.CompletedProcess[str]:
    """`bridge prune` of the remote, without a home."""
    return bridge_process.run("prune", "--kubeconfig", bridged.remote.kubeconfig, *args)


def row(bridged: Bridged) -> list[str]:
    """The node's line of `bridge prune`; empty if there is none."""
    listed = prune(bridged)
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    return next((row for row in rows if bridged.node in row), [])


@pytest.mark.core
def test_leave_leaves_no_managed_object_of_any_resource(bridged: Bridged) -> None:
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert not is_clean(bridged), "the search finds what is there"
    assert bridged.bridge.stop() == 0
    left = leave(bridged)
    assert left.returncode == 0, left.stderr
    wait_for(lambda: is_clean(bridged), "all has gone")


@pytest.mark.join("--serving-certificate", "csr")
def test_leave_removes_the_certificate(bridged: Bridged) -> None:
    """With the unapproved request, and the keys in this user's state folder."""
    serving_request(bridged)
    assert bridged.bridge.stop() == 0
    mine = [it for it in uids(get(bridged.home, "csr")) if bridged.node in it]
    assert sorted(it.partition(f"-{bridged.node}")[0] for it in mine) == [
        "kubelet-client",
        "kubelet-serving",
    ]
    left = leave(bridged)
    assert left.returncode == 0, left.stderr
    folder = next(
        line.partition(" in ")[2]
        for line in left.stderr.splitlines()
        if "the node's certificate and key in" in line
    )
    assert not Path(folder).exists()
    assert not [it for it in uids(get(bridged.home, "csr")) if bridged.node in it]


# -- unreachable remote ----------------------------------------------------------------------


@pytest.mark.core
def test_forced_leave_succeeds_without_the_remote(bridged: Bridged) -> None:
    """Only with --force; when the remote is reachable again, the remains can be removed."""
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert bridged.bridge.stop() == 0
    bridged.remote.stop_component("kube-apiserver")
    try:
        refused = leave(bridged)
        assert refused.returncode == 1
        assert "nothing was removed" in refused.stderr
        assert bridged.node in uids(get(bridged.home, "nodes"))
        left = leave(bridged, "--force")
        assert left.returncode == 0, left.stderr
        assert not leftovers(bridged.home, bridged.node)
        assert "may be left" in left.stderr
        on_node = [p for p in bridged.home_pods() if p["spec"].get("nodeName") == bridged.node]
        assert not on_node
    finally:
        bridged.remote.start_api_server()
    bridged.remote.kubectl("create", "configmap", "-n", bridged.remote_namespace, "theirs")
    home, node, pods = row(bridged)[:3]
    assert (node, pods) == (bridged.node, "3")
    removed = prune(bridged, "--remove", home, "--node", node, "--yes")
    assert removed.returncode == 0, removed.stderr
    assert "stays: it holds ConfigMap theirs" in removed.stderr
    bridged.remote.kubectl("delete", "configmap", "-n", bridged.remote_namespace, "theirs")
    assert prune(bridged, "--remove", home, "--node", node, "--yes").returncode == 0
    wait_for(lambda: is_clean(bridged), "all has gone")


# -- kept workloads --------------------------------------------------------------------------


def test_kept_workloads_continue_and_can_be_pruned(bridged: Bridged) -> None:
    bridged.apply(busybox(bridged.node, "stays", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "--timeout=60s")
    before = uids(bridged.remote_pods())
    assert bridged.bridge.stop() == 0
    left = leave(bridged, "--keep-workloads")
    assert left.returncode == 0, left.stderr
    assert "No bridge manages them" in left.stderr
    assert not leftovers(bridged.home, bridged.node)
    assert not bridged.home_pods()
    time.sleep(3)
    assert uids(bridged.remote_pods()) == before
    (pod,) = bridged.remote_pods()
    assert is_ready(pod)
    home, node, pods = row(bridged)[:3]
    assert (node, pods) == (bridged.node, "1")
    assert prune(bridged, "--remove", home, "--node", node, "--yes").returncode == 0
    wait_for(lambda: is_clean(bridged), "all has gone")


# -- drain ---------------------------------------------------------------------------------

#: A Deployment that prefers the virtual node and may run on any other, and its budget.
SHIFTED = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              preference:
                matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [THE-NODE]}]
      tolerations: [{key: cluster-bridge.io/virtual-node, operator: Exists}]
      terminationGracePeriodSeconds: 2
      containers:
        - {name: main, image: BUSYBOX, command: [sh, -c, "sleep 3600"]}
"""


@pytest.mark.parametrize(
    "served",
    [
        pytest.param(False, id="bridge has stopped"),
        pytest.param(True, id="bridge serves"),
    ],
)
def test_leave_with_drain_respects_the_budget(bridged: Bridged, served: bool) -> None:
    bridged.wait_until_schedulable()
    bridged.apply(SHIFTED.replace("THE-NODE", bridged.node).replace("BUSYBOX", BUSYBOX))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert {pod["spec"]["nodeName"] for pod in bridged.home_pods()} == {bridged.node}
    if not served:
        assert bridged.bridge.stop() == 0
    least, stop = [3], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            status = get_one(bridged.home, "deployment", "web", namespace=bridged.namespace)
            least.append(status["status"].get("availableReplicas", 0))
            time.sleep(0.3)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        left = leave(bridged, "--drain", "--timeout", "100")
    finally:
        stop.set()
        watching.join()
    if served:
        assert left.returncode == 1
        assert "is drained and cordoned, and a bridge still serves it" in left.stderr
        assert bridged.bridge.stop() == 0
        left = leave(bridged, "--drain")
    assert left.returncode == 0, left.stderr
    assert min(least) >= 2, "the budget held"
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    nodes = {pod["spec"]["nodeName"] for pod in bridged.home_pods()}
    assert bridged.node not in nodes
    wait_for(lambda: is_clean(bridged), "all has gone")


# -- interruption ----------------------------------------------------------------------------


def test_interrupted_leave_completes_when_repeated(bridged: Bridged) -> None:
    bridged.apply(web(bridged.node))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert bridged.bridge.stop() == 0
    command: list[str | Path] = [bridge_process.BRIDGE, "leave", bridged.node, "--yes"]
    env = {**os.environ, "KUBECONFIG": str(bridged.home.kubeconfig)}
    for tenths in range(8, 50, 4):
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
            time.sleep(tenths / 10)
            process.kill()
        if bridged.node not in uids(get(bridged.home, "nodes")):
            break
    left = leave(bridged, "--kubeconfig", bridged.remote.kubeconfig)
    assert left.returncode == 0, left.stderr
    wait_for(lambda: is_clean(bridged), "all has gone")
