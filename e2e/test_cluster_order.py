"""The order of clusters, by home's own engines: `bridge offload --tier`, the real kube-scheduler
with the profile of manifests/kube-scheduler, and the real descheduler with manifests/descheduler.

Home and the remote have simulated nodes of 64 CPUs. The virtual nodes ``cheap`` and ``dear`` stand
for two of the remote's nodes each.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from e2e import bridge_process
from e2e.bridge_process import Bridge
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.faulty_remote import REFUSING, FaultyRemote
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.workload_manifests import shell

MANIFESTS = Path(__file__).parent.parent / "manifests"
SCHEDULER = MANIFESTS / "kube-scheduler" / "strict-order.yaml"
DESCHEDULER = MANIFESTS / "descheduler" / "return-home.yaml"
#: Seconds between cycles of the descheduler.
CYCLE = 2
#: Seconds until home shows the loss of a remote, or its return.
REPORT = 40.0
#: Seconds that pods tolerate a node that is NotReady.
TOLERATION = 3


@dataclass
class Clusters:
    """Home with the scheduler, and two virtual nodes."""

    home: Cluster
    remote: Cluster
    way: FaultyRemote
    """From the bridge of ``cheap`` to the remote."""

    def apply(self, *objects: Json) -> None:
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.home.kubectl("apply", "-f", "-", input=items)

    def pods(self, namespace: str) -> dict[str, Json]:
        """The pods at home that have not failed, by name."""
        found = get(self.home, "pods", namespace=namespace)
        return {it["metadata"]["name"]: it for it in found if it["status"]["phase"] != "Failed"}

    def wait_for_places(self, namespace: str, **places: int) -> None:
        """Waits until so many pods are Ready on each node, and no other pod exists."""
        wanted = Counter(
            {self.own_node() if name == "home" else name: n for name, n in places.items()}
        )

        def found() -> Counter[str]:
            return Counter(
                it["spec"].get("nodeName", "") if is_ready(it) else "not ready"
                for it in self.pods(namespace).values()
                if "deletionTimestamp" not in it["metadata"]
            )

        try:
            wait_for(lambda: found() == wanted, f"pods are at {dict(wanted)}", seconds=40)
        except AssertionError as error:
            pods = self.home.kubectl("get", "pods", "-n", namespace, "-o", "wide").stdout
            events = self.home.kubectl("get", "events", "-n", namespace).stdout
            raise AssertionError(f"{error}: {found()}\n{pods}\n{events}") from None

    def own_node(self) -> str:
        """The name of home's own node."""
        names: set[str] = {it["metadata"]["name"] for it in get(self.home, "nodes")}
        [own] = names - {"cheap", "dear"}
        return own


@pytest.fixture(scope="module")
def ordered(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clusters]:
    """Two joins, and the scheduler of the manifest beside home's own."""
    home, remote = simulated["home"], simulated["remote"]
    folder = tmp_path_factory.mktemp("ordered")
    workers = [it["metadata"]["name"] for it in get(remote, "nodes")]
    for pool, names in (("cheap", workers[:2]), ("dear", workers[2:4])):
        remote.kubectl("label", "node", *names, f"pool={pool}", "--overwrite")
    with ExitStack() as stack:
        way, through_way = _way(remote, folder)
        stack.callback(way.close)
        stack.enter_context(_joined(home, through_way, "cheap", folder))
        stack.enter_context(_joined(home, remote, "dear", folder))
        stack.enter_context(_scheduler(home, folder))
        yield Clusters(home, remote, way)


def _way(remote: Cluster, folder: Path) -> tuple[FaultyRemote, Cluster]:
    """A way to the remote that a test can cut, and the remote by that way."""
    config = yaml.safe_load(remote.kubeconfig.read_text())
    [entry] = config["clusters"]
    server = urlsplit(entry["cluster"]["server"])
    assert server.hostname is not None
    assert server.port is not None
    way = FaultyRemote(server.hostname)
    way.target = server.port
    way.lead_to(way.target)
    # The certificates of API servers are valid for loopback.
    entry["cluster"]["server"] = f"https://127.0.0.1:{way.port}"
    path = folder / "way.yaml"
    path.write_text(yaml.safe_dump(config))
    return way, dataclasses.replace(remote, kubeconfig=path)


