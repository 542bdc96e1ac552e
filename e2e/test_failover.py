"""A remote is lost and returns: controllers replace its pods on another virtual node."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from e2e.clusters.cluster import Cluster
from e2e.faulty_remote import REFUSING
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.remote_pools import Pools, joined_pools
from e2e.workload_manifests import loss_tolerations, shell, workload

#: Seconds that a glitch lasts, of which the node is NotReady for the second half.
GLITCH = 30.0
#: tolerationSeconds of the pods: longer than the node is NotReady in the glitch.
TOLERATION = 25
#: Seconds until the Node shows the loss of a remote, or its return.
REPORT = 40.0
#: The virtual nodes; a test can cut the first from the remote.
FIRST, OTHER = "first", "other"
_VIRTUAL = "cluster-bridge.io/virtual-node"


@pytest.fixture(scope="module")
def fleet(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pools]:
    """Two virtual nodes."""
    folder = tmp_path_factory.mktemp("failover")
    with joined_pools(simulated, folder, FIRST, OTHER) as pools:
        yield pools


def _ready_on(fleet: Pools, node: str, namespace: str) -> int:
    """The number of the namespace's Ready pods on the virtual node."""
    pods = fleet.pods(namespace).values()
    return sum(is_ready(pod) and pod["spec"]["nodeName"] == node for pod in pods)


@pytest.fixture
def namespace(fleet: Pools) -> Iterator[str]:
    """A namespace of the home cluster, which is empty at the end."""
    name = f"lost-{uuid.uuid4().hex[:6]}"
    create_namespace(fleet.home, name)
    yield name
    kinds = "deployments,statefulsets,pods"
    fleet.home.kubectl("delete", kinds, "--all", "-n", name, "--wait=false")
    wait_for(lambda: not fleet.pods(name), f"namespace {name} is empty")
    fleet.home.kubectl("delete", "namespace", name, "--wait=false")


def _pod_spec(**spec: Any) -> Json:
    """The spec of a pod that runs until it is ended."""
    container = {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": "1"}}}
    return {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}


def _pod(name: str, namespace: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": _pod_spec(**spec),
    }


def _on_virtual_nodes(seconds: int | None = None) -> Json:
    """The fields of a pod for any virtual node; ``seconds``: its tolerationSeconds for a lost
    one."""
    tolerations: list[Json] = [{"key": _VIRTUAL, "operator": "Exists"}]
    if seconds is not None:
        tolerations += loss_tolerations(seconds)
    return {"nodeSelector": {_VIRTUAL: "true"}, "tolerations": tolerations}


def _ready(fleet: Pools) -> tuple[str, str]:
    """Status and reason of the condition Ready of the first virtual node."""
    conditions = get_one(fleet.home, "node", FIRST)["status"]["conditions"]
    [ready] = [it for it in conditions if it["type"] == "Ready"]
    return ready["status"], ready["reason"]


@contextmanager
def _cut(fleet: Pools) -> Iterator[None]:
    """The bridge of the first virtual node does not reach the remote in the block, which begins
    once the Node shows it. Afterwards the node is Ready."""
    fleet.proxy.lead_to(REFUSING)
    try:
        wait_for(
            lambda: _ready(fleet) == ("False", "RemoteUnreachable"),
            "the Node shows the loss",
            seconds=REPORT,
        )
        yield
    finally:
        fleet.proxy.lead_to(fleet.proxy.target)
    wait_for(lambda: _ready(fleet)[0] == "True", "the Node shows the return", seconds=REPORT)


def _remote_pods(fleet: Pools, namespace: str) -> dict[str, str]:
    """Name → UID of the remote pods of both virtual nodes."""
    found = get(fleet.remote, "pods", namespace=f"{namespace}-e2e")
    return uids(
        [it for it in found if "cluster-bridge.io/node" in (it["metadata"].get("labels") or ())]
    )


@contextmanager
def _unmanaged(fleet: Pools, namespace: str) -> Iterator[None]:
    """Unmanaged objects in the remote and in the bridge's namespace there stay as they are."""
    made: list[tuple[str, str]] = []
    for where in ("default", f"{namespace}-e2e"):
        objects = [
            _pod("theirs", where),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}},
        ]
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        fleet.remote.kubectl("apply", "-n", where, "-f", "-", input=items)
        made += [(where, kind) for kind in ("pod", "configmap")]

    def found() -> list[str]:
        return [
            get_one(fleet.remote, kind, "theirs", namespace=where)["metadata"]["uid"]
            for where, kind in made
        ]

    before = found()
    yield
    assert found() == before
    for where, kind in made:
        fleet.remote.kubectl("delete", kind, "theirs", "-n", where, "--wait=false")


