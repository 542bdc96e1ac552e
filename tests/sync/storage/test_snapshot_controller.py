"""VolumeSnapshots of volumes in the remote: taken, shown, restored and deleted there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sync.cache.store import key_of
from sync.kube.api_resources import (
    PERSISTENT_VOLUME_CLAIMS,
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Object,
)
from sync.storage.snapshot_controller import SnapshotController
from tests.fakeapi import Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE
from tests.sync.storage.storage_harness import REMOTE_ID, Storage
from translators.ownership_labels import LABEL_HOME
from translators.storage.identifiers import DRIVER
from translators.storage.volume_snapshot import FINALIZER

_BEING_DELETED = {"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"}
_SNAPSHOT_CLASS = "burst"


@pytest.fixture
def storage(storage: Storage) -> Storage:
    """Two clusters that serve VolumeSnapshots, and a class at home."""
    for api in (storage.home, storage.remote):
        api.register(VOLUME_SNAPSHOTS)
        api.register(VOLUME_SNAPSHOT_CONTENTS)
        api.register(VOLUME_SNAPSHOT_CLASSES, status=False)
    storage.harness.policy = replace(storage.harness.policy, snapshots=True)
    _put_class(storage)
    return storage


def _put_class(storage: Storage, **parameters: str) -> None:
    storage.home.put(
        VOLUME_SNAPSHOT_CLASSES.manifest(
            {"name": _SNAPSHOT_CLASS}, driver=DRIVER, deletionPolicy="Delete", parameters=parameters
        )
    )


def _content(storage: Storage, policy: str = "Delete", **source: str) -> Object:
    """The VolumeSnapshotContent of the VolumeSnapshot ``before``, as a snapshot controller creates
    it."""
    snapshot = storage.home.put(
        VOLUME_SNAPSHOTS.manifest(
            {"name": "before", "namespace": "default"},
            spec={"source": {"persistentVolumeClaimName": "data"}},
        )
    )
    uid = snapshot["metadata"]["uid"]
    handle = storage.volume()["spec"]["csi"]["volumeHandle"]
    reference = {"namespace": "default", "name": "before", "uid": uid}
    return storage.home.put(
        VOLUME_SNAPSHOT_CONTENTS.manifest(
            {"name": f"snapcontent-{uid}", "finalizers": [FINALIZER]},
            spec={
                "driver": DRIVER,
                "deletionPolicy": policy,
                "source": source or {"volumeHandle": handle},
                "volumeSnapshotClassName": _SNAPSHOT_CLASS,
                "volumeSnapshotRef": reference,
            },
        )
    )


def _contents(storage: Storage) -> list[Object]:
    return storage.home.objects(VOLUME_SNAPSHOT_CONTENTS)


def _status(storage: Storage) -> Object:
    (content,) = _contents(storage)
    status: Object = content.get("status") or {}
    return status


def _remote(storage: Storage) -> Object:
    (found,) = storage.remote.objects(VOLUME_SNAPSHOTS, REMOTE_NAMESPACE)
    return found


def _take(storage: Storage) -> Object:
    """The remote takes the snapshot."""
    status = {
        "readyToUse": True,
        "creationTime": "2025-11-03T09:14:01Z",
        "restoreSize": "1Gi",
        "boundVolumeSnapshotContentName": "snapcontent-remote",
    }
    name = _remote(storage)["metadata"]["name"]
    return storage.remote.update(VOLUME_SNAPSHOTS, name, {"status": status}, REMOTE_NAMESPACE)


def _share_status(storage: Storage, content: Object) -> None:
    """Home's snapshot controller copies the status of the content."""
    status = {
        "readyToUse": _status(storage)["readyToUse"],
        "boundVolumeSnapshotContentName": content["metadata"]["name"],
    }
    storage.home.update(VOLUME_SNAPSHOTS, "before", {"status": status}, "default")


def _delete(storage: Storage, content: Object) -> None:
    """Home's snapshot controller deletes the content of a deleted VolumeSnapshot."""
    name = content["metadata"]["name"]
    annotations = {"metadata": {"annotations": _BEING_DELETED}}
    storage.home.update(VOLUME_SNAPSHOT_CONTENTS, name, annotations)
    storage.home.delete(VOLUME_SNAPSHOT_CONTENTS, name)


