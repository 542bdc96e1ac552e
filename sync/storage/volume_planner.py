"""Decides the next action for one of home's PersistentVolumes whose data is in the remote. Pure.

| policy | PersistentVolume              | remote PVC         | action                        |
|--------|-------------------------------|--------------------|-------------------------------|
| Delete | Released                      | not confirmed      | confirm with both API servers |
| Delete | Released                      | cache: in deletion | none: wait                    |
| Delete | Released, without finalizer   | cache: none        | none: its deletion has begun  |
| Delete | Released, confirmed           | is to be cloned    | report, and wait              |
| Delete | Released, confirmed           | exists             | delete it                     |
| Delete | Released, confirmed           | being deleted      | none: wait                    |
| Delete | Released, confirmed           | gone, or another's | delete the PersistentVolume   |
| any    | being deleted, never bound    | any                | remove the finalizer          |
| Retain | being deleted, not bound      | any                | remove the finalizer          |

*Released* means that home's PersistentVolume controller has seen the deletion of the PVC.
*Confirmed* means that the API servers, and not caches, have answered: home that the
PersistentVolume is unchanged and that it has no such PVC, the remote whether it has the recorded
PVC. In every other state the data stays. The cache only avoids confirmations while a deletion is
under way, which the finalizers of Kubernetes delay: it causes no deletion.

A remote PVC *is to be cloned* while another one of this home cluster, which names it as its data
source, has not been bound. The clone may be Bound in the home cluster, which then permits the
deletion of the source: where the remote's StorageClass waits for the first pod, nothing has been
copied yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from translators.object_accessors import Object, is_deleting, metadata, namespaced_name, uid_of
from translators.ownership_labels import is_owned
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONED_BY,
    DRIVER,
    FINALIZER,
    claim_uid_of_volume,
    remote_claim_uid,
)
from translators.virtual_node_identity import Identity


@dataclass(frozen=True, slots=True)
class ConfirmedState:
    """The answers of both API servers about a released PersistentVolume."""

    claim_exists: bool
    """Whether home still has the PVC, by UID."""
    remote: Object | None
    """The remote PVC of the volume's handle."""
    copies: Sequence[Object] = ()
    """The remote PVCs that are still to be filled from ``remote``."""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Read the home PVC and the remote PVC from their API servers, then plan again."""


@dataclass(frozen=True, slots=True)
class DeleteRemote:
    """Delete the remote PVC, by UID."""

    remote: Object


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Report why the data is not deleted yet; the remote's next change of a copy queues the
    volume."""

    message: str
    copies: Sequence[Object]


@dataclass(frozen=True, slots=True)
class DeleteVolume:
    """Delete the PersistentVolume and remove the bridge's finalizer."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the bridge's finalizer of a PersistentVolume that is being deleted."""


Action = Confirm | AwaitCopies | DeleteRemote | DeleteVolume | RemoveFinalizer


def plan_action(
    volume: Object,
    confirmed: ConfirmedState | None,
    identity: Identity,
    *,
    cached: Object | None = None,
) -> Action | None:
    """The next action for a PersistentVolume of this remote; None if there is nothing to do.

    ``cached`` is the PVC of its handle in the remote, if the cache has one.
    """
    phase = (volume.get("status") or {}).get("phase")
    # Without a UID, an administrator has made the PersistentVolume available again.
    is_released = phase == "Released" and bool(claim_uid_of_volume(volume))
    if is_released and _deletes_data(volume):
        if confirmed is not None:
            return _reclaim(volume, confirmed, identity)
        return None if _is_under_way(volume, cached) else Confirm()
    if is_deleting(volume) and _is_marked(volume) and phase != "Bound":
        return RemoveFinalizer()
    return None


def _is_marked(volume: Object) -> bool:
    return FINALIZER in (metadata(volume).get("finalizers") or ())


def _is_under_way(volume: Object, cached: Object | None) -> bool:
    """Whether the remote PVC is being deleted, or after it the PersistentVolume: the end of either
    is a change."""
    if cached is not None and uid_of(cached) == remote_claim_uid(volume):
        return is_deleting(cached)
    return is_deleting(volume) and not _is_marked(volume)


def _deletes_data(volume: Object) -> bool:
    annotations = metadata(volume).get("annotations") or {}
    policy = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy")
    return policy == "Delete" and annotations.get(ANNOTATION_PROVISIONED_BY) == DRIVER


def _reclaim(volume: Object, confirmed: ConfirmedState, identity: Identity) -> Action | None:
    if confirmed.claim_exists:
        return None
    remote = confirmed.remote
    if remote is None or uid_of(remote) != remote_claim_uid(volume):
        return DeleteVolume()
    if not is_owned(remote, identity):
        return DeleteVolume()  # An administrator of the remote has taken the data over.
    if is_deleting(remote):
        return None
    if confirmed.copies:
        return AwaitCopies(copies_message(remote, confirmed.copies), confirmed.copies)
    return DeleteRemote(remote)


def copies_message(source: Object, copies: Sequence[Object]) -> str:
    """Why a PVC or VolumeSnapshot of the remote is not deleted yet."""
    return (
        f"remote: {source['kind']} {namespaced_name(source)} is kept until PersistentVolumeClaim "
        f"{namespaced_name(copies[0])} has been filled from it, for the first pod that uses that "
        "PersistentVolumeClaim; run the pod, or delete that PersistentVolumeClaim"
    )