def test_glitch_evicts_nothing_and_pods_of_a_lost_remote_are_replaced(
    fleet: Pools, namespace: str
) -> None:
    """The bridge is killed and started again during the loss. Afterwards no pod is surplus."""
    tolerant = _on_virtual_nodes(TOLERATION)
    # All pods start on one node, whatever the scheduler prefers.
    fleet.home.kubectl("cordon", OTHER)
    fleet.apply(
        workload("Deployment", "web", namespace, 3, _pod_spec(**tolerant)),
        workload("StatefulSet", "db", namespace, 1, _pod_spec(**tolerant)),
        _pod("goes", namespace, **_on_virtual_nodes()),
    )
    wait_for(lambda: _ready_on(fleet, FIRST, namespace) == 5, "five pods run")
    fleet.home.kubectl("uncordon", OTHER)
    before, there = uids([*fleet.pods(namespace).values()]), _remote_pods(fleet, namespace)
    assert there.keys() == before.keys()
    with _unmanaged(fleet, namespace):
        began = time.monotonic()
        with _cut(fleet):
            time.sleep(max(0.0, began + GLITCH - time.monotonic()))
        wait_for(lambda: _ready_on(fleet, FIRST, namespace) == 5, "the pods are Ready again")
        assert uids([*fleet.pods(namespace).values()]) == before
        assert _remote_pods(fleet, namespace) == there

        with _cut(fleet):
            fleet.home.kubectl("delete", "pod", "goes", "-n", namespace, "--wait=false")
            wait_for(
                lambda: _ready_on(fleet, OTHER, namespace) == 3,
                "the Deployment has its pods on the other virtual node",
                seconds=TOLERATION + REPORT,
            )
            old = {name: it for name, it in fleet.pods(namespace).items() if name in before}
            assert old.keys() == before.keys(), "whether they still run is not known"
            assert all("deletionTimestamp" in it["metadata"] for it in old.values())
            assert uids([*old.values()]) == before, "a StatefulSet never has two of one name"
            _restart(fleet)
            fleet.home.kubectl("scale", "deployment", "web", "--replicas=4", "-n", namespace)
            wait_for(
                lambda: _ready_on(fleet, OTHER, namespace) == 4, "no pod goes to the lost remote"
            )
            assert _ready(fleet)[0] != "True"

        def settled() -> bool:
            pods = fleet.pods(namespace)
            return (
                len(pods) == 5
                and all(map(is_ready, pods.values()))
                and not before.keys() - {"db-0"} & pods.keys()
            )

        wait_for(settled, "home has none of the previous pods but the StatefulSet's")
        pods = fleet.pods(namespace)
        assert uids([pods["db-0"]])["db-0"] != before["db-0"]
        assert _ready_on(fleet, OTHER, namespace) >= 4
        wait_for(lambda: _remote_pods(fleet, namespace).keys() == pods.keys(), "no pod is surplus")


def _restart(fleet: Pools) -> None:
    """Kills the bridge of the lost remote, and starts it as a supervisor does."""
    bridge = fleet.first
    bridge.kill()
    with socket.create_server(("", 0)) as free:
        port = int(free.getsockname()[1])
    bridge.args = [*bridge.args, f"--health-port={port}"]
    bridge.launch()
    bridge.wait_for_log(WAITING_SUFFIX)
