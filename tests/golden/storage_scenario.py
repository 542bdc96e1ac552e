"""PersistentVolumeClaims, PersistentVolumes and VolumeSnapshots. The scenario plays home's and the
remote's controllers of storage."""

from __future__ import annotations

import itertools
from typing import Any

from sync.kube.api_resources import (
    CSI_STORAGE_CAPACITIES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Object,
)
from tests.golden import pods_scenario
from tests.golden.worlds import World

_DRIVER = "volumes.cluster-bridge.io"
_DELETED = {"snapshot.storage.kubernetes.io/volumesnapshot-being-deleted": "yes"}


async def collect(world: World) -> dict[str, Any]:
    """The objects after provisioning, expansion, a snapshot, and deletion."""
    _serve_snapshots(world)
    _put_remote_classes(world)
    world.put("storage")
    options = ["--network", "none", "--service-accounts", "none", "--storage", "provision"]
    states: dict[str, Any] = {}
    async with world.bridge(*options):
        await _settle(world)
        states["provisioned"] = _state(world)
        states["pod"] = world.remote.get(PODS, "db", pods_scenario.REMOTE_SHOP)
        _change(world)
        await _settle(world)
        states["expanded"] = _state(world)
        _take_snapshot(world)
        await world.settle()
        states["snapshot-requested"] = _state(world)
        _finish_snapshot(world)
        await world.settle()
        states["snapshot-taken"] = _state(world)
        _delete(world)
        await _settle(world)
        states["deleted"] = _state(world)
        states["events"] = pods_scenario.events(world)
    recorded = ["provisioned", "expanded", "snapshot-requested", "snapshot-taken", "deleted"]
    redacted: dict[str, Any] = world.redact(states)
    first = {"provisioned": redacted["provisioned"], "pod": redacted["pod"]}
    changes = {
        name: pods_scenario.changes(redacted[before], redacted[name])
        for before, name in itertools.pairwise(recorded)
    }
    return {**first, **changes, "events": redacted["events"]}


def _serve_snapshots(world: World) -> None:
    for api in (world.home, world.remote):
        api.register(VOLUME_SNAPSHOTS)
        api.register(VOLUME_SNAPSHOT_CONTENTS)
        api.register(VOLUME_SNAPSHOT_CLASSES, status=False)
    world.home.put(
        VOLUME_SNAPSHOT_CLASSES.manifest(
            {"name": "burst"},
            driver=_DRIVER,
            deletionPolicy="Delete",
            parameters={"remoteVolumeSnapshotClass": "fast"},
        )
    )


def _put_remote_classes(world: World) -> None:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    for name, marks in (("standard", default), ("fast", {})):
        world.remote.put(
            STORAGE_CLASSES.manifest(
                {"name": name, "annotations": marks},
                provisioner="example.com/disk",
                volumeBindingMode="Immediate",
                allowVolumeExpansion=True,
            )
        )


async def _settle(world: World) -> None:
    """Waits until bridge and controllers have nothing left to do."""
    await world.settle()
    while any([_bind_home(world), _release_home(world), _bind_remote(world)]):
        await world.settle()


def _bind_home(world: World) -> bool:
    """Home's PersistentVolume controller binds each volume to its PVC."""
    changed = False
    for volume in world.home.objects(PERSISTENT_VOLUMES):
        claim = _claim_of(world, volume)
        if claim is None or claim["status"].get("phase") == "Bound":
            continue
        name, capacity = volume["metadata"]["name"], volume["spec"]["capacity"]
        status = {"phase": "Bound", "capacity": capacity}
        bound = {"spec": {"volumeName": name}, "status": status}
        world.home.update(
            PERSISTENT_VOLUME_CLAIMS,
            claim["metadata"]["name"],
            bound,
            claim["metadata"]["namespace"],
        )
        world.home.update(PERSISTENT_VOLUMES, name, {"status": {"phase": "Bound"}})
        changed = True
    return changed


def _release_home(world: World) -> bool:
    """Home's PersistentVolume controller releases the volumes of deleted PVCs."""
    changed = False
    for volume in world.home.objects(PERSISTENT_VOLUMES):
        released = (volume.get("status") or {}).get("phase") == "Released"
        if _claim_of(world, volume) is None and not released:
            status = {"status": {"phase": "Released"}}
            world.home.update(PERSISTENT_VOLUMES, volume["metadata"]["name"], status)
            changed = True
    return changed


