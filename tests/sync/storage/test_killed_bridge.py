"""A bridge that is killed between any two writes continues where it was: no volume is made twice,
and none is lost."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from tests.fakeapi import Fault, LoggedRequest
from tests.fakeapi.faults import Drop
from tests.fakeapi.request_log import WRITES
from tests.sync.storage.storage_harness import Storage

#: More writes than a volume takes from its creation to its deletion.
WRITES_MAX = 14


@dataclass(slots=True)
class Killer:
    """Ends the bridge's connection at its nth write, and lets none of its later writes pass."""

    storage: Storage
    nth: int
    drop: Drop
    writes: int = 0

    def arm(self) -> None:
        """Begins to count the writes to both clusters."""
        for api in (self.storage.home, self.storage.remote):
            api.fail(Fault(when=self._is_last, times=None, drop=self.drop))
            api.fail(Fault(when=self._is_later, times=None, drop="before"))

    def _is_last(self, entry: LoggedRequest) -> bool:
        if entry.method not in WRITES or entry.path.endswith("/events"):
            return False
        self.writes += 1
        return self.writes == self.nth

    def _is_later(self, entry: LoggedRequest) -> bool:
        return entry.method in WRITES and self.writes > self.nth

    async def settle(self) -> None:
        """Settles; restarts the bridge if it was killed."""
        await self.storage.settle(waiting=True)
        if self.writes >= self.nth:
            await self.storage.harness.stop()
            self.storage.home.heal()
            self.storage.remote.heal()
            await self.storage.harness.start()
            await self.storage.settle()


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, WRITES_MAX))
async def test_bridge_continues_after_every_write(
    storage: Storage, nth: int, drop: Drop, policy: str
) -> None:
    storage.home_class(reclaimPolicy=policy)
    await storage.harness.start()
    killer = Killer(storage, nth, drop)
    killer.arm()
    storage.claim(size="1Gi")
    await killer.settle()
    (remote,) = storage.remote_claims()
    assert storage.home_claim()["status"]["phase"] == "Bound"
    assert len(storage.volumes()) == 1

    storage.home.update(
        PERSISTENT_VOLUME_CLAIMS,
        "data",
        {"spec": {"resources": {"requests": {"storage": "2Gi"}}}},
        "default",
    )
    await killer.settle()
    assert [it["metadata"]["uid"] for it in storage.remote_claims()] == [remote["metadata"]["uid"]]
    assert storage.home_claim()["status"]["capacity"] == {"storage": "2Gi"}

    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await killer.settle()
    kept = [it["metadata"]["uid"] for it in storage.remote_claims()]
    assert kept == ([remote["metadata"]["uid"]] if policy == "Retain" else [])
    assert len(storage.volumes()) == len(kept)


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 6))
async def test_claim_deleted_while_killed_leaves_no_unfinished_claim(
    storage: Storage, nth: int, drop: Drop
) -> None:
    await storage.harness.start()
    killer = Killer(storage, nth, drop)
    killer.arm()
    storage.claim()
    await storage.settle(waiting=True)
    await storage.harness.stop()
    storage.home.heal()
    storage.remote.heal()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    await storage.harness.start()
    await storage.settle()
    assert not storage.volumes()
    assert not storage.remote_claims()


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 8))
async def test_clone_continues_after_every_write(storage: Storage, nth: int, drop: Drop) -> None:
    await storage.harness.start()
    source = storage.remote_claim(await storage.bound("source"))
    assert source is not None
    killer = Killer(storage, nth, drop)
    killer.arm()
    storage.claim("clone", dataSource={"kind": "PersistentVolumeClaim", "name": "source"})
    await killer.settle()
    clone = storage.remote_claim(storage.home_claim("clone"))
    assert clone is not None
    assert clone["spec"]["dataSource"]["name"] == source["metadata"]["name"]
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "clone", "default")
    await killer.settle()
    assert [it["metadata"]["uid"] for it in storage.remote_claims()] == [source["metadata"]["uid"]]


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_volume_of_a_waiting_class_continues_after_every_write(
    storage: Storage, nth: int, drop: Drop
) -> None:
    """The remote provisions for the first pod, which mounts the one volume."""
    storage.remote_class(mode="WaitForFirstConsumer")
    await storage.harness.start()
    killer = Killer(storage, nth, drop)
    killer.arm()
    storage.claim()
    await killer.settle()
    storage.home.heal()
    storage.remote.heal()
    storage.harness.pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}])
    await storage.settle()
    (remote,) = storage.remote_claims()
    pod = storage.harness.remote_pod()
    assert pod is not None
    mounts = [it["persistentVolumeClaim"] for it in pod["spec"]["volumes"] if it["name"] == "v"]
    assert mounts == [{"claimName": remote["metadata"]["name"]}]
    assert remote["status"]["phase"] == "Bound"
    assert len(storage.volumes()) == 1


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 5))
async def test_deletion_of_a_retained_volume_continues_after_every_write(
    storage: Storage, nth: int, drop: Drop
) -> None:
    storage.home_class(reclaimPolicy="Retain")
    await storage.harness.start()
    await storage.bound()
    (remote,) = storage.remote_claims()
    killer = Killer(storage, nth, drop)
    killer.arm()
    storage.home.delete(PERSISTENT_VOLUME_CLAIMS, "data", "default")
    storage.home.delete(PERSISTENT_VOLUMES, storage.volume()["metadata"]["name"])
    await killer.settle()
    assert not storage.volumes()
    assert [it["metadata"]["uid"] for it in storage.remote_claims()] == [remote["metadata"]["uid"]]
