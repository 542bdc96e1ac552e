"""Pods are placed by PlacementPolicies: at home, then in a cheap remote, then in an expensive one.

Home and the remote have simulated nodes of 64 CPUs. Two virtual nodes stand for two of the remote's
nodes each; the placer has the permissions that `bridge placement render` prints.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bridge.placement.manifests import NAME
from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bridge_process import BRIDGE, Bridge
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, create_namespace, get, get_one, is_ready, wait_for
from e2e.workload_manifests import shell
from translators.placement.placement_policy import parse_policy, policy_for

RACK = "example.com/rack"
LABEL = "cluster-bridge.io/placement"
#: Seconds until a bridge releases pods without a placer, with a margin.
ABSENT_SECONDS = 100.0
#: Seconds until the published room has no pods of an earlier test, with a margin.
PUBLISHED_SECONDS = 20.0
TIERS: list[Json] = [
    {"name": "home", "home": True},
    {"name": "cheap", "remotes": {"matchLabels": {"class": "cheap"}}},
    {"name": "expensive", "remotes": {"matchLabels": {"class": "expensive"}}},
]


@dataclass
class Fleet:
    """Home with a running placer and two virtual nodes, ``cheap`` and ``expensive``."""

    home: Cluster
    remote: Cluster
    placer: Cluster
    """Home, with the placer's credential."""
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    def start_placer(self) -> None:
        """Starts `bridge placement run`, and waits until it places pods."""
        log = self.folder / "placer.log"
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [BRIDGE, "placement", "run", "--home-kubeconfig", self.placer.kubeconfig],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_for(lambda: "placing pods" in log.read_text()[begin:], f"the placer works: {log}")

    def kill_placer(self) -> None:
        """Ends it without a chance to clean up."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def policy(self, namespace: str, **spec: Any) -> None:
        """A policy for the namespace, of the same name."""
        spec = {"namespaces": [namespace], "tiers": TIERS, **spec}
        self.apply(_policy(namespace, spec))

    def apply(self, *objects: Json) -> None:
        """Applies objects at home."""
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.home.kubectl("apply", "-f", "-", input=items)

    def pods(self, namespace: str) -> dict[str, Json]:
        """The namespace's pods at home, by name."""
        return {it["metadata"]["name"]: it for it in get(self.home, "pods", namespace=namespace)}

    def places(self, namespace: str) -> Counter[str]:
        """The nodes of the namespace's Ready pods; "" for those that wait for the placer."""
        found: Counter[str] = Counter()
        for it in self.pods(namespace).values():
            if is_ready(it):
                found[it["spec"]["nodeName"]] += 1
            elif it["spec"].get("schedulingGates"):
                found[""] += 1
        return found

    def wait_for_places(self, namespace: str, **places: int) -> None:
        """Waits until so many pods are Ready on each node; ``waiting`` have no node."""
        wanted = Counter({"" if it == "waiting" else it: n for it, n in places.items()})
        own = next(
            it["metadata"]["name"]
            for it in get(self.home, "nodes")
            if "cluster-bridge.io/virtual-node" not in it["metadata"]["labels"]
        )
        if "home" in wanted:
            wanted[own] = wanted.pop("home")

        def reached() -> bool:
            return self.places(namespace) == wanted

        try:
            wait_for(reached, f"pods are at {dict(wanted)}", seconds=40)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.places(namespace)}") from None


def _policy(name: str, spec: Json) -> Json:
    return {
        "apiVersion": "cluster-bridge.io/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def _container(cpu: int) -> Json:
    return {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": str(cpu)}}}


def _pod(name: str, namespace: str, cpu: int) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [_container(cpu)], "terminationGracePeriodSeconds": 1},
    }


def _deployment(name: str, namespace: str, cpu: int, replicas: int, **spec: Any) -> Json:
    labels = {"app": name}
    pod_spec = {"containers": [_container(cpu)], "terminationGracePeriodSeconds": 1, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec},
        },
    }


