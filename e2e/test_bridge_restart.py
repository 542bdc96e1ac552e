"""The bridge stops, crashes and restarts without effect on running pods."""

from __future__ import annotations

import time

import pytest

from e2e.conftest import Bridged
from e2e.kubectl import Json, get, uids, versions, wait_for
from e2e.workload_manifests import busybox, web

#: Seconds after a restart in which nothing may be written: all caches have been processed.
QUIET = 5.0


def _written(bridged: Bridged) -> list[Json]:
    """Resource versions of all objects that the bridge could write, except Lease and Node."""
    kinds = "pods,configmaps,secrets,services"
    return [
        *get(bridged.remote, kinds, namespace=bridged.remote_namespace),
        *get(bridged.remote, "namespaces", selector=f"cluster-bridge.io/node={bridged.node}"),
        *get(bridged.home, f"{kinds},events", namespace=bridged.namespace),
    ]


@pytest.mark.parametrize(
    "crash",
    [
        pytest.param(False, id="stopped with Ctrl-C"),
        pytest.param(True, id="killed", marks=pytest.mark.core),
    ],
)
def test_restart_changes_nothing(bridged: Bridged, crash: bool) -> None:
    """Same remote UIDs, and no write in either cluster except to the Lease and the Node."""
    bridged.apply(web(bridged.node))
    bridged.apply(busybox(bridged.node, "once", "sleep 3600", restart="Never"))
    bridged.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    bridged.kubectl("wait", "--for=condition=Ready", "pod/once", "--timeout=60s")
    wait_for(lambda: _is_still(bridged), "the start is over")
    before, running = versions(_written(bridged)), uids(bridged.remote_pods())

    if crash:
        bridged.bridge.kill()
    else:
        assert bridged.bridge.stop() == 0
    assert uids(bridged.remote_pods()) == running, "workloads go on without the bridge"
    bridged.bridge.start()
    time.sleep(QUIET)

    assert versions(_written(bridged)) == before
    assert uids(bridged.remote_pods()) == running
    bridged.kubectl("exec", "once", "--", "true")


def _is_still(bridged: Bridged) -> bool:
    first = versions(_written(bridged))
    time.sleep(2)
    return versions(_written(bridged)) == first


@pytest.mark.core
def test_changes_during_the_absence_are_applied(bridged: Bridged) -> None:
    """A pod that was deleted, one that was created, and one that ended while no bridge ran."""
    bridged.apply(busybox(bridged.node, "to-go", "sleep 3600"))
    bridged.apply(busybox(bridged.node, "ends", "sleep 4; exit 3", restart="Never"))
    bridged.kubectl("wait", "--for=condition=Ready", "pod/to-go", "pod/ends", "--timeout=60s")
    assert bridged.bridge.stop() == 0

    bridged.kubectl("delete", "pod", "to-go", "--wait=false")
    bridged.apply(busybox(bridged.node, "made", "sleep 3600"))
    wait_for(
        lambda: any(p["status"]["phase"] == "Failed" for p in bridged.remote_pods()),
        "the pod that ends has ended in the remote",
    )
    bridged.bridge.start()

    bridged.kubectl("wait", "--for=condition=Ready", "pod/made", "--timeout=60s")
    wait_for(
        lambda: "to-go" not in uids(bridged.home_pods()) | uids(bridged.remote_pods()),
        "the deleted pod no longer exists on both sides",
    )

    def ended() -> int | None:
        for pod in bridged.home_pods():
            if pod["metadata"]["name"] == "ends" and pod["status"]["phase"] == "Failed":
                code: int = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
                return code
        return None

    assert wait_for(ended, "home knows the end of the other") == 3
