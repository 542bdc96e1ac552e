"""Decides the next action for one of home's VolumeSnapshotContents. Pure.

| content                       | remote VolumeSnapshot | action                                  |
|-------------------------------|-----------------------|-----------------------------------------|
| new                           | none                  | create it                               |
| new, the remote has no volume | none                  | report the error                        |
| exists                        | exists                | show its status                         |
| exists, was taken             | none                  | report the error                        |
| being deleted, Delete         | exists                | delete it                               |
| being deleted, Delete         | being deleted         | none: wait                              |
| being deleted, Delete         | none, or another's    | confirm, then remove the finalizer      |
| being deleted, Retain         | any                   | remove the finalizer                    |
| source of another driver      | none                  | report the error                        |
| the same, being deleted       | none                  | remove the finalizer                    |

A snapshot is taken once: a remote VolumeSnapshot that no longer exists is not created again, with
later data.
"""

from __future__ import annotations

from dataclasses import dataclass

from translators.object_accessors import Object, is_deleting, metadata
from translators.storage import volume_snapshot
from translators.storage.identifiers import VolumeHandle
from translators.storage.volume_snapshot import FINALIZER, SnapshotClassError
from translators.translation_options import Policy


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The known state of one content whose snapshot is, or is to be, in this remote, or in none."""

    content: Object
    handle: VolumeHandle | None
    """The remote VolumeSnapshot; None if the content's source is no volume of any remote."""
    remote: Object | None
    """The remote VolumeSnapshot of the handle, if this home manages it."""
    claim: Object | None
    """The remote PVC of which the snapshot is to be taken, if this home manages it."""
    home_class: Object | None


@dataclass(frozen=True, slots=True)
class CreateSnapshot:
    """Create the VolumeSnapshot in the remote."""

    snapshot: Object


@dataclass(frozen=True, slots=True)
class PatchContent:
    """Patch the content's status."""

    patch: Object


@dataclass(frozen=True, slots=True)
class DeleteSnapshot:
    """Delete the VolumeSnapshot in the remote, by UID."""

    remote: Object


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Remove the finalizer of the content; with ``confirm`` only if the remote's API server has no
    VolumeSnapshot of this home either."""

    confirm: bool


Action = CreateSnapshot | PatchContent | DeleteSnapshot | RemoveFinalizer


def plan_action(state: SnapshotState, policy: Policy, now: str) -> Action | None:
    """The next write; None if there is nothing to do, or only to wait. `now` is an RFC 3339
    time."""
    content, remote = state.content, state.remote
    if state.handle is None:
        return _plan_other_source(content, now)
    if remote is not None and not volume_snapshot.is_snapshot_of(remote, content, policy.identity):
        remote = None
    if is_deleting(content):
        return _release(content, remote)
    if remote is not None:
        patch = volume_snapshot.status_patch(content, remote, state.handle)
        return PatchContent(patch) if patch else None
    was_taken = (content.get("status") or {}).get("snapshotHandle")
    if was_taken or volume_snapshot.source_handle(content) is None:
        place = f"{state.handle.namespace}/{state.handle.name}"
        return _error(content, f"remote: VolumeSnapshot {place} does not exist", now)
    if state.claim is None or is_deleting(state.claim):
        return _error(content, "remote: the PersistentVolumeClaim does not exist", now)
    try:
        wanted = volume_snapshot.to_remote(content, state.claim, state.home_class, policy)
    except SnapshotClassError as error:
        return _error(content, f"home: {error}", now)
    return CreateSnapshot(wanted)


def _plan_other_source(content: Object, now: str) -> Action | None:
    if is_deleting(content):
        return RemoveFinalizer(confirm=False) if _is_held(content) else None
    message = (
        "home: the volume is not in a remote cluster; use a VolumeSnapshotClass of the driver that "
        "the volume has"
    )
    return _error(content, message, now)


def _is_held(content: Object) -> bool:
    """Whether only the driver's side holds a content that is being deleted."""
    finalizers = metadata(content).get("finalizers") or ()
    return FINALIZER in finalizers and volume_snapshot.is_released(content)


def _release(content: Object, remote: Object | None) -> Action | None:
    if not _is_held(content):
        return None
    if not volume_snapshot.deletes_data(content):
        return RemoveFinalizer(confirm=False)
    if remote is None:
        return RemoveFinalizer(confirm=True)
    return None if is_deleting(remote) else DeleteSnapshot(remote)


def _error(content: Object, message: str, now: str) -> Action | None:
    patch = volume_snapshot.error_patch(content, message, now)
    return PatchContent(patch) if patch else None
