"""A remote is lost and returns: its pods are replaced by the tiers of their policy, and go back."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from e2e import bridge_process
from e2e.clusters.cluster import Cluster, Provisioner
from e2e.faulty_remote import REFUSING
from e2e.kubectl import Json, get, get_one, is_ready, uids, wait_for
from e2e.placement_fleet import (
    TIERS,
    Fleet,
    deployment,
    placed_namespace,
    pod,
    running_fleet,
    stateful_set,
)
from e2e.storage_classes import hostpath
from e2e.workload_manifests import volume_claim
from translators.timestamps import parse_time

#: Seconds that a glitch lasts, of which the node is NotReady for the second half.
GLITCH = 30.0
#: tolerationSeconds of the pods: longer than the node is NotReady in the glitch.
TOLERATION = 25
#: Seconds until home shows the loss of a remote, or its return.
REPORT = 40.0
#: Seconds between two pods that return (a pace of 20 in a minute).
PACE = 3


@pytest.fixture(scope="module")
def fleet(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A fleet of two virtual nodes with a placer; the remote provisions volumes."""
    simulated["remote"].provision_volumes(Provisioner.HOSTPATH, print)
    with running_fleet(simulated, tmp_path_factory.mktemp("failover")) as found:
        yield found


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace whose pods go to the cheap remote, then to the expensive one."""
    with placed_namespace(fleet) as found:
        fleet.policy(found, tiers=TIERS[1:])
        yield found


def _tolerations(seconds: int) -> list[Json]:
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    return [
        {"key": it, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for it in keys
    ]


def _ready(fleet: Fleet) -> tuple[str, str]:
    """Status and reason of the condition Ready of the cheap virtual node."""
    conditions = get_one(fleet.home, "node", "cheap")["status"]["conditions"]
    [ready] = [it for it in conditions if it["type"] == "Ready"]
    return ready["status"], ready["reason"]


@contextmanager
def _cut(fleet: Fleet) -> Iterator[None]:
    """The bridge of the cheap virtual node does not reach the remote in the block, which begins
    once home shows it. Afterwards the node is Ready."""
    fleet.way.lead_to(REFUSING)
    try:
        wait_for(
            lambda: _ready(fleet) == ("False", "RemoteUnreachable"),
            "home shows the loss",
            seconds=REPORT,
        )
        yield
    finally:
        fleet.way.lead_to(fleet.way.target)
    wait_for(lambda: _ready(fleet)[0] == "True", "home shows the return", seconds=REPORT)


def _remote_pods(fleet: Fleet, namespace: str) -> dict[str, str]:
    """Name → UID of the remote pods of both virtual nodes."""
    found = get(fleet.remote, "pods", namespace=f"{namespace}-e2e")
    return uids(
        [it for it in found if "cluster-bridge.io/node" in (it["metadata"].get("labels") or ())]
    )


@contextmanager
def _unmanaged(fleet: Fleet, namespace: str) -> Iterator[None]:
    """Unmanaged objects in the remote and in the bridge's namespace there stay as they are."""
    made: list[tuple[str, str]] = []
    for where in ("default", f"{namespace}-e2e"):
        objects = [
            pod("theirs", where, 1),
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


def test_glitch_evicts_nothing_and_a_lost_remote_is_replaced_by_tier(
    fleet: Fleet, namespace: str
) -> None:
    """The bridge is killed and started again during the loss. Afterwards no pod is surplus."""
    tolerant = {"tolerations": _tolerations(TOLERATION)}
    fleet.apply(
        deployment("web", namespace, 1, 3, **tolerant),
        stateful_set("db", namespace, 1, 1, **tolerant),
        pod("goes", namespace, 1),
    )
    fleet.wait_for_places(namespace, cheap=5)
    before, there = uids([*fleet.pods(namespace).values()]), _remote_pods(fleet, namespace)
    assert there.keys() == before.keys()
    with _unmanaged(fleet, namespace):
        began = time.monotonic()
        with _cut(fleet):
            time.sleep(max(0.0, began + GLITCH - time.monotonic()))
        fleet.wait_for_places(namespace, cheap=5)
        assert uids([*fleet.pods(namespace).values()]) == before
        assert _remote_pods(fleet, namespace) == there

        with _cut(fleet):
            fleet.home.kubectl("delete", "pod", "goes", "-n", namespace, "--wait=false")
            wait_for(
                lambda: fleet.places(namespace)["expensive"] == 3,
                "the Deployment has its pods in the next tier",
                seconds=TOLERATION + REPORT,
            )
            old = {name: it for name, it in fleet.pods(namespace).items() if name in before}
            assert old.keys() == before.keys(), "whether they still run is not known"
            assert all("deletionTimestamp" in it["metadata"] for it in old.values())
            assert uids([*old.values()]) == before, "a StatefulSet never has two of one name"
            _restart(fleet)
            fleet.home.kubectl("scale", "deployment", "web", "--replicas=4", "-n", namespace)
            wait_for(
                lambda: fleet.places(namespace)["expensive"] == 4,
                "no pod goes to the lost remote",
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
        assert fleet.places(namespace)["expensive"] >= 4
        wait_for(lambda: _remote_pods(fleet, namespace).keys() == pods.keys(), "no pod is surplus")


def _restart(fleet: Fleet) -> None:
    """Kills the bridge of the lost remote, and starts it as a supervisor does."""
    bridge = fleet.bridges["cheap"]
    bridge.kill()
    with socket.create_server(("", 0)) as free:
        port = int(free.getsockname()[1])
    bridge.args = [*bridge.args, f"--health-port={port}"]
    bridge.launch()
    bridge.wait_for_log(WAITING_SUFFIX)


@contextmanager
def _occupied(fleet: Fleet) -> Iterator[None]:
    """Unmanaged pods use nearly all of the cheap nodes' CPUs."""
    fillers = [
        pod(f"filler-{it}", "default", 63, nodeSelector={"pool": "cheap"}) for it in range(2)
    ]
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": fillers})
    fleet.remote.kubectl("apply", "-f", "-", input=items)
    try:
        wait_for(lambda: _free_cpu(fleet) < 2000, "the cheap remote is full")
        yield
    finally:
        fleet.remote.kubectl("delete", "-f", "-", "--wait=false", input=items)


def _free_cpu(fleet: Fleet) -> int:
    """The CPUs of the cheap remote's emptiest node by its published room, in thousandths."""
    room = get_one(fleet.home, "configmap", "room-cheap", namespace="cluster-bridge")
    return max((it["free"].get("cpu", 0) for it in json.loads(room["data"]["room"])), default=0)


@contextmanager
def _home_class(fleet: Fleet, name: str) -> Iterator[None]:
    """A class of home whose volumes are in the remote."""
    with hostpath(fleet.remote, name):
        printed = bridge_process.run("storage-class", name, "--remote-class", name).stdout
        fleet.home.kubectl("apply", "-f", "-", input=printed)
        try:
            yield
        finally:
            fleet.home.kubectl("delete", "storageclass", name, "--wait=false")


def test_pods_return_to_the_cheap_remote_once_it_has_room(fleet: Fleet, namespace: str) -> None:
    """At the policy's pace, except what a PodDisruptionBudget protects and what has data."""
    failback = {"podsPerMinute": 60 // PACE, "readyFor": "5s"}
    fleet.policy(namespace, tiers=TIERS[1:], failback=failback)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "kept", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }
    with _home_class(fleet, namespace):
        fleet.home.kubectl(
            "apply", "-n", namespace, "-f", "-", input=volume_claim("data", namespace, "8Mi")
        )
        with _occupied(fleet):
            fleet.apply(
                budget,
                deployment("data", namespace, 2, 1, volumes=[volume]),
                deployment("kept", namespace, 2, 1),
                deployment("web", namespace, 2, 3),
            )
            fleet.wait_for_places(namespace, expensive=5)
        before = fleet.pods(namespace)
        wait_for(
            lambda: fleet.places(namespace) == {"cheap": 3, "expensive": 2},
            "three pods return",
            seconds=90,
        )
        after = fleet.pods(namespace)
        stayed = {name.partition("-")[0] for name in before.keys() & after.keys()}
        assert stayed == {"data", "kept"}
        created = sorted(_created(it) for name, it in after.items() if name not in before)
        assert (created[-1] - created[0]).total_seconds() >= 2 * PACE - 1
        events = get(fleet.home, "events", namespace=namespace)
        returned = [it for it in events if it["reason"] == "ReturnsToEarlierTier"]
        assert {it["involvedObject"]["name"] for it in returned} == before.keys() - after.keys()
        kinds = ("deployments,persistentvolumeclaims", "--all")
        fleet.home.kubectl("delete", *kinds, "-n", namespace, "--wait=false")
        wait_for(
            lambda: not get(fleet.home, "persistentvolumes"),
            "the volume is deleted",
        )


def _created(obj: Json) -> datetime:
    return parse_time(obj["metadata"]["creationTimestamp"])
