"""The bridge keeps the source of a clone in the remote until the clone has its data."""

from __future__ import annotations

from sync.cache.store import key_of
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, Object
from sync.storage.volume_controller import VolumeController
from tests.sync.engine_harness import REMOTE_NAMESPACE
from tests.sync.storage.storage_harness import Storage


async def _start_with_clone(storage: Storage) -> tuple[Object, Object]:
    """The remote PVCs of a bound source, and of its clone, which is bound in the home cluster while
    the remote waits for the clone's first pod."""
    storage.remote_class(mode="WaitForFirstConsumer")
    await storage.harness.start()
    source = storage.remote_claim(await storage.bound("source"))
    assert source is not None
    storage.bind_remote(source, "1Gi")
    data_source = {"kind": "PersistentVolumeClaim", "name": "source"}
    clone = storage.remote_claim(await storage.bound("clone", dataSource=data_source))
    assert clone is not None
    await storage.settle()
    return source, clone


async def _delete(storage: Storage, name: str) -> None:
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, name, "default")
    await storage.settle(waiting=True)


def _names(storage: Storage) -> set[str]:
    return {claim["metadata"]["name"] for claim in storage.remote_claims()}


async def test_source_stays_until_clone_is_bound_in_remote(storage: Storage) -> None:
    source, clone = await _start_with_clone(storage)
    await _delete(storage, "source")
    assert source["metadata"]["name"] in _names(storage)
    (event,) = await storage.harness.events_with_reason("VolumeFailedDelete")
    assert clone["metadata"]["name"] in event["message"]
    storage.bind_remote(clone, "1Gi")
    await storage.settle(waiting=True)
    assert _names(storage) == {clone["metadata"]["name"]}
    assert len(storage.volumes()) == 1


async def test_source_is_deleted_after_clone_that_was_never_used(storage: Storage) -> None:
    await _start_with_clone(storage)
    await _delete(storage, "source")
    await _delete(storage, "clone")
    assert not storage.remote_claims()
    assert not storage.volumes()


async def test_clone_that_only_the_api_server_shows_keeps_its_source(storage: Storage) -> None:
    """As of another virtual node of the remote, while the watch of this one lags."""
    source, clone = await _start_with_clone(storage)
    volumes = storage.harness.engine.find(VolumeController)
    volumes.storage.remote_claims.store.remove(key_of(clone))
    await _delete(storage, "source")
    assert source["metadata"]["name"] in _names(storage)
    storage.remote.remove(PERSISTENT_VOLUME_CLAIMS, clone["metadata"]["name"], REMOTE_NAMESPACE)
    await storage.remote.until(lambda: not storage.remote_claims())


async def test_source_in_deletion_by_order_of_the_remote_is_not_held(storage: Storage) -> None:
    source, _ = await _start_with_clone(storage)
    storage.remote.remove(PERSISTENT_VOLUME_CLAIMS, source["metadata"]["name"], REMOTE_NAMESPACE)
    await _delete(storage, "source")
    assert len(storage.volumes()) == 1
