"""The release before is replaced by the present bridge and back, under load, with two replicas.

Nothing of users is touched: pods and volumes keep their UIDs in both clusters, no container is
restarted, Leases and ownership records stay, and unmanaged objects are not written.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e import bridge_image
from e2e.bridge_process import INSTALLED, Bridge, Program
from e2e.clusters.cluster import Cluster, silent
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.conftest import Bridged, joined, usual_options
from e2e.disconnected_pod_networks import without_routes
from e2e.kubectl import Json, get, get_one, is_ready, uids, versions, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.revisions import RELEASE_BEFORE, RevisionError, bridge_program, source_tree
from e2e.standby_replica import administrator, now, writes
from e2e.storage_classes import local_path
from e2e.test_relay import address, ask, client, deployment, service
from e2e.unmanaged_objects import unmanaged_objects
from e2e.used_permissions import OTHER_VERSIONS
from e2e.workload_manifests import busybox, pod, shell, volume_claim

pytestmark = pytest.mark.usefixtures("provisioners")

#: Output of a bridge of either version that serves the node, and of one that stands by.
SERVES, STANDS_BY = "is registered", "standing by"
#: Seconds until the relay leads to pods again after a change of the leader.
RELAYED = 30.0
#: Seconds of load before, between and after the replacements.
LOAD_SECONDS = 6.0
#: Ports of the relay of either replica.
PORTS = ("--relay-ports=31300-31363", "--relay-ports=31400-31463")
#: Pods that exist during the whole test, with the label ``steady``.
_STEADY = "steady=true"
_LEASE_NAMESPACES = ("cluster-bridge", "kube-node-lease")
_KINDS = "configmaps,secrets"
_UNMANAGED = "!cluster-bridge.io/node"


@pytest.fixture(scope="module")
def before() -> Iterator[Program]:
    """The bridge of the release before, from its own sources."""
    try:
        with source_tree(RELEASE_BEFORE) as tree:
            yield bridge_program(tree)
    except RevisionError as error:
        pytest.fail(str(error))


class Replicas:
    """Two bridges of one virtual node: ``leader`` serves it, ``standby`` stands by."""

    def __init__(self, leader: Bridge, standby: Bridge) -> None:
        self.leader, self.standby = leader, standby

    def replace(self, program: Program) -> None:
        """Replaces both, as a rolling update does: the standby replica first."""
        self.standby.stop()
        self.standby.use(program)
        self.standby.start(until=STANDS_BY)
        served = self._log(self.standby).count(SERVES)
        assert self.leader.stop() == 0
        self.standby.wait_for_log(SERVES, times=served + 1, seconds=30)
        self.leader.use(program)
        self.leader.start(until=STANDS_BY)
        self.leader, self.standby = self.standby, self.leader

    @staticmethod
    def _log(bridge: Bridge) -> str:
        return bridge.log.read_text(errors="replace")


@dataclass(frozen=True)
class Joined:
    """A virtual node with both replicas."""

    bridged: Bridged
    replicas: Replicas


@pytest.fixture
def served(
    clusters: dict[str, Cluster], before: Program, node_name: str, tmp_path: Path
) -> Iterator[Joined]:
    """Two replicas of the release before. Their accounts may do everything: the permissions that a
    version needs are other tests' subject."""
    home, remote = clusters["home"], clusters["remote"]
    image = bridge_image.load(remote, settings_from_environment().cache, silent)
    account = f"{OTHER_VERSIONS}{node_name}"
    options = (*usual_options(node_name), "--network=relay", f"--relay-image={image}")
    with (
        without_routes(home, remote),
        administrator(home, account, tmp_path) as near,
        administrator(remote, account, tmp_path) as far,
    ):
        first, second = (
            Bridge(
                near,
                far,
                tmp_path / f"bridge-{number}.log",
                (*options, "--storage=provision", ports),
            )
            for number, ports in enumerate(PORTS)
        )
        first.use(before)
        second.use(before)
        try:
            with joined(first, node_name, home=home, remote=remote, unbound=True) as bridged:
                second.start(until=STANDS_BY)
                try:
                    yield Joined(bridged, Replicas(first, second))
                finally:
                    second.kill()
        finally:
            for bridge in (first, second):
                print(bridge.log.read_text() if bridge.log.exists() else "")


