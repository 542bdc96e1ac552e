"""A remote is lost and returns: home replaces its pods on another virtual node."""

from __future__ import annotations

import dataclasses
import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from bridge.clusters.wait_for_clusters import WAITING_SUFFIX
from e2e import bridge_process
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.conftest import usual_options
from e2e.faulty_remote import REFUSING, FaultyRemote
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import shell

#: Seconds that a glitch lasts, of which the node is NotReady for the second half.
GLITCH = 30.0
#: tolerationSeconds of the pods: longer than the node is NotReady in the glitch.
TOLERATION = 25
#: Seconds until home shows the loss of a remote, or its return.
REPORT = 40.0
#: The virtual nodes: the route to the remote of the first can be cut.
FIRST, OTHER = "first", "other"
_VIRTUAL = "cluster-bridge.io/virtual-node"


@dataclass(frozen=True)
class Fleet:
    """Two virtual nodes, which stand for different nodes of one remote."""

    home: Cluster
    remote: Cluster
    first: Bridge
    """The bridge of `FIRST`."""
    route: FaultyRemote
    """From that bridge to the remote."""

    def apply(self, *objects: Json) -> None:
        """Applies objects at home."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.home.kubectl("apply", "-f", "-", input=items)

    def pods(self, namespace: str) -> dict[str, Json]:
        """The namespace's pods at home, by name."""
        return {it["metadata"]["name"]: it for it in get(self.home, "pods", namespace=namespace)}

    def ready_on(self, node: str, namespace: str) -> int:
        """The number of the namespace's Ready pods on the virtual node."""
        pods = self.pods(namespace).values()
        return sum(is_ready(it) and it["spec"]["nodeName"] == node for it in pods)


@pytest.fixture(scope="module")
def fleet(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two joins of the remote, each for two of its nodes of 64 CPUs."""
    home, remote = simulated["home"], simulated["remote"]
    folder = tmp_path_factory.mktemp("failover")
    workers = [it["metadata"]["name"] for it in get(remote, "nodes")]
    for pool, names in ((FIRST, workers[:2]), (OTHER, workers[2:4])):
        remote.kubectl("label", "node", *names, f"pool={pool}", "--overwrite")
    with ExitStack() as stack:
        stack.callback(remote.kubectl, "label", "node", *workers, "pool-")
        route, through_route = _route(remote, folder)
        stack.callback(route.close)
        first = stack.enter_context(_joined(home, through_route, FIRST, folder))
        stack.enter_context(_joined(home, remote, OTHER, folder))
        yield Fleet(home, remote, first, route)


def _route(remote: Cluster, folder: Path) -> tuple[FaultyRemote, Cluster]:
    """A route to the remote that can be cut, and the remote through that route."""
    config = yaml.safe_load(remote.kubeconfig.read_text())
    [entry] = config["clusters"]
    server = urlsplit(entry["cluster"]["server"])
    assert server.hostname is not None
    assert server.port is not None
    route = FaultyRemote(server.hostname)
    route.target = server.port
    route.lead_to(route.target)
    # The certificates of API servers are valid for loopback.
    entry["cluster"]["server"] = f"https://127.0.0.1:{route.port}"
    path = folder / "route.yaml"
    path.write_text(yaml.safe_dump(config))
    return route, dataclasses.replace(remote, kubeconfig=path)


@contextmanager
def _joined(home: Cluster, remote: Cluster, node: str, folder: Path) -> Iterator[Bridge]:
    """A virtual node for the remote's nodes with its name in the label ``pool``."""
    options = (*usual_options(node), "--node-selector", f"pool={node}")
    bridge = Bridge(home, remote, folder / f"{node}.log", options)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.kill()
        leave = ("leave", "--name", node, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
        bridge_process.run(*leave, home=home)
        print(bridge.log.read_text())


@pytest.fixture
def namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace of home, which is empty at the end."""
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


def _workload(kind: str, name: str, namespace: str, replicas: int, **spec: Any) -> Json:
    """A Deployment or StatefulSet of such pods."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": _pod_spec(**spec)}
    own: Json = {"serviceName": name} if kind == "StatefulSet" else {}
    selector = {"matchLabels": labels}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": replicas, "selector": selector, "template": template, **own},
    }


def _on_virtual_nodes(seconds: int | None = None) -> Json:
    """The fields of a pod for any virtual node; ``seconds``: its tolerationSeconds for a lost
    one."""
    tolerations: list[Json] = [{"key": _VIRTUAL, "operator": "Exists"}]
    if seconds is not None:
        tolerations += [
            {"key": it, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
            for it in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
        ]
    return {"nodeSelector": {_VIRTUAL: "true"}, "tolerations": tolerations}


def _ready(fleet: Fleet) -> tuple[str, str]:
    """Status and reason of the condition Ready of the first virtual node."""
    conditions = get_one(fleet.home, "node", FIRST)["status"]["conditions"]
    [ready] = [it for it in conditions if it["type"] == "Ready"]
    return ready["status"], ready["reason"]


@contextmanager
def _cut(fleet: Fleet) -> Iterator[None]:
    """The bridge of the first virtual node does not reach the remote in the block, which begins
    once home shows it. Afterwards the node is Ready."""
    fleet.route.lead_to(REFUSING)
    try:
        wait_for(
            lambda: _ready(fleet) == ("False", "RemoteUnreachable"),
            "home shows the loss",
            seconds=REPORT,
        )
        yield
    finally:
        fleet.route.lead_to(fleet.route.target)
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
    fleet: Fleet, namespace: str
) -> None:
    """The bridge is killed and started again during the loss. Afterwards no pod is surplus."""
    tolerant = _on_virtual_nodes(TOLERATION)
    # All pods start on one node, whatever the scheduler prefers.
    fleet.home.kubectl("cordon", OTHER)
    fleet.apply(
        _workload("Deployment", "web", namespace, 3, **tolerant),
        _workload("StatefulSet", "db", namespace, 1, **tolerant),
        _pod("goes", namespace, **_on_virtual_nodes()),
    )
    wait_for(lambda: fleet.ready_on(FIRST, namespace) == 5, "five pods run")
    fleet.home.kubectl("uncordon", OTHER)
    before, there = uids([*fleet.pods(namespace).values()]), _remote_pods(fleet, namespace)
    assert there.keys() == before.keys()
    with _unmanaged(fleet, namespace):
        began = time.monotonic()
        with _cut(fleet):
            time.sleep(max(0.0, began + GLITCH - time.monotonic()))
        wait_for(lambda: fleet.ready_on(FIRST, namespace) == 5, "the pods are Ready again")
        assert uids([*fleet.pods(namespace).values()]) == before
        assert _remote_pods(fleet, namespace) == there

        with _cut(fleet):
            fleet.home.kubectl("delete", "pod", "goes", "-n", namespace, "--wait=false")
            wait_for(
                lambda: fleet.ready_on(OTHER, namespace) == 3,
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
                lambda: fleet.ready_on(OTHER, namespace) == 4, "no pod goes to the lost remote"
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
        assert fleet.ready_on(OTHER, namespace) >= 4
        wait_for(lambda: _remote_pods(fleet, namespace).keys() == pods.keys(), "no pod is surplus")


def _restart(fleet: Fleet) -> None:
    """Kills the bridge of the lost remote, and starts it as a supervisor does."""
    bridge = fleet.first
    bridge.kill()
    with socket.create_server(("", 0)) as free:
        port = int(free.getsockname()[1])
    bridge.args = [*bridge.args, f"--health-port={port}"]
    bridge.launch()
    bridge.wait_for_log(WAITING_SUFFIX)
