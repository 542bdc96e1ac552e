"""Volumes of a CSI driver that are attached to nodes, with Kubernetes' own sidecars: in the remote
with VolumeSnapshots of the real snapshot controller, and at home beside the virtual node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e import bridge_process, debian_image
from e2e.clusters.cluster import Cluster
from e2e.clusters.csi_driver import CSI_DRIVER_NAME
from e2e.clusters.pytest_fixture import settings_from_environment
from e2e.kubectl import Json, get, get_one, uids, wait_for
from e2e.provisioned_storage import ProvisionedStorage
from e2e.storage_classes import csi
from e2e.volume_files import digest, node_of_home, write
from e2e.volume_snapshots import (
    Snapshots,
    read_restored,
    served,
    served_by_driver,
    snapshot_class,
    write_before,
)
from e2e.workload_manifests import volume_claim


@pytest.fixture(scope="module")
def _drivers(clusters: dict[str, Cluster]) -> Iterator[None]:
    """Both clusters have the CSI driver, and serve VolumeSnapshots before the bridge joins. The
    first build takes minutes, which count for no test."""
    home, remote = clusters["home"], clusters["remote"]
    with (
        served(home, remote, settings_from_environment()),
        served_by_driver(remote),
        csi(home),
        csi(remote, default=True),
    ):
        yield


pytestmark = pytest.mark.usefixtures("_drivers")


def _remote_contents(storage: ProvisionedStorage) -> list[Json]:
    """The remote's VolumeSnapshotContents of the test."""
    return [
        it
        for it in get(storage.remote, "volumesnapshotcontents")
        if it["spec"]["volumeSnapshotRef"]["namespace"] == storage.bridged.remote_namespace
    ]


def _attachments(cluster: Cluster) -> set[str]:
    """The PersistentVolumes that are attached to a node."""
    return {
        it["spec"]["source"]["persistentVolumeName"] for it in get(cluster, "volumeattachments")
    }