@contextmanager
def _joined(home: Cluster, remote: Cluster, name: str, folder: Path) -> Iterator[None]:
    """A virtual node for the remote's nodes of this pool."""
    options = (
        *("--name", name, "--home-name", "e2e", "--port", "0", "--node-selector", f"pool={name}"),
        *("--labels", f"class={name}", "--unschedulable-timeout", "4"),
    )
    bridge = Bridge(home, remote, folder / f"{name}.log", options)
    bridge.start()
    try:
        yield
    finally:
        bridge.kill()
        leave = ("leave", name, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
        bridge_process.run(*leave, home=home)
        print(bridge.log.read_text())


@contextmanager
def _scheduler(home: Cluster, folder: Path) -> Iterator[None]:
    """The real kube-scheduler with the configuration of the manifest."""
    settings = settings_from_environment()
    recipe = go_recipes.kubernetes(settings.kubernetes)
    program = go_build.programs(recipe, settings.cache, silent) / "kube-scheduler"
    [content] = (
        it["data"]["config.yaml"]
        for it in yaml.safe_load_all(SCHEDULER.read_text())
        if it["kind"] == "ConfigMap"
    )
    config = yaml.safe_load(content)
    config["clientConnection"] = {"kubeconfig": str(home.kubeconfig)}
    file, log = folder / "scheduler.yaml", folder / "scheduler.log"
    file.write_text(yaml.safe_dump(config))
    with _running([program, f"--config={file}", "--secure-port=0"], log):
        yield


@contextmanager
def _descheduler(home: Cluster, folder: Path) -> Iterator[None]:
    """The real descheduler with the policy of the manifest."""
    cache = settings_from_environment().cache
    program = go_build.programs(go_recipes.descheduler(), cache, silent) / "descheduler"
    options = (
        *(f"--client-connection-kubeconfig={home.kubeconfig}", "--secure-port=0", "--v=2"),
        *(f"--policy-config-file={DESCHEDULER}", f"--descheduling-interval={CYCLE}s"),
    )
    with _running([program, *options], folder / "descheduler.log"):
        yield


@contextmanager
def _running(command: list[str | Path], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
        assert process.poll() is None, f"{command[0]} ended"
    finally:
        process.kill()
        process.wait()
        print(log.read_text()[-5000:])


@pytest.fixture
def namespace(ordered: Clusters) -> Iterator[str]:
    """An offloaded namespace: home first, then the cheap remote, then the dear one."""
    name = f"order-{uuid.uuid4().hex[:6]}"
    create_namespace(ordered.home, name)
    tiers = ("--tier", "class=cheap", "--tier", "class=dear")
    done = bridge_process.run("offload", name, *tiers, home=ordered.home)
    assert done.returncode == 0, done.stderr
    yield name
    bridge_process.run("unoffload", name, home=ordered.home)
    kinds = "deployments,statefulsets,pods"
    ordered.home.kubectl("delete", kinds, "--all", "-n", name, "--wait=false")
    wait_for(lambda: not get(ordered.home, "pods", namespace=name), "the namespace is empty")
    ordered.home.kubectl("delete", "namespace", name, "--wait=false")


def workload(kind: str, name: str, namespace: str, *, cpu: int, replicas: int) -> Json:
    """A Deployment or StatefulSet of pods for the strict scheduler."""
    labels = {"app": name}
    container = {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": str(cpu)}}}
    tolerations = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION}
        for key in ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    ]
    pod: dict[str, Any] = {
        "schedulerName": "strict-order",
        "containers": [container],
        "tolerations": tolerations,
        "terminationGracePeriodSeconds": 1,
    }
    spec: dict[str, Any] = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


def test_home_fills_first_then_the_cheap_remote_then_the_dear_one(
    ordered: Clusters, namespace: str
) -> None:
    """Each node of 64 CPUs holds two pods."""
    for replicas, places in (
        (2, {"home": 2}),
        (6, {"home": 2, "cheap": 4}),
        (9, {"home": 2, "cheap": 4, "dear": 3}),
    ):
        ordered.apply(workload("Deployment", "web", namespace, cpu=30, replicas=replicas))
        ordered.wait_for_places(namespace, **places)


def test_remote_whose_sum_fits_and_no_node_is_left_out(ordered: Clusters, namespace: str) -> None:
    """The cheap remote has 128 CPUs, and two nodes that hold one pod each."""
    ordered.apply(workload("Deployment", "fills-home", namespace, cpu=60, replicas=1))
    ordered.wait_for_places(namespace, home=1)
    ordered.apply(workload("Deployment", "web", namespace, cpu=40, replicas=4))
    ordered.wait_for_places(namespace, home=1, cheap=2, dear=2)
    before = uids([*ordered.pods(namespace).values()])

    def has_soft_taint() -> bool:
        taints = get_one(ordered.home, "node", "cheap")["spec"].get("taints") or []
        return any(it["key"] == "cluster-bridge.io/unschedulable" for it in taints)

    wait_for(lambda: not has_soft_taint(), "the cheap remote is open again", seconds=90)
    time.sleep(10)  # turns of the scheduler and of the bridge
    assert uids([*ordered.pods(namespace).values()]) == before
    assert len(get(ordered.home, "pods", namespace=namespace)) <= 7, "no loop of failed pods"


def test_pods_of_a_lost_remote_go_to_the_next_tier_and_a_stateful_pod_waits(
    ordered: Clusters, namespace: str
) -> None:
    ordered.apply(workload("Deployment", "fills-home", namespace, cpu=60, replicas=1))
    ordered.wait_for_places(namespace, home=1)
    ordered.apply(
        workload("Deployment", "web", namespace, cpu=10, replicas=2),
        workload("StatefulSet", "db", namespace, cpu=10, replicas=1),
    )
    ordered.wait_for_places(namespace, home=1, cheap=3)
    first = ordered.pods(namespace)["db-0"]["metadata"]["uid"]
    ordered.way.lead_to(REFUSING)
    try:
        wait_for(
            lambda: not is_ready(get_one(ordered.home, "node", "cheap")),
            "home shows the loss",
            seconds=REPORT,
        )
        ordered.wait_for_places(namespace, home=1, dear=2)
        # Its pod may still run in the lost remote.
        db = ordered.pods(namespace)["db-0"]["metadata"]
        assert (db["uid"], "deletionTimestamp" in db) == (first, True)
    finally:
        ordered.way.lead_to(ordered.way.target)
    wait_for(lambda: is_ready(get_one(ordered.home, "node", "cheap")), "it returns", seconds=REPORT)

    def is_replaced() -> bool:
        pod = ordered.pods(namespace).get("db-0", {"metadata": {"uid": first}})
        return pod["metadata"]["uid"] != first and is_ready(pod)

    wait_for(is_replaced, "the stateful pod runs again once the old one has ended")


def test_pods_return_to_home_once_it_has_room(
    ordered: Clusters, namespace: str, tmp_path: Path
) -> None:
    """Within their PodDisruptionBudget, and none twice."""
    ordered.apply(workload("Deployment", "fills-home", namespace, cpu=60, replicas=1))
    ordered.wait_for_places(namespace, home=1)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    ordered.apply(budget, workload("Deployment", "web", namespace, cpu=30, replicas=5))
    ordered.wait_for_places(namespace, home=1, cheap=4, dear=1)
    before = uids([*ordered.pods(namespace).values()])
    with _descheduler(ordered.home, tmp_path):
        time.sleep(5 * CYCLE)
        assert uids([*ordered.pods(namespace).values()]) == before, "home has no room"

        seen, least = set(before.values()), 5
        ordered.home.kubectl("delete", "deployment", "fills-home", "-n", namespace)

        def has_returned() -> bool:
            nonlocal least
            web = [it for name, it in ordered.pods(namespace).items() if name.startswith("web")]
            seen.update(it["metadata"]["uid"] for it in web)
            least = min(least, sum(map(is_ready, web)))
            home = [it for it in web if it["spec"].get("nodeName") == ordered.own_node()]
            return len(home) == 2 and all(map(is_ready, web)) and len(web) == 5

        wait_for(has_returned, "two pods are at home", seconds=60)
        deadline = time.monotonic() + 10 * CYCLE
        while time.monotonic() < deadline:
            assert has_returned()
            time.sleep(0.5)
    assert least >= 4
    assert len(seen) == len(before) + 2, "two evictions, and two new pods"
