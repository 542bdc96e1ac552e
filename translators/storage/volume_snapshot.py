"""Translates VolumeSnapshots of volumes in the remote.

At home, the snapshot controller creates a VolumeSnapshotContent for each VolumeSnapshot, as for
every CSI driver. The bridge does what csi-snapshotter does beside a driver: it creates a
VolumeSnapshot of the remote PVC, shows its status in the content, and deletes it with the content.
Its name follows from the UID of home's VolumeSnapshot, as the names of volumes do.

Parameter of home's VolumeSnapshotClass: `remoteVolumeSnapshotClass`, the class in the remote;
without it, the remote's default class.
"""

from __future__ import annotations

from typing import NamedTuple

from translators.derived_names import DNS_LABEL_MAX, hashed_name
from translators.merge_patch import merge_patch
from translators.object_accessors import (
    Object,
    RemoteNamespace,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import has_home_uid, is_owned, remote_metadata
from translators.quantity import parse_quantity
from translators.size_limits import cut
from translators.storage.home_volume import TEXT_MAX
from translators.storage.identifiers import DRIVER, VolumeHandle, parse_handle
from translators.storage.pvc_resolution import REASON_UNREACHABLE, REASON_WAITING, Unresolved
from translators.timestamps import parse_time
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

GROUP = "snapshot.storage.k8s.io"
KIND = "VolumeSnapshot"
#: A parameter of home's VolumeSnapshotClass.
PARAMETER_CLASS = "remoteVolumeSnapshotClass"
#: The snapshot controller's finalizer on a content, which the driver's side removes.
FINALIZER = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
#: On a content whose VolumeSnapshot is being deleted: the driver's side may act.
_BEING_DELETED = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
_NANOSECONDS = 1_000_000_000
#: The largest number of the API (int64).
_NUMBER_MAX = 2**63 - 1


class SnapshotClassError(ValueError):
    """The VolumeSnapshotClass cannot be served; the message states why, and what to change."""


class SnapshotRef(NamedTuple):
    """Home's VolumeSnapshot of a content."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return "/".join(self)


def is_served(content: Object) -> bool:
    """Whether the bridge is the driver of the content."""
    return (content.get("spec") or {}).get("driver") == DRIVER


def snapshot_ref(content: Object) -> SnapshotRef:
    reference = (content.get("spec") or {}).get("volumeSnapshotRef") or {}
    return SnapshotRef(str(reference.get("namespace") or ""), str(reference.get("name") or ""))


def snapshot_uid(content: Object) -> str:
    """The UID of home's VolumeSnapshot; "" of a content that is not bound to one."""
    reference = (content.get("spec") or {}).get("volumeSnapshotRef") or {}
    return str(reference.get("uid") or "")


def source_handle(content: Object) -> VolumeHandle | None:
    """The remote PVC of which the snapshot is to be taken; None if it was taken before."""
    return parse_handle(((content.get("spec") or {}).get("source") or {}).get("volumeHandle"))


def snapshot_handle(content: Object) -> VolumeHandle | None:
    """The remote VolumeSnapshot of a content: of its name, or the existing one that an
    administrator named."""
    existing = parse_handle(((content.get("spec") or {}).get("source") or {}).get("snapshotHandle"))
    source = source_handle(content)
    if existing is not None or source is None:
        return existing
    return source._replace(name=remote_snapshot_name(content))


def served_handle(content: Object) -> VolumeHandle | None:
    """The remote VolumeSnapshot of a content whose driver is the bridge."""
    return snapshot_handle(content) if is_served(content) else None


def has_other_source(content: Object) -> bool:
    """Whether the content names the bridge as its driver, and a volume or snapshot of another
    driver: the snapshot controller does not compare the drivers of class and volume."""
    return is_served(content) and snapshot_handle(content) is None


def remote_snapshot_name(content: Object) -> str:
    ref = snapshot_ref(content)
    return hashed_name(ref.name, snapshot_uid(content), max_length=DNS_LABEL_MAX)


def to_remote(content: Object, source: Object, home_class: Object | None, policy: Policy) -> Object:
    """The VolumeSnapshot of the remote PVC `source`. Raises SnapshotClassError."""
    ref = snapshot_ref(content)
    home = {"metadata": {"name": ref.name, "namespace": ref.namespace}}
    home["metadata"]["uid"] = snapshot_uid(content)
    meta = remote_metadata(home, policy.identity)
    meta |= {"name": remote_snapshot_name(content), "namespace": namespace_of(source)}
    spec: Object = {"source": {"persistentVolumeClaimName": name_of(source)}}
    if remote_class := _remote_class(home_class):
        spec["volumeSnapshotClassName"] = remote_class
    return {"apiVersion": f"{GROUP}/v1", "kind": KIND, "metadata": meta, "spec": spec}


def _remote_class(home_class: Object | None) -> str:
    parameters: Object = (home_class or {}).get("parameters") or {}
    if unknown := sorted(parameters.keys() - {PARAMETER_CLASS}):
        raise SnapshotClassError(
            f"VolumeSnapshotClass {name_of(home_class or {})} has the unknown parameter "
            f"{unknown[0]}; use {PARAMETER_CLASS}"
        )
    return str(parameters.get(PARAMETER_CLASS) or "")


def is_snapshot_of(remote: Object, content: Object, identity: Identity) -> bool:
    """Whether the remote VolumeSnapshot is managed by this home and was created for the content; of
    one that an administrator named, only the first."""
    named = source_handle(content) is None
    return is_owned(remote, identity) and (named or has_home_uid(remote, snapshot_uid(content)))


def status_patch(content: Object, remote: Object, handle: VolumeHandle) -> Object:
    """The patch of the content that shows the status of the remote VolumeSnapshot; {} if it does.
    Times are nanoseconds, sizes bytes. Numbers that the field of the content cannot hold are
    omitted."""
    theirs: Object = remote.get("status") or {}
    wanted: Object = {"snapshotHandle": str(handle), "readyToUse": bool(theirs.get("readyToUse"))}
    numbers = {}
    if created := theirs.get("creationTime"):
        numbers["creationTime"] = int(parse_time(created).timestamp()) * _NANOSECONDS
    if size := theirs.get("restoreSize"):
        numbers["restoreSize"] = int(parse_quantity(size))
    wanted |= {key: number for key, number in numbers.items() if 0 <= number <= _NUMBER_MAX}
    error: Object = theirs.get("error") or {}
    shown = {key: cut(str(error[key]), TEXT_MAX) for key in ("message", "time") if key in error}
    wanted["error"] = shown or None
    return _status(content, wanted)


def error_patch(content: Object, message: str, now: str) -> Object:
    """The patch of the content that reports why the remote cannot have the snapshot; {} if it
    does. `now` is an RFC 3339 time."""
    current = ((content.get("status") or {}).get("error") or {}).get("message")
    if current == message:
        return {}
    return _status(content, {"readyToUse": False, "error": {"message": message, "time": now}})


def _status(content: Object, wanted: Object) -> Object:
    patch = merge_patch(content.get("status") or {}, wanted)
    return {"status": patch} if patch else {}


def is_released(content: Object) -> bool:
    """Whether the content is being deleted, and the snapshot controller has finished with it."""
    annotations = metadata(content).get("annotations") or {}
    return is_deleting(content) and (_BEING_DELETED in annotations or not snapshot_uid(content))


def deletes_data(content: Object) -> bool:
    """Whether the remote VolumeSnapshot is deleted with the content."""
    return (content.get("spec") or {}).get("deletionPolicy") == "Delete"


def not_served(name: str) -> Unresolved:
    """Why a PVC cannot be restored from a VolumeSnapshot where the bridge does not handle them."""
    return Unresolved(
        REASON_UNREACHABLE,
        f"VolumeSnapshot {name} is not in this remote: both clusters need the API {GROUP}/v1, and "
        "the bridge the permissions that `bridge rbac` prints with --storage provision, when it "
        "joins",
    )


def resolve_source(
    name: str,
    snapshot: Object | None,
    content: Object | None,
    policy: Policy,
    *,
    namespace: RemoteNamespace,
) -> str | Unresolved:
    """The remote VolumeSnapshot from which a home PVC that names the VolumeSnapshot `name` is
    restored. `content` is the one that home's VolumeSnapshot `snapshot` names; `namespace` is the
    remote PVC's."""
    if snapshot is None:
        return Unresolved(REASON_WAITING, f"VolumeSnapshot {name} does not exist")
    status: Object = snapshot.get("status") or {}
    if not status.get("readyToUse") or content is None or is_deleting(snapshot):
        return Unresolved(REASON_WAITING, f"VolumeSnapshot {name} is not ready to use")
    handle = parse_handle((content.get("status") or {}).get("snapshotHandle"))
    is_bound = snapshot_uid(content) == uid_of(snapshot)
    if not (is_served(content) and is_bound and handle and handle.remote_id == policy.remote_id):
        return Unresolved(REASON_UNREACHABLE, f"VolumeSnapshot {name} is not in this remote")
    if handle.namespace != namespace:
        message = f"VolumeSnapshot {name} is in the remote's namespace {handle.namespace}"
        return Unresolved(REASON_UNREACHABLE, message)
    return handle.name
