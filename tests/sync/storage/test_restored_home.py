"""A home that was restored from a backup finds its volumes, and deletes none that it does not
know."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS
from tests.fakeapi.store import Store
from tests.sync.storage.storage_harness import NODE, Storage
from translators.storage.identifiers import ANNOTATION_SELECTED_NODE


@dataclass(slots=True)
class Backup:
    """The state of home's API server at one time."""

    storage: Storage
    saved: Store

    @classmethod
    def of(cls, storage: Storage) -> Backup:
        saved = Store(storage.home.store.registry)
        saved.copy_state(storage.home.store)
        return cls(storage, saved)

    async def restore(self) -> None:
        """Stops the bridge, restores home with the UIDs of its objects, and joins again."""
        await self.stop()
        await self.storage.harness.start()
        await self.storage.settle()

    async def stop(self) -> None:
        """Stops the bridge, and restores home."""
        storage = self.storage
        await storage.harness.stop()
        latest = storage.home.store.history.revision
        storage.home.store.copy_state(self.saved)
        storage.home.store.history.revision = latest


def _uids(storage: Storage) -> set[str]:
    return {it["metadata"]["uid"] for it in storage.remote_claims()}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
async def test_volumes_created_after_the_backup_stay(storage: Storage, policy: str) -> None:
    storage.home_class(reclaimPolicy=policy)
    await storage.harness.start()
    await storage.bound("old")
    backup = Backup.of(storage)
    await storage.bound("new")
    before = _uids(storage)
    await backup.restore()
    assert _uids(storage) == before
    assert [it["metadata"]["name"] for it in storage.home.objects(PERSISTENT_VOLUME_CLAIMS)] == [
        "old"
    ]


async def test_claim_that_was_unbound_in_the_backup_gets_its_volume_again(storage: Storage) -> None:
    await storage.harness.start()
    storage.claim()
    backup = Backup.of(storage)
    await storage.settle()
    before = _uids(storage)
    await backup.restore()
    assert _uids(storage) == before
    assert storage.home_claim()["status"]["phase"] == "Bound"


async def test_claim_of_the_same_name_gets_another_volume(storage: Storage) -> None:
    """The restored home does not know the volume of a PVC that was created after the backup."""
    await storage.harness.start()
    backup = Backup.of(storage)
    await storage.bound()
    before = _uids(storage)
    await backup.restore()
    await storage.bound()
    assert _uids(storage) > before
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    assert _uids(storage) == before


async def test_other_node_in_the_backup_leaves_the_data(storage: Storage) -> None:
    """The restored home's scheduler chooses another node for a PVC that was bound here since."""
    await storage.harness.start()
    storage.claim(node="")
    backup = Backup.of(storage)
    _select(storage, NODE)
    await storage.settle()
    before = _uids(storage)
    assert len(before) == 1
    await backup.stop()
    _select(storage, "another")
    await storage.harness.start()
    await storage.settle()
    assert _uids(storage) == before


def _select(storage: Storage, node: str) -> None:
    """Home's scheduler selects a node for the PVC."""
    patch = {"metadata": {"annotations": {ANNOTATION_SELECTED_NODE: node}}}
    storage.home.update(PERSISTENT_VOLUME_CLAIMS, "data", patch, "default")


async def test_claim_deleted_after_the_backup_gets_no_empty_volume(storage: Storage) -> None:
    await storage.harness.start()
    await storage.bound()
    backup = Backup.of(storage)
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.settle()
    assert not storage.remote_claims()
    await backup.restore()
    assert not storage.remote_claims()
    assert len(storage.volumes()) == 1