def _claim_of(world: World, volume: Object) -> Object | None:
    reference = volume["spec"]["claimRef"]
    return world.home.find(PERSISTENT_VOLUME_CLAIMS, reference["name"], reference["namespace"])


def _bind_remote(world: World) -> bool:
    """The remote's provisioner and resizer give each PVC what it requests."""
    changed = False
    for claim in world.remote.objects(PERSISTENT_VOLUME_CLAIMS):
        capacity = {"storage": claim["spec"]["resources"]["requests"]["storage"]}
        if (claim.get("status") or {}).get("capacity") == capacity:
            continue
        meta = claim["metadata"]
        bound = {
            "spec": {"volumeName": f"disk-{meta['name']}"},
            "status": {"phase": "Bound", "capacity": capacity},
        }
        world.remote.update(PERSISTENT_VOLUME_CLAIMS, meta["name"], bound, meta["namespace"])
        changed = True
    return changed


def _change(world: World) -> None:
    """A user expands a PVC and changes its metadata."""
    change = {
        "metadata": {"labels": {"added": "a"}, "annotations": {"example.com/note": None}},
        "spec": {"resources": {"requests": {"storage": "3Gi"}}},
    }
    world.home.update(PERSISTENT_VOLUME_CLAIMS, "data", change, "shop")


def _take_snapshot(world: World) -> None:
    """Home's snapshot controller creates the content of a VolumeSnapshot."""
    snapshot = world.home.put(
        VOLUME_SNAPSHOTS.manifest(
            {"name": "before", "namespace": "shop"},
            spec={"source": {"persistentVolumeClaimName": "data"}},
        )
    )
    volume = world.home.get(PERSISTENT_VOLUME_CLAIMS, "data", "shop")["spec"]["volumeName"]
    handle = world.home.get(PERSISTENT_VOLUMES, volume)["spec"]["csi"]["volumeHandle"]
    uid = snapshot["metadata"]["uid"]
    world.home.put(
        VOLUME_SNAPSHOT_CONTENTS.manifest(
            {"name": f"snapcontent-{uid}"},
            spec={
                "driver": _DRIVER,
                "deletionPolicy": "Delete",
                "source": {"volumeHandle": handle},
                "volumeSnapshotClassName": "burst",
                "volumeSnapshotRef": {"namespace": "shop", "name": "before", "uid": uid},
            },
        )
    )


def _finish_snapshot(world: World) -> None:
    """The remote takes the snapshot."""
    for snapshot in world.remote.objects(VOLUME_SNAPSHOTS):
        status = {
            "readyToUse": True,
            "creationTime": "2020-01-02T03:04:05Z",
            "restoreSize": "3Gi",
            "boundVolumeSnapshotContentName": "snapcontent-remote",
        }
        meta = snapshot["metadata"]
        world.remote.update(VOLUME_SNAPSHOTS, meta["name"], {"status": status}, meta["namespace"])


def _delete(world: World) -> None:
    """A user deletes pod, PVCs and snapshot, and the snapshot controller the content."""
    world.home.remove(PODS, "db", "shop")
    for name in ("data", "block"):
        world.home.remove(PERSISTENT_VOLUME_CLAIMS, name, "shop")
    world.home.remove(VOLUME_SNAPSHOTS, "before", "shop")
    for content in world.home.objects(VOLUME_SNAPSHOT_CONTENTS):
        name = content["metadata"]["name"]
        annotations = {"metadata": {"annotations": _DELETED}}
        world.home.update(VOLUME_SNAPSHOT_CONTENTS, name, annotations)
        world.home.delete(VOLUME_SNAPSHOT_CONTENTS, name)


def _state(world: World) -> Object:
    kinds = (
        *(PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, VOLUME_SNAPSHOTS),
        *(VOLUME_SNAPSHOT_CONTENTS, CSI_STORAGE_CAPACITIES),
    )
    return {
        f"{side} {key}": obj
        for side in ("home", "remote")
        for key, obj in world.objects(side, *kinds).items()
    }