async def test_snapshot_is_taken_in_remote_and_shown_at_home(storage: Storage) -> None:
    _put_class(storage, remoteVolumeSnapshotClass="fast")
    await storage.harness.start()
    home = await storage.bound()
    _content(storage)
    await storage.settle()
    remote, claim = _remote(storage), storage.remote_claim(home)
    assert claim is not None
    assert remote["spec"] == {
        "source": {"persistentVolumeClaimName": claim["metadata"]["name"]},
        "volumeSnapshotClassName": "fast",
    }
    handle = f"{REMOTE_ID}/{REMOTE_NAMESPACE}/{remote['metadata']['name']}"
    assert _status(storage) == {"snapshotHandle": handle, "readyToUse": False}
    _take(storage)
    await storage.settle()
    assert _status(storage) == {
        "snapshotHandle": handle,
        "readyToUse": True,
        "creationTime": 1762161241000000000,
        "restoreSize": 1 << 30,
    }


async def test_error_of_remote_is_shown(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    _content(storage)
    await storage.settle()
    error = {"message": "no space left", "time": "2025-11-03T09:14:01Z"}
    name = _remote(storage)["metadata"]["name"]
    storage.remote.update(VOLUME_SNAPSHOTS, name, {"status": {"error": error}}, REMOTE_NAMESPACE)
    await storage.settle()
    assert _status(storage)["error"] == error
    assert not _status(storage)["readyToUse"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"typo": "fast"}, "unknown parameter typo; use remoteVolumeSnapshotClass"), ({}, "quota")],
)
async def test_rejected_snapshot_is_reported(
    storage: Storage, parameters: dict[str, str], message: str
) -> None:
    _put_class(storage, **parameters)
    path = f"*/namespaces/{REMOTE_NAMESPACE}/volumesnapshots"
    storage.remote.fail(Fault("POST", path, code=403, message="exceeded quota", times=None))
    await storage.harness.start()
    await storage.bound()
    _content(storage)
    await storage.settle(waiting=True)
    assert message in _status(storage)["error"]["message"]


async def test_no_snapshot_is_taken_for_namespace_that_is_no_longer_bound(storage: Storage) -> None:
    """It is taken when an administrator binds the namespace again."""
    await storage.harness.start()
    await storage.bound()
    message = 'User "system:serviceaccount:cluster-bridge:bridge" cannot patch'
    path = "*/namespaces/default/persistentvolumeclaims/data"
    unbound = storage.home.fail(Fault("PATCH", path, code=403, message=message, times=None))
    _content(storage)
    await storage.settle(waiting=True)
    assert "bridge rbac namespace default" in _status(storage)["error"]["message"]
    assert not _status(storage)["readyToUse"]
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)
    storage.home.heal(unbound)
    await storage.remote.until(lambda: storage.remote.objects(VOLUME_SNAPSHOTS))
    _take(storage)
    await storage.settle()
    assert _status(storage)["readyToUse"]
    assert "error" not in _status(storage)


async def test_no_snapshot_is_taken_of_volume_without_claim(storage: Storage) -> None:
    storage.home_class(reclaimPolicy="Retain")
    await storage.harness.start()
    await storage.bound()
    storage.home.remove(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    _content(storage)
    await storage.settle(waiting=True)
    assert "no PersistentVolumeClaim of namespace default" in _status(storage)["error"]["message"]
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)


async def test_snapshot_of_missing_claim_is_reported(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    _content(storage, volumeHandle=f"{REMOTE_ID}/{REMOTE_NAMESPACE}/other")
    await storage.settle()
    assert "does not exist" in _status(storage)["error"]["message"]
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)


async def test_snapshot_in_another_remote_is_untouched(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    _content(storage, volumeHandle=f"elsewhere/{REMOTE_NAMESPACE}/other")
    await storage.settle()
    assert not _status(storage)


@pytest.mark.parametrize("source", ["volumeHandle", "snapshotHandle"])
async def test_snapshot_of_another_drivers_volume_is_reported_and_deletable(
    storage: Storage, source: str
) -> None:
    """The snapshot controller does not compare the drivers of class and volume, and waits for the
    class's driver to remove the finalizer."""
    await storage.harness.start()
    await storage.bound()
    content = _content(storage, **{source: "vol-1"})
    await storage.settle()
    assert "not in a remote cluster" in _status(storage)["error"]["message"]
    assert not _status(storage)["readyToUse"]
    _delete(storage, content)
    await storage.settle()
    assert not _contents(storage)
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)


