"""A fleet whose pods are placed: home with a placer, and two virtual nodes of one remote.

Home and the remote have simulated nodes of 64 CPUs. The virtual nodes ``cheap`` and ``expensive``
stand for two of the remote's nodes each; the placer has the permissions that
`bridge placement render` prints. The bridge of ``cheap`` reaches the remote by a way that a test
can cut.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml

from bridge.placement.manifests import NAME
from bridge.rbac.rbac_manifests import Account
from e2e import bridge_process, service_accounts
from e2e.bridge_process import BRIDGE, Bridge
from e2e.clusters.cluster import Cluster
from e2e.faulty_remote import FaultyRemote
from e2e.kubectl import Json, create_namespace, get, is_ready, wait_for
from e2e.workload_manifests import shell

#: A label of the virtual nodes, which of the remote's nodes only those of ``expensive`` have.
RACK = "example.com/rack"
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
    bridges: dict[str, Bridge]
    """By virtual node."""
    way: FaultyRemote
    """From the bridge of ``cheap`` to the remote."""
    process: subprocess.Popen[bytes] | None = None
    monitoring: str = ""
    """The address of the placer's probes and metrics."""

    def start_placer(self) -> None:
        """Starts `bridge placement run`, and waits until it places pods."""
        log = self.folder / "placer.log"
        begin = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(BRIDGE, "placement", "run", "--port", "0", "--address", "127.0.0.1"),
                    *("--home-kubeconfig", self.placer.kubeconfig),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_for(lambda: "placing pods" in log.read_text()[begin:], f"the placer works: {log}")
        port = re.search(r"metrics of the placer listen on port (\d+)", log.read_text()[begin:])
        assert port is not None, log
        self.monitoring = f"https://127.0.0.1:{port[1]}"

    def monitored(self, path: str, token: str = "") -> tuple[int, str]:
        """Status and text of a path of the placer's port."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # The certificate is self-signed.
        with urllib3.PoolManager(cert_reqs="CERT_NONE") as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
            url = f"{self.monitoring}{path}"
            answer = pool.request("GET", url, headers=headers, timeout=30.0, retries=False)
        return answer.status, answer.data.decode()

    def kill_placer(self) -> None:
        """Ends it without a chance to clean up."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def policy(self, namespace: str, **spec: Any) -> None:
        """A policy for the namespace, of the same name."""
        spec = {"namespaces": [namespace], "tiers": TIERS, **spec}
        self.apply(placement_policy(namespace, spec))

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


def placement_policy(name: str, spec: Json) -> Json:
    """A PlacementPolicy."""
    return {
        "apiVersion": "cluster-bridge.io/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def container(cpu: int) -> Json:
    """A container that runs until it is ended."""
    return {**shell("main", "sleep 3600"), "resources": {"requests": {"cpu": str(cpu)}}}


def pod(name: str, namespace: str, cpu: int, **spec: Any) -> Json:
    """A pod with further fields of its spec."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container(cpu)], "terminationGracePeriodSeconds": 1, **spec},
    }


def deployment(name: str, namespace: str, cpu: int, replicas: int, **spec: Any) -> Json:
    """A Deployment of such pods."""
    labels = {"app": name}
    template = pod(name, namespace, cpu, **spec)["spec"]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }


def stateful_set(name: str, namespace: str, cpu: int, replicas: int, **spec: Any) -> Json:
    """A StatefulSet of such pods."""
    made = deployment(name, namespace, cpu, replicas, **spec)
    return {**made, "kind": "StatefulSet", "spec": {**made["spec"], "serviceName": name}}


#: Seconds until all objects of the installation are deleted.
DELETION = 180.0


@contextmanager
def running_fleet(clusters: dict[str, Cluster], folder: Path) -> Iterator[Fleet]:
    """Two joins, the installation of placement, and a placer; ``clusters`` are simulated."""
    home, remote = clusters["home"], clusters["remote"]
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
        # The next fleet creates the same objects.
        stack.callback(home.kubectl, "delete", "-f", "-", input=rendered, timeout=DELETION)
        for cls, names in (("cheap", workers[:2]), ("expensive", workers[2:4])):
            remote.kubectl("label", "node", *names, f"pool={cls}", "--overwrite")
        way, through_way = _way(remote, folder)
        stack.callback(way.close)
        bridges = {
            "cheap": stack.enter_context(joined(home, through_way, "cheap", folder)),
            "expensive": stack.enter_context(joined(home, remote, "expensive", folder)),
        }
        remote.kubectl("label", "node", *workers[2:4], f"{RACK}=own", "--overwrite")
        fleet = Fleet(home, remote, account, folder, bridges, way)
        # Until then, pods wait for it.
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


def _way(remote: Cluster, folder: Path) -> tuple[FaultyRemote, Cluster]:
    """A way to the remote, and the remote by that way."""
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
def joined(home: Cluster, remote: Cluster, cls: str, folder: Path) -> Iterator[Bridge]:
    """A virtual node with this name and class for the remote's nodes with the label ``pool``."""
    options = (
        *("--name", cls, "--home-name", "e2e", "--port", "0", "--node-selector", f"pool={cls}"),
        *("--labels", f"class={cls},{RACK}={cls}", "--unschedulable-timeout", "2"),
    )
    bridge = Bridge(home, remote, folder / f"{cls}.log", options)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.kill()
        leave = ("leave", "--name", cls, "--yes", "--force", "--kubeconfig", remote.kubeconfig)
        bridge_process.run(*leave, home=home)
        print(bridge.log.read_text())


@contextmanager
def placed_namespace(fleet: Fleet) -> Iterator[str]:
    """A namespace with a policy, which is empty at the end."""
    name = f"place-{uuid.uuid4().hex[:6]}"
    create_namespace(fleet.home, name)
    fleet.policy(name)
    # API servers apply a new policy some time after its creation.
    probe = json.dumps(pod("probe", name, 1))

    def is_held() -> bool:
        create = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        made = json.loads(fleet.home.kubectl(*create, input=probe).stdout)
        return bool(made["spec"].get("schedulingGates"))

    wait_for(is_held, "the API server holds new pods")
    yield name
    kinds = "deployments,statefulsets,pods,persistentvolumeclaims"
    fleet.home.kubectl("delete", kinds, "--all", "-n", name, "--wait=false")
    wait_for(lambda: not fleet.pods(name), f"namespace {name} is empty")
    fleet.home.kubectl("delete", "placementpolicy", name)
    fleet.home.kubectl("delete", "namespace", name, "--wait=false")
