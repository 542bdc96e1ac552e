"""The bridge deletes data in the remote only after the deletion of a home PVC whose volume has the
reclaim policy Delete."""

from __future__ import annotations

import pytest

from sync.cache.store import Key
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, Resource
from sync.storage.volume_controller import VolumeController
from tests.fakeapi import FakeApi, Fault
from tests.sync.engine_harness import REMOTE_NAMESPACE
from tests.sync.storage.storage_harness import Storage
from translators.ownership_labels import LABEL_HOME


async def _delete_claim(storage: Storage) -> None:
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle(waiting=True)


async def test_delete_policy_deletes_remote_claim_and_volume(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    await _delete_claim(storage)
    assert not storage.remote_claims()
    assert not storage.volumes()
    deletions = storage.harness.engine.find(VolumeController).deletions
    assert deletions == {"success": 1, "failure": 0}


async def test_deletion_confirms_once_before_and_once_after_the_remote(storage: Storage) -> None:
    """Both objects have finalizers of Kubernetes, as in every cluster: their deletion takes a
    while, in which nothing is read or written again."""
    await storage.harness.start()
    home = await storage.bound()
    remote, name = storage.remote_claim(home), storage.volume()["metadata"]["name"]
    assert remote is not None
    there = (PERSISTENT_VOLUME_CLAIMS, remote["metadata"]["name"], REMOTE_NAMESPACE)
    _set_finalizers(storage.remote, ["kubernetes.io/pvc-protection"], *there)
    protected = [*storage.volume()["metadata"]["finalizers"], "kubernetes.io/pv-protection"]
    _set_finalizers(storage.home, protected, PERSISTENT_VOLUMES, name)
    await storage.settle()
    reads = len(storage.remote.requests("GET", "*/persistentvolumeclaims/*"))
    writes = len(storage.home.requests("PATCH", f"*/persistentvolumes/{name}"))

    await _delete_claim(storage)
    assert len(storage.remote.requests("DELETE", "*/persistentvolumeclaims/*")) == 1
    assert len(storage.home.requests("PATCH", f"*/persistentvolumes/{name}")) == writes + 1
    storage.remote.remove(*there)
    await storage.settle(waiting=True)
    # A second confirmation, and the finalizer.
    assert len(storage.home.requests("PATCH", f"*/persistentvolumes/{name}")) == writes + 3
    assert len(storage.remote.requests("GET", "*/persistentvolumeclaims/*")) == reads + 2
    assert len(storage.home.requests("DELETE", f"*/persistentvolumes/{name}")) == 1
    assert storage.volume()["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]


def _set_finalizers(
    cluster: FakeApi,
    finalizers: list[str],
    resource: Resource,
    name: str,
    namespace: str | None = None,
) -> None:
    cluster.update(resource, name, {"metadata": {"finalizers": finalizers}}, namespace)


async def test_retain_policy_keeps_remote_claim(storage: Storage) -> None:
    storage.home_class(reclaimPolicy="Retain")
    await storage.harness.start()
    await storage.bound()
    await _delete_claim(storage)
    assert len(storage.remote_claims()) == 1
    name = storage.volume()["metadata"]["name"]
    storage.home.delete(PERSISTENT_VOLUMES, name)
    await storage.settle()
    assert not storage.volumes()
    assert len(storage.remote_claims()) == 1


async def test_volume_that_is_made_available_again_keeps_its_data(storage: Storage) -> None:
    """An administrator removes the UID of the deleted PVC, to bind the PersistentVolume again; for
    a moment it is still Released."""
    await storage.harness.start()
    await storage.bound()
    await storage.harness.stop()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    name = storage.volume()["metadata"]["name"]
    change = {"spec": {"claimRef": {"uid": None}}, "status": {"phase": "Released"}}
    storage.home.update(PERSISTENT_VOLUMES, name, change)
    await storage.harness.start()
    await storage.harness.settle(waiting=True)
    assert len(storage.remote_claims()) == 1
    assert storage.volume()


async def test_policy_changed_to_retain_keeps_remote_claim(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    storage.home.update(
        PERSISTENT_VOLUMES,
        storage.volume()["metadata"]["name"],
        {"spec": {"persistentVolumeReclaimPolicy": "Retain"}},
    )
    await _delete_claim(storage)
    assert len(storage.remote_claims()) == 1


async def test_volume_deleted_before_claim_is_reclaimed_after_claim(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    storage.home.delete(PERSISTENT_VOLUMES, storage.volume()["metadata"]["name"])
    await storage.settle()
    assert len(storage.remote_claims()) == 1
    assert storage.volume()["metadata"]["deletionTimestamp"]
    await _delete_claim(storage)
    assert not storage.volumes()
    assert not storage.remote_claims()


async def test_volume_removed_by_force_keeps_remote_claim(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    storage.home.remove(PERSISTENT_VOLUMES, storage.volume()["metadata"]["name"])
    await _delete_claim(storage)
    assert len(storage.remote_claims()) == 1


async def test_released_phase_does_not_suffice_while_claim_exists(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    name = storage.volume()["metadata"]["name"]
    storage.home.update(PERSISTENT_VOLUMES, name, {"status": {"phase": "Released"}})
    await storage.harness.settle()
    assert len(storage.remote_claims()) == 1
    assert storage.volume()


async def test_data_that_is_kept_at_the_last_moment_stays(storage: Storage) -> None:
    """An administrator changes the reclaim policy, and the bridge's cache does not show it yet."""
    await storage.harness.start()
    await storage.bound()
    name = storage.volume()["metadata"]["name"]
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    storage.home.mute_watches()
    storage.home.update(
        PERSISTENT_VOLUMES, name, {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}
    )
    controller = storage.harness.engine.find(VolumeController)
    stale = {**storage.volume(), "status": {"phase": "Released"}}
    stale["spec"] = {**stale["spec"], "persistentVolumeReclaimPolicy": "Delete"}
    stale["metadata"] = {**stale["metadata"], "resourceVersion": "1"}
    controller.storage.home_volumes.store.put(stale)
    controller.controller.queue.add(Key("", name))
    await storage.home.until(lambda: storage.home.requests("PATCH", f"*/persistentvolumes/{name}"))
    storage.home.unmute_watches()
    await storage.settle(waiting=True)
    assert len(storage.remote_claims()) == 1
    assert not storage.remote.requests("DELETE")


async def test_remote_claim_of_another_uid_is_kept(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    storage.remote.remove(PERSISTENT_VOLUME_CLAIMS, remote["metadata"]["name"], REMOTE_NAMESPACE)
    again = {key: remote[key] for key in ("apiVersion", "kind", "spec")}
    kept = ("name", "namespace", "labels", "annotations")
    storage.remote.put(again | {"metadata": {key: remote["metadata"][key] for key in kept}})
    await _delete_claim(storage)
    assert len(storage.remote_claims()) == 1
    assert not storage.volumes()


async def test_remote_claim_without_bridge_labels_is_kept(storage: Storage) -> None:
    await storage.harness.start()
    home = await storage.bound()
    remote = storage.remote_claim(home)
    assert remote is not None
    storage.remote.update(
        PERSISTENT_VOLUME_CLAIMS,
        remote["metadata"]["name"],
        {"metadata": {"labels": {LABEL_HOME: None}}},
        REMOTE_NAMESPACE,
    )
    await _delete_claim(storage)
    assert len(storage.remote_claims()) == 1


async def test_deletion_waits_for_remote_that_is_away(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    fault = storage.remote.fail(Fault("GET", "*/persistentvolumeclaims/*", code=503, times=None))
    await _delete_claim(storage)
    assert len(storage.volumes()) == 1
    storage.remote.heal(fault)
    storage.harness.engine.retry_now()
    await storage.settle()
    assert not storage.volumes()
    assert not storage.remote_claims()


async def test_volume_of_another_remote_is_ignored(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    name = storage.volume()["metadata"]["name"]
    handle = {"volumeHandle": "another/default-h/x"}
    storage.home.update(PERSISTENT_VOLUMES, name, {"spec": {"csi": handle}})
    await _delete_claim(storage)
    assert len(storage.volumes()) == 1


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_claim_deleted_while_bridge_is_away(storage: Storage, policy: str) -> None:
    storage.home_class(reclaimPolicy=policy)
    await storage.harness.start()
    await storage.bound()
    await storage.harness.stop()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    storage.act()
    await storage.harness.start()
    await storage.settle()
    assert bool(storage.remote_claims()) == (policy == "Retain")