class PodLoad:
    """Creates and deletes pods of both restart policies in the home cluster while the block runs,
    and changes a ConfigMap that they use."""

    def __init__(self, bridged: Bridged) -> None:
        self._bridged = bridged
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.problems: list[str] = []
        self.count = 0

    def __enter__(self) -> PodLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(120)

    @property
    def once(self) -> list[str]:
        """The names of the pods that run once."""
        return [f"once-{number}" for number in range(self.count)]

    def _run(self) -> None:
        try:
            while not self._stop.wait(1.0):
                self._step(self.count)
                self.count += 1
        except Exception as error:  # noqa: BLE001  # reported by the test
            self.problems.append(repr(error))

    def _step(self, number: int) -> None:
        node = self._bridged.node
        self._bridged.apply(_config_map("load", str(number)))
        container = shell("main", "sleep 3600", envFrom=[{"configMapRef": {"name": "load"}}])
        self._bridged.apply(pod(node, f"comes-{number}", None, containers=[container]))
        self._bridged.apply(busybox(node, f"once-{number}", "echo once", restart="Never"))
        if number >= 4:
            self._bridged.kubectl("delete", "pod", f"comes-{number - 4}", "--wait=false")


def _config_map(name: str, value: str) -> str:
    data = {"value": value}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    return json.dumps(manifest)


