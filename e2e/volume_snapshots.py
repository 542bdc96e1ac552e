"""VolumeSnapshots in a cluster: objects, and definitions and controller of released modules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from e2e.clusters.cluster import SNAPSHOT_CONTROLLER, Cluster, CsiPart, Settings
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.versions import SNAPSHOT_DEFINITIONS
from e2e.kubectl import Json, get_one, wait_for, wait_for_definitions
from e2e.workload_manifests import volume_claim
from translators.storage.identifiers import DRIVER

if TYPE_CHECKING:
    from e2e.provisioned_storage import ProvisionedStorage

GROUP = "snapshot.storage.k8s.io"
_API_VERSION = f"{GROUP}/v1"
_DEFAULT_CLASS = "snapshot.storage.kubernetes.io/is-default-class"
_MODULE = "github.com/kubernetes-csi/external-snapshotter/client/v8"
_PLURALS = ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses")


@contextmanager
def served(home: Cluster, remote: Cluster, settings: Settings) -> Iterator[None]:
    """Both clusters serve VolumeSnapshots for the block, and home runs the snapshot controller."""
    with ExitStack() as stack:
        for cluster in (home, remote):
            stack.enter_context(_defined(cluster, settings))
        # Removed before the definitions, without which it would end by itself.
        stack.callback(home.remove_component, SNAPSHOT_CONTROLLER)
        home.control_snapshots(print)
        yield


@contextmanager
def served_by_driver(remote: Cluster) -> Iterator[None]:
    """The remote, which is `served`, has the snapshot controller and the CSI driver's sidecar."""
    with ExitStack() as stack:
        remote.run_csi(CsiPart.DRIVER, print)
        stack.callback(remote.remove_component, CsiPart.SNAPSHOTTER)
        remote.run_csi(CsiPart.SNAPSHOTTER, print)
        stack.callback(remote.remove_component, SNAPSHOT_CONTROLLER)
        remote.control_snapshots(print)
        yield


@contextmanager
def _defined(cluster: Cluster, settings: Settings) -> Iterator[None]:
    folder = find_go(settings.cache, OLDEST, print).fetch(_MODULE, SNAPSHOT_DEFINITIONS).folder
    files = [folder / "config" / "crd" / f"{GROUP}_{it}.yaml" for it in _PLURALS]
    for file in files:
        cluster.kubectl("apply", "-f", "-", input=file.read_text())
    crds = [f"crd/{it}.{GROUP}" for it in _PLURALS]
    wait_for_definitions(cluster, *crds)
    try:
        yield
    finally:
        cluster.kubectl("delete", *crds, "--ignore-not-found")


@contextmanager
def snapshot_class(
    cluster: Cluster,
    name: str,
    policy: str = "Delete",
    *,
    driver: str = DRIVER,
    default: bool = False,
    parameters: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """A VolumeSnapshotClass, by default one of the bridge at home."""
    made = {
        "apiVersion": _API_VERSION,
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": name, "annotations": {_DEFAULT_CLASS: json.dumps(default)}},
        "driver": driver,
        "deletionPolicy": policy,
        "parameters": dict(parameters or {}),
    }
    cluster.kubectl("create", "-f", "-", input=json.dumps(made))
    try:
        yield name
    finally:
        cluster.kubectl("delete", "volumesnapshotclass", name)


def restored_from(name: str) -> Json:
    """The data source of a PVC that is restored from the VolumeSnapshot."""
    return {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": name}


class Snapshots:
    """The VolumeSnapshots of one namespace of home."""

    def __init__(self, home: Cluster, namespace: str) -> None:
        self._home = home
        self._namespace = namespace

    def take(self, name: str, claim: str, of_class: str) -> None:
        """Creates a VolumeSnapshot of the PVC."""
        source = {"persistentVolumeClaimName": claim}
        self._create(name, {"source": source, "volumeSnapshotClassName": of_class})

    def import_existing(self, name: str, handle: str) -> None:
        """Creates a VolumeSnapshot of existing data, as an administrator does: with its content."""
        content = f"{self._namespace}-{name}"
        spec = {
            "deletionPolicy": "Delete",
            "driver": DRIVER,
            "source": {"snapshotHandle": handle},
            "sourceVolumeMode": "Filesystem",
            "volumeSnapshotRef": {"name": name, "namespace": self._namespace},
        }
        made = {"apiVersion": _API_VERSION, "kind": "VolumeSnapshotContent", "spec": spec}
        made["metadata"] = {"name": content}
        self._home.kubectl("create", "-f", "-", input=json.dumps(made))
        self._create(name, {"source": {"volumeSnapshotContentName": content}})

    def _create(self, name: str, spec: Json) -> None:
        made = {"apiVersion": _API_VERSION, "kind": "VolumeSnapshot", "spec": spec}
        made["metadata"] = {"name": name}
        self._home.kubectl("create", "-n", self._namespace, "-f", "-", input=json.dumps(made))

    def status(self, name: str) -> Json:
        """The status of a VolumeSnapshot; empty until the controller has written it."""
        found = get_one(self._home, "volumesnapshot", name, namespace=self._namespace)
        status: Json = found.get("status") or {}
        return status

    def wait_until_ready(self, name: str) -> Json:
        """Waits until a VolumeSnapshot is ready to use; returns its content."""
        wait_for(lambda: self.status(name).get("readyToUse"), f"snapshot {name} is ready to use")
        content = self.status(name)["boundVolumeSnapshotContentName"]
        return get_one(self._home, "volumesnapshotcontent", content)

    def wait_for_error(self, name: str) -> str:
        """Waits until a VolumeSnapshot has an error; returns the message."""

        def error() -> str:
            return str((self.status(name).get("error") or {}).get("message") or "")

        return wait_for(error, f"snapshot {name} has an error")

    def delete(self, *names: str) -> None:
        """Deletes VolumeSnapshots, all without names, and waits until they do not exist."""
        space = ("-n", self._namespace, "--timeout=60s")
        self._home.kubectl("delete", "volumesnapshots", *(names or ("--all",)), *space, timeout=90)


@pytest.fixture
def snapshots(storage: ProvisionedStorage) -> Iterator[Snapshots]:
    """The snapshots of the test's namespace, which are deleted afterwards."""
    made = Snapshots(storage.home, storage.bridged.namespace)
    yield made
    made.delete()


def write_before(storage: ProvisionedStorage, of_class: str) -> None:
    """The pod `writes` on the virtual node writes "before" to the new PVC `data`, so that a
    snapshot has content."""
    storage.bridged.apply(volume_claim("data", of_class, "8Mi"))
    script = "echo before > /data/file; sleep 3600"
    storage.bridged.apply(storage.node_pod("writes", "data", script))
    storage.wait_until_ready("writes")
    wait_for(lambda: storage.read("writes") == "before\n", "the pod has written")


def read_restored(storage: ProvisionedStorage, of_class: str, snapshot: str) -> str:
    """The content of the new PVC `restored` from the VolumeSnapshot, as the pod `reads` has it."""
    claim = volume_claim("restored", of_class, "8Mi", dataSource=restored_from(snapshot))
    storage.bridged.apply(claim)
    storage.bridged.apply(storage.node_pod("reads", "restored"))
    storage.wait_until_ready("reads")
    return storage.read("reads")
