"""VolumeSnapshots: taken in the remote, shown at home, restored, and deleted by home's policy.

Home runs the snapshot controller of Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.clusters.cluster import Cluster
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json, get, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import hostpath
from e2e.volume_snapshots import (
    Snapshots,
    read_restored,
    served,
    snapshot_class,
    write_before,
)
from e2e.workload_manifests import volume_claim


@pytest.fixture(scope="module")
def _snapshots_served(clusters: dict[str, Cluster]) -> Iterator[None]:
    """Both clusters serve VolumeSnapshots before the bridge joins."""
    with served(clusters["home"], clusters["remote"], settings_from_environment()):
        yield


pytestmark = pytest.mark.usefixtures("_snapshots_served", "provisioners")


def _in_remote(storage: ProvisionedStorage) -> list[Json]:
    return get(storage.remote, "volumesnapshots", namespace=storage.bridged.remote_namespace)


def test_snapshot_is_taken_restored_and_deleted(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """The restored volume has the data of the time of the snapshot."""
    bridged = storage.bridged
    with (
        hostpath(storage.remote, default=True),
        storage.home_class("burst") as name,
        snapshot_class(storage.home, f"burst-{bridged.node}") as of_class,
    ):
        write_before(storage, name)
        snapshots.take("friday", "data", of_class)
        content = snapshots.wait_until_ready("friday")
        assert snapshots.status("friday")["restoreSize"] == "8Mi"
        assert snapshots.status("friday")["creationTime"]
        (remote,) = _in_remote(storage)
        handle = f"{bridged.remote_namespace}/{remote['metadata']['name']}"
        assert content["status"]["snapshotHandle"].endswith(f"/{handle}")
        bridged.kubectl("exec", "writes", "--", "sh", "-c", "echo after > /data/file")

        assert read_restored(storage, name, "friday") == "before\n"
        assert storage.read("writes") == "after\n"

        snapshots.delete("friday")
        assert not _in_remote(storage)
        assert not _contents(storage)


def test_retained_snapshot_outlives_its_object_and_volume(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """An administrator imports the data under another name, and it is deleted with that."""
    bridged = storage.bridged
    with (
        hostpath(storage.remote, default=True),
        storage.home_class("burst") as name,
        snapshot_class(storage.home, f"kept-{bridged.node}", "Retain") as of_class,
    ):
        write_before(storage, name)
        snapshots.take("friday", "data", of_class)
        content = snapshots.wait_until_ready("friday")
        snapshots.delete("friday")
        bridged.kubectl("delete", "pod/writes", "pvc/data")
        wait_for(lambda: not storage.volumes(), "the volume is deleted")
        (remote,) = _in_remote(storage)
        assert remote["status"]["readyToUse"]

        # The deletion of the content keeps the data as well.
        storage.home.kubectl("delete", "volumesnapshotcontent", content["metadata"]["name"])
        assert _in_remote(storage) == [remote]
        snapshots.import_existing("again", content["status"]["snapshotHandle"])
        snapshots.wait_until_ready("again")
        assert read_restored(storage, name, "again") == "before\n"
        snapshots.delete("again")
        assert not _in_remote(storage)


def test_snapshot_of_volume_that_is_not_in_the_remote_is_an_error(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """The snapshot controller itself rejects a volume without driver; a class of the bridge for a
    volume of another driver it leaves to the bridge."""
    home, node = storage.home, storage.bridged.node
    sources = {
        "directory": {"hostPath": {"path": "/tmp"}},
        "other": {"csi": {"driver": "csi.example.com", "volumeHandle": "vol-1"}},
    }
    with snapshot_class(home, f"burst-{node}") as of_class:
        for name, source in sources.items():
            _bind(storage, name, source)
            snapshots.take(name, name, of_class)
        assert "cannot find CSI PersistentVolumeSource" in snapshots.wait_for_error("directory")
        assert "not in a remote cluster" in snapshots.wait_for_error("other")
        assert not _in_remote(storage)
        snapshots.delete()
        assert not _contents(storage)


def _contents(storage: ProvisionedStorage) -> list[Json]:
    """Home's contents of the test's snapshots."""
    return [
        it
        for it in get(storage.home, "volumesnapshotcontents")
        if it["spec"]["volumeSnapshotRef"]["namespace"] == storage.bridged.namespace
    ]


def _bind(storage: ProvisionedStorage, name: str, source: Json) -> None:
    """Binds the new PVC `name` to a PersistentVolume with this source."""
    volume = f"{storage.bridged.namespace}-{name}"
    spec = {
        "capacity": {"storage": "8Mi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": {"namespace": storage.bridged.namespace, "name": name},
        **source,
    }
    made = {"apiVersion": "v1", "kind": "PersistentVolume", "spec": spec}
    made["metadata"] = {"name": volume}
    storage.home.kubectl("create", "-f", "-", input=json.dumps(made))
    storage.bridged.apply(volume_claim(name, "", "8Mi", volumeName=volume))
    storage.wait_until_bound(name)