def test_snapshot_controller_of_the_remote_takes_restores_and_deletes(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    bridged, remote = storage.bridged, storage.remote
    with (
        storage.home_class("burst") as name,
        snapshot_class(remote, "theirs", driver=CSI_DRIVER_NAME, default=True),
        snapshot_class(storage.home, f"burst-{bridged.node}") as of_class,
    ):
        write_before(storage, name)
        (volume,) = storage.remote_volumes()
        assert volume["spec"]["csi"]["driver"] == CSI_DRIVER_NAME
        assert _attachments(remote) == {volume["metadata"]["name"]}
        snapshots.take("friday", "data", of_class)
        content = snapshots.wait_until_ready("friday")
        assert snapshots.status("friday")["restoreSize"] == "8Mi"
        (theirs,) = _remote_contents(storage)
        assert theirs["spec"]["driver"] == CSI_DRIVER_NAME
        assert theirs["spec"]["source"]["volumeHandle"] == volume["spec"]["csi"]["volumeHandle"]
        taken = theirs["status"]["creationTime"] // 10**9
        assert content["status"]["creationTime"] // 10**9 == taken
        bridged.kubectl("exec", "writes", "--", "sh", "-c", "echo after > /data/file")

        assert read_restored(storage, name, "friday") == "before\n"
        assert storage.read("writes") == "after\n"

        snapshots.delete("friday")
        wait_for(lambda: not _remote_contents(storage), "the remote's content is deleted")
        storage.clear()
        wait_for(lambda: not _attachments(remote), "the volumes are detached")


def test_error_of_the_remotes_snapshot_controller_is_shown_until_it_is_remedied(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """The remote has no default class; its administrator creates one, or home's class names one."""
    bridged, remote = storage.bridged, storage.remote
    names = {"remoteVolumeSnapshotClass": "named"}
    with (
        storage.home_class("burst") as name,
        snapshot_class(storage.home, f"burst-{bridged.node}") as of_class,
        snapshot_class(storage.home, f"named-{bridged.node}", parameters=names) as named,
    ):
        write_before(storage, name)
        snapshots.take("early", "data", of_class)
        assert "default snapshot class" in snapshots.wait_for_error("early")
        with snapshot_class(remote, "named", driver=CSI_DRIVER_NAME):
            snapshots.take("other", "data", named)
            snapshots.wait_until_ready("other")
            assert not snapshots.status("early")["readyToUse"]
            snapshots.delete("other")
        with snapshot_class(remote, "theirs", driver=CSI_DRIVER_NAME, default=True):
            snapshots.wait_until_ready("early")
            assert not snapshots.status("early").get("error")
            snapshots.delete("early")
        assert not _remote_contents(storage)


@contextmanager
def _friday(
    storage: ProvisionedStorage, snapshots: Snapshots, policy: str
) -> Iterator[tuple[str, Json]]:
    """The volume's class and the content of a ready snapshot ``friday``, whose class has this
    deletion policy."""
    with (
        storage.home_class("burst") as name,
        snapshot_class(storage.remote, "theirs", driver=CSI_DRIVER_NAME, default=True),
        snapshot_class(storage.home, f"burst-{storage.bridged.node}", policy) as of_class,
    ):
        write_before(storage, name)
        snapshots.take("friday", "data", of_class)
        yield name, snapshots.wait_until_ready("friday")


def _delete_volume(storage: ProvisionedStorage) -> None:
    storage.bridged.kubectl("delete", "pod/writes", "pvc/data")
    wait_for(lambda: not storage.volumes(), "the volume is deleted")


def test_snapshot_outlives_the_volume_of_a_driver(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """The home cluster deletes PVC and pod while the remote's controller protects the source."""
    with _friday(storage, snapshots, "Delete") as (name, _):
        _delete_volume(storage)
        assert not storage.remote_claims()
        assert read_restored(storage, name, "friday") == "before\n"
        snapshots.delete("friday")
        assert not _remote_contents(storage)


def test_retained_snapshot_outlives_its_object_and_volume(
    storage: ProvisionedStorage, snapshots: Snapshots
) -> None:
    """An administrator imports the data under another name, and it is deleted with that."""
    with _friday(storage, snapshots, "Retain") as (name, content):
        snapshots.delete("friday")
        _delete_volume(storage)
        (theirs,) = _remote_contents(storage)

        # The deletion of the content keeps the data as well.
        storage.home.kubectl("delete", "volumesnapshotcontent", content["metadata"]["name"])
        assert uids(_remote_contents(storage)) == uids([theirs])
        snapshots.import_existing("again", content["status"]["snapshotHandle"])
        snapshots.wait_until_ready("again")
        assert read_restored(storage, name, "again") == "before\n"
        snapshots.delete("again")
        wait_for(lambda: not _remote_contents(storage), "the remote's content is deleted")


def test_attached_volume_of_home_is_not_attached_to_the_virtual_node(
    storage: ProvisionedStorage,
) -> None:
    """A pod there waits with a reason, and home's node keeps the volume, or takes it back."""
    bridged, node = storage.bridged, node_of_home(storage)
    bridged.apply(volume_claim("data", "csi", "8Mi"))
    here: Json = {"nodeSelector": {"kubernetes.io/hostname": node}, "tolerations": []}
    bridged.apply(storage.node_pod("near", "data", "echo near > /data/file; sleep 3600", **here))
    storage.wait_until_ready("near")
    (volume,) = storage.volumes()
    assert _attachments(storage.home) == {volume["metadata"]["name"]}

    bridged.apply(storage.node_pod("far", "data", nodeName=bridged.node))
    wait_for(lambda: _reason(storage, "far") == "VolumeNotInRemote", "the pod waits with a reason")
    nodes = {it["spec"]["nodeName"] for it in get(storage.home, "volumeattachments")}
    assert nodes == {node}
    assert storage.read("near") == "near\n"

    bridged.kubectl("delete", "pod", "near")
    wait_for(lambda: not _attachments(storage.home), "the volume is detached")
    assert _reason(storage, "far") == "VolumeNotInRemote"
    bridged.apply(storage.node_pod("again", "data", **here))
    storage.wait_until_ready("again")
    assert storage.read("again") == "near\n"


def _reason(storage: ProvisionedStorage, pod: str) -> str:
    found = get_one(storage.home, "pod", pod, namespace=storage.bridged.namespace)
    return str(found["status"].get("reason") or "")


def test_attached_volume_is_copied_to_the_remote_and_back(storage: ProvisionedStorage) -> None:
    """Volumes are attached for the pods of the copy, and detached after them."""
    bridged, node = storage.bridged, node_of_home(storage)
    settings = settings_from_environment()
    debian_image.load((storage.home, storage.remote), settings.cache, print)

    def copy(source: str, target: str, to: str) -> None:
        claims = [f"{bridged.namespace}/{name}" for name in (source, target)]
        done = bridge_process.run("volume", "copy", *claims, "--to", to, home=storage.home)
        assert done.returncode == 0, done.stderr

    with storage.home_class("burst") as far:
        bridged.apply(volume_claim("data", "csi", "64Mi"))
        before = write(storage, "data", node)
        assert _attachments(storage.home)
        bridged.apply(volume_claim("copy", far, "64Mi"))
        copy("data", "copy", bridged.node)
        wait_for(lambda: not _attachments(storage.home), "the source is detached")
        assert digest(storage, "copy", bridged.node) == before
        bridged.apply(volume_claim("back", "csi", "64Mi"))
        copy("copy", "back", node)
        assert digest(storage, "back", node) == before
        storage.clear()
