"""VolumeSnapshots in a cluster: the CustomResourceDefinitions, and what home's snapshot controller
does for one VolumeSnapshot.

The definitions are those of a released module. The remote's provisioner takes and restores
snapshots by itself (`clusters/programs/hostpath_provisioner/snapshots.go`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.clusters.cluster import Cluster, Settings
from e2e.clusters.go_toolchain import OLDEST, find_go
from e2e.clusters.versions import SNAPSHOT_DEFINITIONS
from e2e.kubectl import Json, get_one, wait_for
from translators.storage.identifiers import DRIVER
from translators.storage.volume_snapshot import FINALIZER

API_VERSION = "snapshot.storage.k8s.io/v1"
_MODULE = "github.com/kubernetes-csi/external-snapshotter/client/v8"
_PLURALS = ("volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses")
_BEING_DELETED = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted=yes"


@contextmanager
def defined(cluster: Cluster, settings: Settings) -> Iterator[None]:
    """The cluster serves VolumeSnapshots for the block."""
    folder = find_go(settings.cache, OLDEST, print).fetch(_MODULE, SNAPSHOT_DEFINITIONS).folder
    names = [f"{it}.snapshot.storage.k8s.io" for it in _PLURALS]
    files = [folder / "config" / "crd" / f"snapshot.storage.k8s.io_{it}.yaml" for it in _PLURALS]
    for file in files:
        cluster.kubectl("apply", "-f", "-", input=file.read_text())
    crds = [f"crd/{name}" for name in names]
    cluster.kubectl("wait", "--for=condition=Established", *crds, "--timeout=60s")
    try:
        yield
    finally:
        cluster.kubectl("delete", *crds, "--ignore-not-found")


@contextmanager
def snapshot_class(home: Cluster, name: str, policy: str = "Delete") -> Iterator[str]:
    """A VolumeSnapshotClass of the bridge at home."""
    made = {
        "apiVersion": API_VERSION,
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": name},
        "driver": DRIVER,
        "deletionPolicy": policy,
    }
    home.kubectl("create", "-f", "-", input=json.dumps(made))
    try:
        yield name
    finally:
        home.kubectl("delete", "volumesnapshotclass", name)


class SnapshotController:
    """Home's snapshot controller, step by step, for one VolumeSnapshot."""

    def __init__(self, home: Cluster, namespace: str) -> None:
        self._home = home
        self._namespace = namespace

    def create(self, name: str, claim: str, of_class: str) -> None:
        """Creates the VolumeSnapshot and its content."""
        snapshot = {
            "apiVersion": API_VERSION,
            "kind": "VolumeSnapshot",
            "metadata": {"name": name},
            "spec": {
                "source": {"persistentVolumeClaimName": claim},
                "volumeSnapshotClassName": of_class,
            },
        }
        space = ("-n", self._namespace)
        self._home.kubectl("create", *space, "-f", "-", input=json.dumps(snapshot))
        uid = get_one(self._home, "volumesnapshot", name, namespace=self._namespace)["metadata"][
            "uid"
        ]
        pvc = get_one(self._home, "persistentvolumeclaim", claim, namespace=self._namespace)
        volume = get_one(self._home, "persistentvolume", pvc["spec"]["volumeName"])
        reference = {"apiVersion": API_VERSION, "kind": "VolumeSnapshot", "uid": uid, "name": name}
        content = {
            "apiVersion": API_VERSION,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": f"snapcontent-{uid}", "finalizers": [FINALIZER]},
            "spec": {
                "deletionPolicy": "Delete",
                "driver": DRIVER,
                "source": {"volumeHandle": volume["spec"]["csi"]["volumeHandle"]},
                "sourceVolumeMode": "Filesystem",
                "volumeSnapshotClassName": of_class,
                "volumeSnapshotRef": {**reference, "namespace": self._namespace},
            },
        }
        self._home.kubectl("create", "-f", "-", input=json.dumps(content))

    def share_status(self, name: str) -> Json:
        """Waits until the bridge reports the snapshot as taken, and copies that to the
        VolumeSnapshot; returns the status of the content."""
        content = self._content(name)

        def taken() -> Json:
            status: Json = get_one(self._home, "volumesnapshotcontent", content).get("status") or {}
            return status if status.get("readyToUse") else {}

        found = wait_for(taken, "the snapshot is ready to use")
        status = {"readyToUse": True, "boundVolumeSnapshotContentName": content}
        self._home.kubectl(
            *("patch", "volumesnapshot", name, "-n", self._namespace, "--type=merge"),
            *("--subresource=status", "-p", json.dumps({"status": status})),
        )
        return found

    def delete(self, name: str) -> None:
        """Deletes the content, and the VolumeSnapshot when the content no longer exists."""
        content = self._content(name)
        self._home.kubectl("annotate", "volumesnapshotcontent", content, _BEING_DELETED)
        self._home.kubectl("delete", "volumesnapshotcontent", content, "--timeout=60s")
        self._home.kubectl("delete", "volumesnapshot", name, "-n", self._namespace)

    def _content(self, name: str) -> str:
        found = get_one(self._home, "volumesnapshot", name, namespace=self._namespace)
        return f"snapcontent-{found['metadata']['uid']}"