async def test_unmanaged_snapshot_of_the_name_is_untouched(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    await storage.settle()
    remote = _remote(storage)
    labels = {"metadata": {"labels": {LABEL_HOME: None}}}
    name = remote["metadata"]["name"]
    storage.remote.update(VOLUME_SNAPSHOTS, name, labels, REMOTE_NAMESPACE)
    _delete(storage, content)
    await storage.settle()
    assert _remote(storage)["metadata"]["uid"] == remote["metadata"]["uid"]
    assert not _contents(storage)


async def test_lost_snapshot_is_not_taken_again(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    _content(storage)
    await storage.settle()
    name = _take(storage)["metadata"]["name"]
    storage.remote.delete(VOLUME_SNAPSHOTS, name, REMOTE_NAMESPACE)
    await storage.settle()
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)
    assert "does not exist" in _status(storage)["error"]["message"]
    assert not _status(storage)["readyToUse"]


@pytest.mark.parametrize(("policy", "left"), [("Delete", 0), ("Retain", 1)])
async def test_deletion_policy_of_home_decides(storage: Storage, policy: str, left: int) -> None:
    await storage.harness.start()
    await storage.bound()
    content = _content(storage, policy)
    await storage.settle()
    _take(storage)
    await storage.settle()
    _delete(storage, content)
    await storage.settle()
    assert len(storage.remote.objects(VOLUME_SNAPSHOTS)) == left
    assert not _contents(storage)


async def test_content_outlives_snapshot_that_is_being_deleted(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    await storage.settle()
    name = _take(storage)["metadata"]["name"]
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    storage.remote.update(VOLUME_SNAPSHOTS, name, hold, REMOTE_NAMESPACE)
    _delete(storage, content)
    await storage.settle()
    assert _remote(storage)["metadata"]["deletionTimestamp"]
    assert _contents(storage)
    storage.remote.remove(VOLUME_SNAPSHOTS, name, REMOTE_NAMESPACE)
    await storage.settle()
    assert not _contents(storage)


async def test_snapshot_that_the_watch_has_not_shown_is_deleted(storage: Storage) -> None:
    """The content is not removed before the API server confirms that the remote has no snapshot."""
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    await storage.settle()
    _take(storage)
    await storage.settle()
    controller = storage.harness.engine.find(SnapshotController)
    informer = controller.snapshots.remote_snapshots
    informer.store.remove(key_of(_remote(storage)))
    _delete(storage, content)
    await storage.home.until(lambda: not _contents(storage))
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)


async def test_deletion_that_the_snapshot_controller_has_not_released_waits(
    storage: Storage,
) -> None:
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    await storage.settle()
    storage.home.delete(VOLUME_SNAPSHOT_CONTENTS, content["metadata"]["name"])
    await storage.settle()
    assert _remote(storage)
    assert _contents(storage)


def _restored(storage: Storage) -> None:
    source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "before"}
    storage.claim("restored", dataSource=source, dataSourceRef=source)


async def test_claim_is_restored_from_snapshot(storage: Storage) -> None:
    """The PVC waits until the snapshot is ready; the remote PVC names the remote's snapshot."""
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    _restored(storage)
    await storage.settle(waiting=True)
    assert len(storage.remote_claims()) == 1
    name = _take(storage)["metadata"]["name"]
    await storage.settle(waiting=True)
    _share_status(storage, content)
    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "restored",
        {"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "virtual"}}},
        "default",
    )
    await storage.settle(waiting=True)
    restored = storage.remote_claim(storage.home_claim("restored"))
    assert restored is not None
    assert restored["spec"]["dataSource"] == {
        "apiGroup": "snapshot.storage.k8s.io",
        "kind": "VolumeSnapshot",
        "name": name,
    }


async def test_snapshot_stays_until_claim_is_restored_from_it(storage: Storage) -> None:
    """The PVC is Bound in the home cluster before the remote restores it for the first pod."""
    storage.remote_class(mode="WaitForFirstConsumer")
    await storage.harness.start()
    await storage.bound()
    content = _content(storage)
    await storage.settle()
    _take(storage)
    await storage.settle()
    _share_status(storage, content)
    _restored(storage)
    await storage.settle()
    home = storage.home_claim("restored")
    assert home["status"]["phase"] == "Bound"
    _delete(storage, content)
    await storage.settle(waiting=True)
    assert not _remote(storage)["metadata"].get("deletionTimestamp")
    restored = storage.remote_claim(home)
    assert restored is not None
    assert restored["metadata"]["name"] in _status(storage)["error"]["message"]
    storage.bind_remote(restored, "1Gi")
    await storage.settle(waiting=True)
    assert not storage.remote.objects(VOLUME_SNAPSHOTS)
    assert not _contents(storage)


async def test_claim_is_not_restored_without_support(storage: Storage) -> None:
    storage.harness.policy = replace(storage.harness.policy, snapshots=False)
    await storage.harness.start()
    _restored(storage)
    await storage.settle(waiting=True)
    events = await storage.harness.events_with_reason("ProvisioningFailed")
    assert any("both clusters need the API" in it["message"] for it in events)
    assert not storage.remote_claims()