def _steady_pods(bridged: Bridged, storage_class: str) -> None:
    """Pods with a volume, that run once, behind a Service in both directions."""
    node, home_node = bridged.node, bridged.home.node_names[0]
    mounts = [{"name": "data", "mountPath": "/data"}]
    data = {
        "containers": [shell("main", "date >> /data/file; sleep 3600", volumeMounts=mounts)],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    bridged.apply(_config_map("load", "first"))
    bridged.apply(volume_claim("data", storage_class, "16Mi"))
    bridged.apply(pod(node, "db", None, **data))
    bridged.apply(busybox(node, "once", "sleep 3600", restart="Never"))
    bridged.apply(service("web") + deployment("web", "far", node, 2) + client(bridged))
    bridged.apply(service("back") + deployment("back", "near", home_node, 1))
    bridged.apply(pod(node, "asks", None))
    wait_for(lambda: len(bridged.home_pods()) == 7, "all pods exist")
    bridged.kubectl("wait", "--for=condition=Ready", "pods", "--all", "--timeout=180s")
    bridged.kubectl("label", "pods", "--all", _STEADY)


def _relay_works(bridged: Bridged) -> None:
    """Pods of each cluster reach pods of the other."""
    web = address(bridged, "web")
    wait_for(lambda: ask(bridged, web).startswith("web-far"), "forward", seconds=RELAYED)
    script = "timeout 3 wget -q -O - http://back/hostname"
    command = ("exec", "asks", "-n", bridged.remote_namespace, "--", "sh", "-c", script)
    wait_for(
        lambda: bridged.remote.kubectl(*command, check=False).stdout.startswith("back-near"),
        "reverse",
        seconds=RELAYED,
    )


def _state(bridged: Bridged) -> Json:
    """The identities that a replacement must not change."""
    home = _steady(bridged)
    names = {found["metadata"]["name"] for found in home}
    there = get(bridged.remote, "pods", namespace=bridged.remote_namespace)
    relay = {name for found in there if (name := found["metadata"]["name"]).startswith("cluster-")}
    remote = [found for found in there if found["metadata"]["name"] in names | relay]
    return {
        "home pods": uids(home),
        "remote pods": uids(remote),
        "home containers": _containers(home),
        "remote containers": _containers(remote),
        "leases": _leases(bridged),
        "ownership": _ownership(bridged),
        "node": get_one(bridged.home, "node", bridged.node)["metadata"]["uid"],
        "volumes": _volumes(bridged),
    }


def _containers(pods: list[Json]) -> Json:
    """Restarts, start and identity of each container."""
    return {
        f"{found['metadata']['name']}/{status['name']}": (
            status["restartCount"],
            status["state"]["running"]["startedAt"],
            status["containerID"],
        )
        for found in pods
        for status in found["status"]["containerStatuses"]
    }


def _leases(bridged: Bridged) -> Json:
    """The UID of each Lease in the namespaces that a bridge writes Leases to."""
    return {
        f"{side} {lease['metadata']['name']}": lease["metadata"]["uid"]
        for side, cluster in (("home", bridged.home), ("remote", bridged.remote))
        for lease in get(cluster, "leases", all_namespaces=True)
        if lease["metadata"]["namespace"] in _LEASE_NAMESPACES
    }


def _ownership(bridged: Bridged) -> Json:
    """The node's record of its namespaces, and the marks of the remote namespace."""
    records = {
        lease["metadata"]["name"]: value
        for lease in get(bridged.home, "leases", all_namespaces=True)
        for key, value in (lease["metadata"].get("annotations") or {}).items()
        if key == f"namespaces.cluster-bridge.io/{bridged.node}"
    }
    metadata = get_one(bridged.remote, "namespace", bridged.remote_namespace)["metadata"]
    marks = {name: metadata.get(name) for name in ("uid", "labels", "annotations")}
    return {"records": records, "remote namespace": marks}


def _volumes(bridged: Bridged) -> Json:
    """The UIDs of PVCs and their PersistentVolumes on both sides."""
    sides = ((bridged.home, bridged.namespace), (bridged.remote, bridged.remote_namespace))
    found = {}
    for cluster, namespace in sides:
        for claim in get(cluster, "persistentvolumeclaims", namespace=namespace):
            volume = get_one(cluster, "persistentvolume", claim["spec"]["volumeName"])
            identity = (claim["metadata"]["uid"], volume["metadata"]["uid"])
            found[f"{cluster.name}/{claim['metadata']['name']}"] = identity
    return found


def _unmanaged(bridged: Bridged) -> Json:
    """Versions of unmanaged objects, and the UIDs of pods, whose status a kubelet writes."""
    found: Json = {}
    for namespace in (bridged.remote_namespace, f"others-{bridged.namespace}"):
        objects = get(bridged.remote, _KINDS, namespace=namespace, selector=_UNMANAGED)
        pods = get(bridged.remote, "pods", namespace=namespace, selector=_UNMANAGED)
        found[f"objects in {namespace}"] = versions(objects)
        found[f"pods in {namespace}"] = uids(pods)
    return found


@pytest.mark.timeout(900, func_only=True)
def test_replacement_and_return_leave_pods_and_records_alone(
    served: Joined, before: Program
) -> None:
    bridged, replicas = served.bridged, served.replicas
    bridged.wait_until_schedulable()
    began = now()
    with (
        local_path(bridged.remote, default=True),
        ProvisionedStorage(bridged).home_class("replaced") as storage_class,
        _cleared(bridged),
    ):
        _steady_pods(bridged, storage_class)
        with unmanaged_objects(bridged), PodLoad(bridged) as load:
            _relay_works(bridged)
            time.sleep(LOAD_SECONDS)
            state, unmanaged = _state(bridged), _unmanaged(bridged)
            for name, program in (("present", INSTALLED), ("release before", before)):
                replicas.replace(program)
                _relay_works(bridged)
                time.sleep(LOAD_SECONDS)
                assert _changes(state, _state(bridged)) == {}, name
                assert _changes(unmanaged, _unmanaged(bridged)) == {}, name
        assert load.problems == []
        assert load.count > LOAD_SECONDS
        _once_ran_once(bridged, load, since=began)
        assert all(is_ready(found) for found in _steady(bridged))
        assert len(bridged.kubectl("exec", "db", "--", "cat", "/data/file").splitlines()) == 1


def _changes(before: Json, after: Json) -> Json:
    """The entries of each part that differ: before, and after."""
    found = {}
    for part in before:
        old, new = (
            state[part] if isinstance(state[part], dict) else {"": state[part]}
            for state in (before, after)
        )
        for key in {*old, *new}:
            if old.get(key) != new.get(key):
                found[f"{part}: {key}"] = (old.get(key), new.get(key))
    return found


def _steady(bridged: Bridged) -> list[Json]:
    return get(bridged.home, "pods", namespace=bridged.namespace, selector=_STEADY)


def _once_ran_once(bridged: Bridged, load: PodLoad, *, since: float) -> None:
    """Each pod of the load that must run once has succeeded, and was created once."""
    names = [f"pod/{name}" for name in load.once]
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    bridged.kubectl("wait", succeeded, *names, "--timeout=90s")
    made = Counter(
        write.name
        for write in writes(bridged.remote, since=since, namespace=bridged.remote_namespace)
        if write.resource == "pods" and write.verb == "create" and write.code == 201
    )
    assert {name: made[name] for name in load.once} == dict.fromkeys(load.once, 1)


@contextmanager
def _cleared(bridged: Bridged) -> Iterator[None]:
    """Afterwards deletes the pods and the PVC, and waits until the remote's volume is deleted."""
    try:
        yield
    finally:
        kinds = "deployments,pods,persistentvolumeclaims"
        bridged.kubectl("delete", kinds, "--all", "--wait=false")
        namespace = bridged.remote_namespace
        wait_for(
            lambda: not get(bridged.remote, "persistentvolumeclaims", namespace=namespace),
            "the remote PVC is deleted",
        )
