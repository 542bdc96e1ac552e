"""The order of clusters: `bridge offload --tier`, the real kube-scheduler with the profile of
manifests/kube-scheduler, and the real descheduler with the policy of manifests/descheduler.

All nodes are simulated and have 64 CPUs: one in the home cluster, two in each pool of the remote.
"""

from __future__ import annotations

import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e import bridge_process
from e2e.clusters import go_build, go_recipes
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.faulty_server import REFUSING
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, uids, wait_for
from e2e.remote_pools import Pools, joined_pools
from e2e.workload_manifests import loss_tolerations, shell, workload

MANIFESTS = Path(__file__).parent.parent / "manifests"
SCHEDULER = MANIFESTS / "kube-scheduler" / "strict-order.yaml"
DESCHEDULER = MANIFESTS / "descheduler" / "return-home.yaml"
#: Seconds between cycles of the descheduler.
CYCLE = 2
#: Seconds until the Node shows the loss of a remote, or its return.
REPORT = 40.0
#: Seconds that pods tolerate a node that is NotReady.
TOLERATION = 3


@dataclass(frozen=True)
class Ordered:
    """The virtual nodes ``cheap`` and ``dear``, and the second scheduler."""

    pools: Pools

    def apply(
        self, name: str, namespace: str, *, kind: str = "Deployment", cpu: int, replicas: int
    ) -> None:
        """Applies a Deployment or StatefulSet whose pods use the second scheduler."""
        container = {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": str(cpu)}}}
        pod = {
            "schedulerName": "strict-order",
            "containers": [container],
            "tolerations": loss_tolerations(TOLERATION),
            "terminationGracePeriodSeconds": 1,
        }
        self.pools.apply(workload(kind, name, namespace, replicas, pod))

    def pods(self, namespace: str) -> dict[str, Json]:
        """The home pods that have not failed, by name."""
        found = self.pools.pods(namespace)
        return {name: pod for name, pod in found.items() if pod["status"]["phase"] != "Failed"}

    def wait_for_places(self, namespace: str, **places: int) -> None:
        """Waits until each node has this number of Ready pods, and no other pod exists."""
        wanted = Counter(
            {self.own_node() if name == "home" else name: n for name, n in places.items()}
        )

        def found() -> Counter[str]:
            return Counter(
                pod["spec"].get("nodeName", "") if is_ready(pod) else "not ready"
                for pod in self.pods(namespace).values()
                if "deletionTimestamp" not in pod["metadata"]
            )

        try:
            wait_for(lambda: found() == wanted, f"pods are at {dict(wanted)}", seconds=40)
        except AssertionError as error:
            pods = self.pools.home.kubectl("get", "pods", "-n", namespace, "-o", "wide").stdout
            events = self.pools.home.kubectl("get", "events", "-n", namespace).stdout
            raise AssertionError(f"{error}: {found()}\n{pods}\n{events}") from None

    def own_node(self) -> str:
        """The name of the home cluster's own node."""
        names: set[str] = {node["metadata"]["name"] for node in get(self.pools.home, "nodes")}
        [own] = names - {"cheap", "dear"}
        return own


@pytest.fixture(scope="module")
def ordered(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ordered]:
    """Two joins, and the manifest's scheduler as a second one."""
    folder = tmp_path_factory.mktemp("ordered")
    options = ("--unschedulable-timeout", "4")
    with (
        joined_pools(simulated, folder, "cheap", "dear", *options) as pools,
        _scheduler(pools.home, folder),
    ):
        yield Ordered(pools)


@contextmanager
def _scheduler(home: Cluster, folder: Path) -> Iterator[None]:
    """The real kube-scheduler with the configuration of the manifest."""
    settings = settings_from_environment()
    recipe = go_recipes.kubernetes(settings.kubernetes)
    program = go_build.programs(recipe, settings.cache, silent) / "kube-scheduler"
    [content] = (
        manifest["data"]["config.yaml"]
        for manifest in yaml.safe_load_all(SCHEDULER.read_text())
        if manifest["kind"] == "ConfigMap"
    )
    config = yaml.safe_load(content)
    config["clientConnection"] = {"kubeconfig": str(home.kubeconfig)}
    file, log = folder / "scheduler.yaml", folder / "scheduler.log"
    file.write_text(yaml.safe_dump(config))
    with _running([program, f"--config={file}", "--secure-port=0"], log):
        yield


@pytest.fixture(scope="module")
def descheduler() -> Path:
    """The real descheduler; its first build takes minutes, which count for no test."""
    cache = settings_from_environment().cache
    return go_build.programs(go_recipes.descheduler(), cache, silent) / "descheduler"


@contextmanager
def _descheduling(descheduler: Path, home: Cluster, folder: Path) -> Iterator[None]:
    """Runs the descheduler with the policy of the manifest."""
    options = (
        *(f"--client-connection-kubeconfig={home.kubeconfig}", "--secure-port=0", "--v=2"),
        *(f"--policy-config-file={DESCHEDULER}", f"--descheduling-interval={CYCLE}s"),
    )
    with _running([descheduler, *options], folder / "descheduler.log"):
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
        assert process.poll() is None, f"{command[0]} has exited"
    finally:
        process.kill()
        process.wait()
        print(log.read_text()[-5000:])


@pytest.fixture
def namespace(ordered: Ordered) -> Iterator[str]:
    """An offloaded namespace: first the home cluster's own node, then ``cheap``, then ``dear``."""
    name = f"order-{uuid.uuid4().hex[:6]}"
    create_namespace(ordered.pools.home, name)
    tiers = ("--tier", "pool=cheap", "--tier", "pool=dear")
    done = bridge_process.run("offload", name, *tiers, home=ordered.pools.home)
    assert done.returncode == 0, done.stderr
    yield name
    bridge_process.run("unoffload", name, home=ordered.pools.home)
    kinds = "deployments,statefulsets,pods"
    ordered.pools.home.kubectl("delete", kinds, "--all", "-n", name, "--wait=false")
    wait_for(lambda: not get(ordered.pools.home, "pods", namespace=name), "the namespace is empty")
    ordered.pools.home.kubectl("delete", "namespace", name, "--wait=false")


def test_home_fills_first_then_the_cheap_remote_then_the_dear_one(
    ordered: Ordered, namespace: str
) -> None:
    """Each node of 64 CPUs holds two pods."""
    for replicas, places in (
        (2, {"home": 2}),
        (6, {"home": 2, "cheap": 4}),
        (9, {"home": 2, "cheap": 4, "dear": 3}),
    ):
        ordered.apply("web", namespace, cpu=30, replicas=replicas)
        ordered.wait_for_places(namespace, **places)


def test_remote_whose_sum_fits_and_no_node_is_left_out(ordered: Ordered, namespace: str) -> None:
    """The cheap remote has 128 CPUs, and two nodes that hold one pod each."""
    ordered.apply("fills-home", namespace, cpu=60, replicas=1)
    ordered.wait_for_places(namespace, home=1)
    ordered.apply("web", namespace, cpu=40, replicas=4)
    ordered.wait_for_places(namespace, home=1, cheap=2, dear=2)
    before = uids([*ordered.pods(namespace).values()])

    def has_soft_taint() -> bool:
        taints = get_one(ordered.pools.home, "node", "cheap")["spec"].get("taints") or []
        return any(taint["key"] == "cluster-bridge.io/unschedulable" for taint in taints)

    wait_for(lambda: not has_soft_taint(), "the cheap remote is open again", seconds=90)
    time.sleep(10)  # for the scheduler and the bridge to move pods again
    assert uids([*ordered.pods(namespace).values()]) == before
    assert len(get(ordered.pools.home, "pods", namespace=namespace)) <= 7, "no loop of failed pods"


def test_pods_of_a_lost_remote_go_to_the_next_tier_and_a_stateful_pod_waits(
    ordered: Ordered, namespace: str
) -> None:
    ordered.apply("fills-home", namespace, cpu=60, replicas=1)
    ordered.wait_for_places(namespace, home=1)
    ordered.apply("web", namespace, cpu=10, replicas=2)
    ordered.apply("db", namespace, kind="StatefulSet", cpu=10, replicas=1)
    ordered.wait_for_places(namespace, home=1, cheap=3)
    first = ordered.pods(namespace)["db-0"]["metadata"]["uid"]
    ordered.pools.proxy.lead_to(REFUSING)
    try:
        wait_for(
            lambda: not is_ready(get_one(ordered.pools.home, "node", "cheap")),
            "the Node shows the loss",
            seconds=REPORT,
        )
        ordered.wait_for_places(namespace, home=1, dear=2)
        # The StatefulSet's pod may still run in the lost remote.
        db = ordered.pods(namespace)["db-0"]["metadata"]
        assert (db["uid"], "deletionTimestamp" in db) == (first, True)
    finally:
        ordered.pools.proxy.lead_to(ordered.pools.proxy.target)
    wait_for(
        lambda: is_ready(get_one(ordered.pools.home, "node", "cheap")), "it returns", seconds=REPORT
    )

    def is_replaced() -> bool:
        pod = ordered.pods(namespace).get("db-0", {"metadata": {"uid": first}})
        return pod["metadata"]["uid"] != first and is_ready(pod)

    wait_for(is_replaced, "the stateful pod runs again once the old one has ended")

    def is_in_agreement() -> bool:
        there = uids(get(ordered.pools.remote, "pods", namespace=f"{namespace}-e2e"))
        pods = ordered.pods(namespace).items()
        return there.keys() == {
            name for name, pod in pods if pod["spec"].get("nodeName") in ("cheap", "dear")
        }

    wait_for(is_in_agreement, "no pod is surplus in the remote")


def test_pods_return_to_home_once_it_has_room(
    ordered: Ordered, descheduler: Path, namespace: str, tmp_path: Path
) -> None:
    """The descheduler respects the PodDisruptionBudget and evicts no pod twice."""
    ordered.apply("fills-home", namespace, cpu=60, replicas=1)
    ordered.wait_for_places(namespace, home=1)
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    ordered.pools.apply(budget)
    ordered.apply("web", namespace, cpu=30, replicas=5)
    ordered.wait_for_places(namespace, home=1, cheap=4, dear=1)
    before = uids([*ordered.pods(namespace).values()])
    with _descheduling(descheduler, ordered.pools.home, tmp_path):
        time.sleep(5 * CYCLE)
        assert uids([*ordered.pods(namespace).values()]) == before, "home has no room"

        seen, least = set(before.values()), 5
        ordered.pools.home.kubectl("delete", "deployment", "fills-home", "-n", namespace)

        def has_returned() -> bool:
            nonlocal least
            web = [pod for name, pod in ordered.pods(namespace).items() if name.startswith("web")]
            seen.update(pod["metadata"]["uid"] for pod in web)
            least = min(least, sum(map(is_ready, web)))
            home = [pod for pod in web if pod["spec"].get("nodeName") == ordered.own_node()]
            return len(home) == 2 and all(map(is_ready, web)) and len(web) == 5

        wait_for(has_returned, "two pods are on the home cluster's own node", seconds=60)
        deadline = time.monotonic() + 10 * CYCLE
        while time.monotonic() < deadline:
            assert has_returned()
            time.sleep(0.5)
    assert least >= 4
    assert len(seen) == len(before) + 2, "two evictions, and two new pods"
