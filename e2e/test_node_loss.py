"""A machine of the remote is lost: home tells it, and nothing is lost or run twice."""

from __future__ import annotations

from e2e.conftest import Bridged
from e2e.kubectl import get_one, is_ready, uids, wait_for
from e2e.workloads import busybox

#: Seconds until the remote calls a silent node lost (its controller-manager's grace is 50), and
#: until a kubelet that is back has ended what it should no longer run.
LOST_SECONDS = 120.0
#: What the remote's administrator says of the machine.
TAINT = "example.com/lost"


def test_pods_of_a_lost_machine_are_not_ready_and_come_back(bridged: Bridged) -> None:
    """One that tolerates the loss goes on as it is; one that does not is made again."""
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
            "home tells that they are not ready",
            seconds=LOST_SECONDS,
        )
        # Where all nodes are lost at once, the remote's own controller waits with this.
        bridged.remote.kubectl("taint", "node", machine, f"{TAINT}:NoExecute")

        def deleted_there() -> bool:
            moves = get_one(bridged.home, "pod", "moves", namespace=bridged.namespace)
            told = {c["type"]: c for c in moves["status"]["conditions"]}
            reason = told.get("DisruptionTarget", {}).get("reason")
            return bool(reason == "DeletionByTaintManager")

        wait_for(deleted_there, "home tells why one of them goes")
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


def test_a_pod_that_ended_is_collected_on_both_sides(bridged: Bridged) -> None:
    """What home's controllers do with pods that have ended is a deletion like any other."""
    bridged.apply(busybox(bridged.node, "ended", "exit 3", restart="Never"))
    wait_for(
        lambda: [pod["status"]["phase"] for pod in bridged.home_pods()] == ["Failed"],
        "it has ended",
    )
    bridged.kubectl("delete", "pod", "ended", "--timeout=60s")
    wait_for(lambda: not bridged.remote_pods(), "the remote's is gone too")
