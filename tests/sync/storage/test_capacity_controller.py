"""Home's scheduler learns how large a volume the remote can provide."""

from __future__ import annotations

import asyncio

import pytest

from sync.base.background_task import background_task
from sync.kube.api_resources import CSI_STORAGE_CAPACITIES, STORAGE_CLASSES
from sync.storage.capacity_controller import SETTLE
from tests.sync.engine_harness import NODE
from tests.sync.storage.storage_harness import CLASS, Storage
from translators.storage.storage_capacity import NO_LIMIT


def _capacities(storage: Storage) -> dict[str, str]:
    """The reported capacity of each class."""
    found = storage.home.objects(CSI_STORAGE_CAPACITIES)
    return {it["storageClassName"]: it["capacity"] for it in found}


def _report(storage: Storage, name: str, *, capacity: str, **fields: str) -> None:
    """Has a driver of the remote report the capacity of a segment."""
    storage.remote.put(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": name, "namespace": "kube-system"},
            "storageClassName": "fast",
            "capacity": capacity,
            **fields,
        }
    )


async def _settle(storage: Storage) -> None:
    """Waits until a change in the remote is reported."""
    await asyncio.sleep(2 * SETTLE)
    await storage.harness.settle()


async def test_class_without_known_limit_has_large_capacity(storage: Storage) -> None:
    await storage.harness.start()
    (made,) = storage.home.objects(CSI_STORAGE_CAPACITIES)
    assert made["capacity"] == NO_LIMIT
    assert made["nodeTopology"] == {"matchLabels": {"kubernetes.io/hostname": NODE}}


async def test_largest_segment_of_remote_is_reported(storage: Storage) -> None:
    _report(storage, "a", capacity="5Gi")
    _report(storage, "b", capacity="20Gi", maximumVolumeSize="8Gi")
    await storage.harness.start()
    assert _capacities(storage) == {CLASS: "8Gi"}
    _report(storage, "a", capacity="12Gi")
    await _settle(storage)
    assert _capacities(storage) == {CLASS: "12Gi"}


async def test_class_that_cannot_be_served_has_no_capacity(storage: Storage) -> None:
    storage.home_class(parameters={"remoteStorageClass": "tape"})
    await storage.harness.start()
    assert _capacities(storage) == {CLASS: "0"}
    storage.remote_class("tape", default=False)
    await _settle(storage)
    assert _capacities(storage) == {CLASS: NO_LIMIT}


async def test_deleted_class_and_other_provisioners_have_none(storage: Storage) -> None:
    storage.home_class("local", provisioner="example.com/local")
    await storage.harness.start()
    assert _capacities(storage).keys() == {CLASS}
    storage.home.delete(STORAGE_CLASSES, CLASS)
    await storage.harness.settle()
    assert not _capacities(storage)


async def test_unchanged_capacity_is_not_written_again(storage: Storage) -> None:
    await storage.harness.start()
    storage.harness.clear_logs()
    _report(storage, "x", capacity="1Ei")
    await _settle(storage)
    assert not storage.harness.writes()
    storage.home.delete(CSI_STORAGE_CAPACITIES, _name(storage), "cluster-bridge")
    await storage.harness.settle()
    assert _capacities(storage) == {CLASS: NO_LIMIT}


@pytest.mark.parametrize("change", ["capacity", "deletion"])
async def test_object_that_another_client_sets_back_is_written_at_growing_intervals(
    storage: Storage, change: str
) -> None:
    await storage.harness.start()
    name = _name(storage)

    async def set_back() -> None:
        while True:
            await asyncio.sleep(0.1)
            if storage.home.find(CSI_STORAGE_CAPACITIES, name, "cluster-bridge") is None:
                continue
            if change == "deletion":
                storage.home.remove(CSI_STORAGE_CAPACITIES, name, "cluster-bridge")
            else:
                storage.home.update(
                    CSI_STORAGE_CAPACITIES, name, {"capacity": "1"}, "cluster-bridge"
                )

    async with background_task(set_back(), name="set-back"):
        await asyncio.sleep(60)
    assert 3 <= len(storage.home.writes("*/csistoragecapacities*")) <= 10
    await asyncio.sleep(60)
    assert _capacities(storage) == {CLASS: NO_LIMIT}


async def test_capacity_that_the_remote_changes_all_the_time_is_written_once_a_second(
    storage: Storage,
) -> None:
    await storage.harness.start()

    async def alternate() -> None:
        while True:
            for capacity in ("5Gi", "6Gi"):
                _report(storage, "a", capacity=capacity)
                await asyncio.sleep(0.05)

    async with background_task(alternate(), name="alternate"):
        await asyncio.sleep(30)
    assert 3 <= len(storage.home.writes("*/csistoragecapacities*")) <= 32
    _report(storage, "a", capacity="7Gi")
    await asyncio.sleep(2)
    assert _capacities(storage) == {CLASS: "7Gi"}


def _name(storage: Storage) -> str:
    (made,) = storage.home.objects(CSI_STORAGE_CAPACITIES)
    return str(made["metadata"]["name"])