@pytest.fixture(scope="module")
def fleet(
    simulated: dict[str, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two joins, the installation of placement, and a placer."""
    home, remote = simulated["home"], simulated["remote"]
    folder = tmp_path_factory.mktemp("placement")
    listed = home.kubectl("api-resources", "--api-group=admissionregistration.k8s.io").stdout
    lines = [line.split() for line in listed.splitlines()]
    [version] = {it[-3].rpartition("/")[2] for it in lines if it[-1] == "MutatingAdmissionPolicy"}
    rendered = bridge_process.run("placement", "render", "--admission", version).stdout
    home.kubectl("apply", "-f", "-", input=rendered)
    served = ("get", "--raw=/apis/cluster-bridge.io/v1alpha1")
    wait_for(
        lambda: "placementpolicies" in home.kubectl(*served, check=False).stdout,
        "home serves PlacementPolicies",
    )
    workers = [it["metadata"]["name"] for it in get(remote, "nodes")]
    account = service_accounts.handle_of(home, folder, Account("cluster-bridge", NAME))
    with ExitStack() as stack:
        stack.callback(home.kubectl, "delete", "-f", "-", "--wait=false", input=rendered)
        for cls, names in (("cheap", workers[:2]), ("expensive", workers[2:4])):
            remote.kubectl("label", "node", *names, f"pool={cls}", "--overwrite")
            stack.enter_context(_joined(home, remote, cls, folder))
        remote.kubectl("label", "node", *workers[2:4], f"{RACK}=own", "--overwrite")
        fleet = Fleet(home, remote, account, folder)
        # Until then, the placer decides by the sums of the Nodes.
        rooms = [f"room-{it}" for it in ("cheap", "expensive")]
        wait_for(
            lambda: {*rooms} <= _names(get(home, "configmaps", namespace="cluster-bridge")),
            "the bridges publish the room of their remotes",
        )
        stack.callback(fleet.kill_placer)
        fleet.start_placer()
        yield fleet
        print((folder / "placer.log").read_text())
        remote.kubectl("label", "node", *workers, "pool-", f"{RACK}-")


def _names(objects: list[Json]) -> set[str]:
    return {it["metadata"]["name"] for it in objects}


@contextmanager
def _joined(home: Cluster, remote: Cluster, cls: str, folder: Path) -> Iterator[None]:
    options = (
        *("--name", cls, "--home-name", "e2e", "--port", "0", "--node-selector", f"pool={cls}"),
        *("--labels", f"class={cls},{RACK}={cls}", "--unschedulable-timeout", "2"),
    )
    bridge = Bridge(home, remote, folder / f"{cls}.log", options)
    bridge.start()
    try:
        yield
    finally:
        bridge.kill()
        leave = ("leave", "--name", cls, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
        bridge_process.run(*leave, home=home)
        print(bridge.log.read_text())


@pytest.fixture
def namespace(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace with a policy, which is empty at the end."""
    name = f"place-{abs(hash(request.node.name)) % 10**6}"
    create_namespace(fleet.home, name)
    fleet.policy(name)
    # API servers apply a new policy some time after its creation.
    probe = json.dumps(_pod("probe", name, 1))

    def is_held() -> bool:
        create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        made = json.loads(fleet.home.kubectl(*create, input=probe).stdout)
        return bool(made["spec"].get("schedulingGates"))

    wait_for(is_held, "the API server holds new pods")
    yield name
    fleet.home.kubectl("delete", "deployments,pods", "--all", "-n", name, "--wait=false")
    wait_for(lambda: not fleet.pods(name), f"namespace {name} is empty")
    fleet.home.kubectl("delete", "placementpolicy", name)
    fleet.home.kubectl("delete", "namespace", name, "--wait=false")


def test_tiers_are_filled_in_order(fleet: Fleet, namespace: str) -> None:
    """Home, cheap, expensive; a simulation answers the same before."""
    deployment = _deployment("web", namespace, 40, 6)
    file = fleet.folder / "web.json"
    file.write_text(json.dumps(deployment))
    simulate = ("placement", "simulate", "-f", file, "-o", "json")

    def answers() -> bool:
        [answer] = json.loads(bridge_process.run(*simulate, home=fleet.home).stdout)["workloads"]
        found = answer["placed"], answer["waiting"]
        return bool(found == ({"home": 1, "cheap": 2, "expensive": 2}, 1))

    wait_for(answers, "a simulation fills the tiers", seconds=PUBLISHED_SECONDS)
    fleet.apply(deployment)
    fleet.wait_for_places(namespace, home=1, cheap=2, expensive=2, waiting=1)
    list_them = ("placement", "list", "-o", "json")
    listed = json.loads(bridge_process.run(*list_them, home=fleet.home).stdout)
    assert listed["policies"][0]["pods"] == {"home": 1, "cheap": 2, "expensive": 2}


def test_pod_that_fits_no_node_waits_until_one_has_room(fleet: Fleet, namespace: str) -> None:
    """Two nodes with 64 free CPUs each are no room for a pod of 100."""
    huge = [_pod(f"huge{it}", namespace, 500) for it in range(50)]
    fleet.apply(_pod("big", namespace, 100), *huge)
    fleet.apply(_pod("small", namespace, 1))
    fleet.wait_for_places(namespace, home=1, waiting=51)
    worker = get(fleet.remote, "nodes", selector="pool=cheap")[0]
    resize = ("patch", "node", worker["metadata"]["name"], "--subresource=status", "-p")
    _set_cpu(fleet, resize, "128")
    try:
        fleet.wait_for_places(namespace, home=1, cheap=1, waiting=50)
    finally:
        _set_cpu(fleet, resize, "64")


def _set_cpu(fleet: Fleet, resize: tuple[str, ...], cpu: str) -> None:
    status = {"allocatable": {"cpu": cpu}, "capacity": {"cpu": cpu}}
    fleet.remote.kubectl(*resize, json.dumps({"status": status}))


def test_pod_that_one_remote_refuses_goes_to_the_next(fleet: Fleet, namespace: str) -> None:
    """Cheap's nodes lack the label by which the pod is spread."""
    fleet.policy(namespace, tiers=TIERS[1:])
    spread = {
        "topologyKey": RACK,
        "maxSkew": 5,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    fleet.apply(_deployment("spread", namespace, 1, 1, topologySpreadConstraints=[spread]))
    wait_for(lambda: fleet.places(namespace)["expensive"] == 1, "the pod runs in the next remote")
    pods = fleet.pods(namespace).values()
    assert {it["status"].get("reason") for it in pods} >= {"RemoteUnschedulable"}


def test_pods_are_released_without_a_placer(fleet: Fleet, namespace: str) -> None:
    """Meanwhile, the API server holds exactly the pods that a policy is for."""
    fleet.kill_placer()
    try:
        fleet.apply(_pod("a", namespace, 1))
        assert fleet.pods(namespace)["a"]["metadata"]["labels"][LABEL] == "pending"
        _compare_held_pods(fleet, namespace)
        wait_for(
            lambda: is_ready(fleet.pods(namespace)["a"]),
            "a bridge releases the pod",
            seconds=ABSENT_SECONDS,
        )
        events = get(fleet.home, "events", namespace=namespace)
        assert "NoPlacerRuns" in {it["reason"] for it in events}
    finally:
        fleet.start_placer()


def _compare_held_pods(fleet: Fleet, namespace: str) -> None:
    """Compares the admission policy with `policy_for` for several policies and pods."""
    labels = {"team": "blue", "stage": "test"}
    fleet.home.kubectl("label", "ns", namespace, *(f"{k}={v}" for k, v in labels.items()))
    blue = {"matchLabels": {"team": "blue"}}
    other = {"key": "stage", "operator": "NotIn", "values": ["prod"]}
    app = {"key": "app", "operator": "In", "values": ["a", "b"]}
    specs: list[Json] = [
        {"namespaceSelector": blue, "podSelector": {"matchLabels": {"app": "a"}}},
        {"namespaceSelector": {"matchExpressions": [other]}, "namespaces": ["elsewhere"]},
        {"namespaces": ["elsewhere"]},
        {"namespaces": [namespace], "podSelector": {"matchExpressions": [app]}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}, other]}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
        {"namespaces": [namespace], "priorityClasses": ["system-node-critical"]},
    ]
    pod_labels: list[dict[str, str]] = [{}, {"app": "a"}, {"app": "c", "stage": "prod"}]
    for spec in specs:
        policy = _policy(namespace, {"tiers": TIERS, **spec})
        fleet.home.kubectl("replace", "-f", "-", input=json.dumps(policy))
        pods = [_pod("probe", namespace, 1) for _ in pod_labels]
        for one, its in zip(pods, pod_labels, strict=True):
            one["metadata"]["labels"] = its
        namespace_labels = get_one(fleet.home, "ns", namespace)["metadata"]["labels"]
        parsed = [parse_policy(policy)]
        expected = [policy_for(it, parsed, namespace_labels) is not None for it in pods]
        _wait_until_held(fleet, pods, expected, f"pods for {spec}")


def _wait_until_held(fleet: Fleet, pods: list[Json], expected: list[bool], what: str) -> None:
    try:
        wait_for(lambda: _held(fleet, pods) == expected, f"{what}: {expected}", seconds=20)
    except AssertionError as error:
        raise AssertionError(f"{error}, not {_held(fleet, pods)}") from None


def _held(fleet: Fleet, pods: list[Json]) -> list[bool]:
    create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    made = [json.loads(fleet.home.kubectl(*create, input=json.dumps(it)).stdout) for it in pods]
    return [bool(it["spec"].get("schedulingGates")) for it in made]
