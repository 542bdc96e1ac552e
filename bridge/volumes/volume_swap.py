"""Swaps the data of two PersistentVolumeClaims by re-creating their PersistentVolumes.

The source and the node affinity of a PersistentVolume are immutable, and a claim names its
PersistentVolume for ever. So both PersistentVolumes are deleted, without their data, and created
again under the same names, each with the data of the other. The claims are Lost in between, so that
home's scheduler starts no pod with them, and Bound afterwards.

The data is safe at each moment: the reclaim policy is Retain before a PersistentVolume is deleted,
no two PersistentVolumes lead to the same data, and the caller has recorded both before the first is
deleted (`bridge.volumes.transfer_record`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from sync.kube.api_errors import AlreadyExists, Conflict, NotFound
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from sync.kube.client import KubeClient
from translators.object_accessors import Object, is_deleting, metadata, name_of, uid_of
from translators.storage.identifiers import is_bound

#: Seconds between reads while a controller of home is awaited, and until that is an error.
POLL_SECONDS, CONTROLLER_SECONDS = 0.1, 60.0
#: Fields of a PersistentVolume's spec that do not say where its data is.
_GENERAL = frozenset(
    {
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    }
)
#: Finalizers that a controller adds where one is due.
_ADDED = ("kubernetes.io/", "external-attacher/")


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a PersistentVolume and keep its data."""

    volume: Object


@dataclass(frozen=True, slots=True)
class Create:
    """Create a PersistentVolume."""

    volume: Object


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Give a PersistentVolume its own reclaim policy again."""

    volume: Object
    policy: str


Action = Remove | Create | SetPolicy


def swapped(one: Object, other: Object) -> dict[str, Object]:
    """Both PersistentVolumes with the data of the other, by name."""
    return {name_of(one): _with_data_of(one, other), name_of(other): _with_data_of(other, one)}


def restored(volumes: Mapping[str, Object]) -> dict[str, Object]:
    """The inverse of `swapped`."""
    one, other = volumes.values()
    return swapped(one, other)


def has_data(volume: Object | None, wanted: Object) -> bool:
    """Whether a PersistentVolume exists, is for the same claim and has the same data."""
    if volume is None or is_deleting(volume):
        return False
    return _data(volume) == _data(wanted) and _claim_uid(volume) == _claim_uid(wanted)


def plan_volumes(
    current: Mapping[str, Object | None], wanted: Mapping[str, Object]
) -> list[Action]:
    """The next writes by which the current PersistentVolumes become the wanted ones; [] if they
    are. None is created before each with other data is deleted."""
    found = [(it, wanted[name]) for name, it in current.items() if it is not None]
    stale: list[Action] = [Remove(it) for it, goal in found if not has_data(it, goal)]
    if stale:
        return stale
    policies: list[Action] = [
        SetPolicy(it, _policy(goal)) for it, goal in found if _policy(it) != _policy(goal)
    ]
    return policies + [Create(it) for name, it in wanted.items() if current[name] is None]


async def read_volumes(home: KubeClient, names: Mapping[str, Object]) -> dict[str, Object | None]:
    """The PersistentVolumes of these names. Raises KubeError."""
    return {name: await home.find(PERSISTENT_VOLUMES, name) for name in names}


async def reach(home: KubeClient, wanted: Mapping[str, Object]) -> None:
    """Makes the PersistentVolumes the wanted ones, from any state between. Raises KubeError."""
    while actions := plan_volumes(await read_volumes(home, wanted), wanted):
        for action in actions:
            match action:
                case Remove(volume):
                    await remove(home, volume)
                case Create(volume):
                    await _create(home, volume)
                case SetPolicy(volume, policy):
                    await _set_policy(home, volume, policy)


async def remove(home: KubeClient, volume: Object) -> None:
    """Deletes a PersistentVolume and keeps its data. Raises KubeError."""
    name, uid = name_of(volume), uid_of(volume)
    try:
        if _policy(volume) != "Retain":
            await _set_policy(home, volume, "Retain")
        await home.delete(PERSISTENT_VOLUMES, name, uid=uid)
        # A bound PersistentVolume is protected, and its provisioner's finalizers wait for it.
        meta: Object = {"uid": uid, "finalizers": None}
        await home.patch(PERSISTENT_VOLUMES, name, {"metadata": meta})
    except (NotFound, Conflict):
        return  # Gone; the caller reads again.


async def wait_until_bound(home: KubeClient, namespace: str, *claims: str) -> None:
    """Waits until home's PersistentVolume controller has bound the claims again. Raises
    PreflightError and KubeError."""
    try:
        async with asyncio.timeout(CONTROLLER_SECONDS):
            for name in claims:
                while True:
                    found = await home.find(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
                    if found is None or is_bound(found):
                        break
                    await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise PreflightError(
            f"home: PersistentVolumeClaim {namespace}/{name} is not Bound after "
            f"{CONTROLLER_SECONDS:.0f} s; check home's kube-controller-manager, and run the "
            "command again"
        ) from None


async def _create(home: KubeClient, volume: Object) -> None:
    try:
        await home.create(PERSISTENT_VOLUMES, volume)
    except AlreadyExists:
        return  # The response to an earlier request was lost; the caller reads again.


async def _set_policy(home: KubeClient, volume: Object, policy: str) -> None:
    spec = {"persistentVolumeReclaimPolicy": policy}
    patch = {"metadata": {"uid": uid_of(volume)}, "spec": spec}
    await home.patch(PERSISTENT_VOLUMES, name_of(volume), patch)


def _with_data_of(place: Object, data: Object) -> Object:
    """The PersistentVolume with the name and the claim of ``place`` and all else of ``data``."""
    meta, reference = metadata(data), place["spec"]["claimRef"]
    kept = {key: meta[key] for key in ("labels", "annotations") if meta.get(key)}
    finalizers = [it for it in meta.get("finalizers") or () if not it.startswith(_ADDED)]
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        **{key: reference[key] for key in ("namespace", "name", "uid")},
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name_of(place), **kept, "finalizers": finalizers},
        "spec": {**data["spec"], "claimRef": claim},
    }


def _data(volume: Object) -> Object:
    return {key: value for key, value in volume["spec"].items() if key not in _GENERAL}


def _policy(volume: Object) -> str:
    return str(volume["spec"].get("persistentVolumeReclaimPolicy") or "")


def _claim_uid(volume: Object) -> str:
    return str((volume["spec"].get("claimRef") or {}).get("uid") or "")
