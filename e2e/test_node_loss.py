"""A node of the remote is lost: home reports it, and no pod is lost or runs twice."""

from __future__ import annotations

from e2e.conftest import Bridged
from e2e.kubectl import get_one, is_ready, uids, wait_for
from e2e.simulated_node import simulated_node
from e2e.workload_manifests import BUSYBOX, busybox

#: Seconds until the remote considers a silent node lost (the grace period is 50), and until a
#: restarted kubelet has ended obsolete pods.
LOST_SECONDS = 120.0
#: Taint that the remote's administrator sets on the node.
TAINT = "example.com/lost"


def test_pods_of_a_lost_remote_node_become_unready_and_recover(bridged: Bridged) -> None:
    """A pod that tolerates the loss stays; one that does not is re-created."""
    tolerant = busybox(bridged.node, "stays", "sleep 3600")
    bridged.apply(
        tolerant.replace(
            "operator: Exists}]", "operator: Exists}, {key: " + TAINT + ", operator: Exists}]"
        )
    )
    bridged.apply(busybox(bridged.node, "moves", "sleep 3600"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "pod/moves", "--timeout=90s")
    at_home, first = uids(bridged.home_pods()), uids(bridged.remote_pods())
    machine = next(
        pod["spec"]["nodeName"]
        for pod in bridged.remote_pods()
        if pod["metadata"]["name"] == "moves"
    )

    bridged.remote.stop_component("kubelet")
    try:
        wait_for(
            lambda: not any(is_ready(pod) for pod in bridged.home_pods()),
            "they are not ready at home",
            seconds=LOST_SECONDS,
        )
        # If all nodes are lost at once, the remote's own controller does not evict.
        bridged.remote.kubectl("taint", "node", machine, f"{TAINT}:NoExecute")

        def deleted_there() -> bool:
            moves = get_one(bridged.home, "pod", "moves", namespace=bridged.namespace)
            conditions = {c["type"]: c for c in moves["status"]["conditions"]}
            reason = conditions.get("DisruptionTarget", {}).get("reason")
            return bool(reason == "DeletionByTaintManager")

        wait_for(deleted_there, "home has the reason for the deletion of one")
    finally:
        bridged.remote.start_component("kubelet")
        bridged.remote.kubectl("taint", "node", machine, f"{TAINT}-", check=False)

    wait_for(
        lambda: uids(bridged.remote_pods()).get("moves", first["moves"]) != first["moves"],
        "it is made again",
        seconds=LOST_SECONDS,
    )
    bridged.kubectl("wait", "--for=condition=Ready", "pod/stays", "pod/moves", "--timeout=120s")
    assert uids(bridged.home_pods()) == at_home
    assert uids(bridged.remote_pods())["stays"] == first["stays"]
    stays = get_one(bridged.home, "pod", "stays", namespace=bridged.namespace)
    assert stays["status"]["containerStatuses"][0]["restartCount"] == 0


def test_finished_pod_is_garbage_collected_on_both_sides(bridged: Bridged) -> None:
    """Home's controllers delete finished pods like any others."""
    bridged.apply(busybox(bridged.node, "ended", "exit 3", restart="Never"))
    wait_for(
        lambda: [pod["status"]["phase"] for pod in bridged.home_pods()] == ["Failed"],
        "it has ended",
    )
    bridged.kubectl("delete", "pod", "ended", "--timeout=60s")
    wait_for(lambda: not bridged.remote_pods(), "the remote pod was deleted, too")


#: tolerationSeconds of the pods for an unreachable node.
TOLERATION = 5
#: Two controllers with one pod each on the virtual node.
CONTROLLED = """
apiVersion: apps/v1
kind: {kind}
metadata: {{name: {name}}}
spec:
  replicas: 1
  serviceName: {name}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      nodeSelector: {{kubernetes.io/hostname: {node}}}
      tolerations:
        - {{key: cluster-bridge.io/virtual-node, operator: Exists}}
        - {{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute,
            tolerationSeconds: {toleration}}}
        - {{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute,
            tolerationSeconds: {toleration}}}
      terminationGracePeriodSeconds: 2
      containers: [{{name: main, image: {image}, command: [sleep, "3600"]}}]
"""


def controlled(kind: str, node: str, name: str) -> str:
    """A Deployment or a StatefulSet with one pod that soon leaves a lost node."""
    made = CONTROLLED.format(kind=kind, node=node, name=name, toleration=TOLERATION, image=BUSYBOX)
    return made.replace(f"  serviceName: {name}\n", "") if kind == "Deployment" else made


def test_pods_of_a_permanently_lost_node_are_replaced_and_none_runs_twice(
    bridged: Bridged,
) -> None:
    """The Deployment's pod is replaced at once, the StatefulSet's after the Node is deleted."""
    remote, (real,) = bridged.remote, bridged.remote.node_names
    with simulated_node(remote, f"doomed-{bridged.node}") as doomed:
        remote.kubectl("cordon", real)
        try:
            for kind, name in (("Deployment", "web"), ("StatefulSet", "db")):
                bridged.apply(controlled(kind, bridged.node, name))
            wait_for(
                lambda: len(ready := bridged.home_pods()) == 2 and all(map(is_ready, ready)),
                "both pods are Ready on the node that will die",
            )
            first = uids(bridged.remote_pods())
            assert doomed.reported >= set(first.values())
        finally:
            remote.kubectl("uncordon", real)
        (web,) = (name for name in first if name.startswith("web"))

        doomed.die()
        wait_for(
            lambda: not is_ready(get_one(remote, "node", doomed.name)),
            "the remote calls the node lost",
            seconds=LOST_SECONDS,
        )
        wait_for(
            lambda: any(
                is_ready(pod)
                for pod in bridged.home_pods()
                if pod["metadata"]["name"].startswith("web") and pod["metadata"]["name"] != web
            ),
            "the Deployment's pod is replaced",
            seconds=TOLERATION + 60,
        )
        terminating = {pod["metadata"]["name"]: pod for pod in bridged.home_pods()}
        for name in (web, "db-0"):
            assert terminating[name]["metadata"]["deletionTimestamp"], name
        assert uids(bridged.remote_pods())["db-0"] == first["db-0"]
        wait_for(lambda: bridged.events("RemoteNodeLost"), "an Event has the reason")

        # The remote's pod garbage collector ends its pods.
        remote.kubectl("delete", "node", doomed.name)
        wait_for(
            lambda: uids(bridged.remote_pods()).get("db-0", first["db-0"]) != first["db-0"],
            "the StatefulSet's pod is made again",
            seconds=LOST_SECONDS,
        )
        wait_for(
            lambda: len(now := bridged.home_pods()) == 2 and all(map(is_ready, now)),
            "both run",
        )
