"""Builds home's PersistentVolume for a remote PVC, and the patches that show the remote's progress
at home."""

from __future__ import annotations

from translators.merge_patch import merge_patch
from translators.object_accessors import Object, RemoteNamespace, name_of, namespace_of, uid_of
from translators.ownership_labels import LABEL_REMOTE
from translators.quantity import parse_quantity
from translators.size_limits import cut
from translators.storage import remote_pvc
from translators.storage.identifiers import (
    ANNOTATION_PROVISIONED_BY,
    ATTRIBUTE_UID,
    DRIVER,
    FINALIZER,
    VolumeHandle,
    class_name,
    volume_name,
)
from translators.storage.remote_pvc import STORAGE
from translators.storage.storage_class import ServedClass

#: Bytes of a text of the remote that is copied to home.
TEXT_MAX = 1024
#: Conditions of a PVC that report the progress of an expansion.
_EXPANSION = frozenset(
    {
        "Resizing",
        "FileSystemResizePending",
        "ControllerResizeError",
        "NodeResizeError",
    }
)
_CONDITION_FIELDS = ("type", "status", "lastTransitionTime", "lastProbeTime", "reason", "message")
#: Fields of a PVC's status that report which request an expansion has reached.
_ALLOCATED = ("allocatedResources", "allocatedResourceStatuses")


def home_volume(home: Object, remote: Object, served: ServedClass, remote_id: str) -> Object:
    """The PersistentVolume that binds the home PVC to its remote PVC. Its capacity is the remote
    volume's, or what home requests while the remote waits for the first pod."""
    spec: Object = home.get("spec") or {}
    handle = VolumeHandle(remote_id, RemoteNamespace(namespace_of(remote)), name_of(remote))
    wanted: Object = {
        "capacity": {STORAGE: remote_pvc.capacity(remote) or remote_pvc.requested(home)},
        "accessModes": spec.get("accessModes") or [],
        "volumeMode": spec.get("volumeMode") or "Filesystem",
        "persistentVolumeReclaimPolicy": served.reclaim_policy,
        "storageClassName": class_name(home),
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace_of(home),
            "name": name_of(home),
            "uid": uid_of(home),
        },
        "csi": {
            "driver": DRIVER,
            "volumeHandle": str(handle),
            "volumeAttributes": {ATTRIBUTE_UID: uid_of(remote)},
        },
        "nodeAffinity": {"required": {"nodeSelectorTerms": [_on_remote(remote_id)]}},
    }
    if served.mount_options:
        wanted["mountOptions"] = list(served.mount_options)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(uid_of(home)),
            "annotations": {ANNOTATION_PROVISIONED_BY: DRIVER},
            "finalizers": [FINALIZER],
        },
        "spec": wanted,
    }


def capacity_patch(volume: Object, remote: Object) -> Object:
    """The patch of the PersistentVolume that shows the capacity of the remote's volume; {} if it
    does."""
    current = str(((volume.get("spec") or {}).get("capacity") or {}).get(STORAGE) or "0")
    actual = remote_pvc.capacity(remote)
    if not actual or parse_quantity(actual) == parse_quantity(current):
        return {}
    return {"spec": {"capacity": {STORAGE: actual}}}


def claim_capacity_patch(home: Object, remote: Object) -> Object:
    """The patch of the home PVC's status that shows the capacity of the remote's volume; {} if it
    does. Only for a bound PVC whose PersistentVolume has the capacity."""
    actual = remote_pvc.capacity(remote)
    if not actual or not _differs(actual, remote_pvc.capacity(home)):
        return {}
    return {"status": {"capacity": {STORAGE: actual}}}


def progress_patch(home: Object, remote: Object) -> Object:
    """The patch of the home PVC's status that shows the progress of an expansion in the remote; {}
    if it does."""
    current: Object = home.get("status") or {}
    theirs: Object = remote.get("status") or {}
    wanted: Object = {key: _of_storage(theirs.get(key) or {}) or None for key in _ALLOCATED}
    others = [it for it in current.get("conditions") or () if it.get("type") not in _EXPANSION]
    by_type = {it["type"]: it for it in theirs.get("conditions") or () if it["type"] in _EXPANSION}
    conditions = [*others, *map(_condition, by_type.values())]
    wanted["conditions"] = conditions or None
    patch = merge_patch(current, wanted, exact=frozenset(_ALLOCATED))
    return {"status": patch} if patch else {}


def _of_storage(amounts: Object) -> Object:
    return {key: value for key, value in amounts.items() if key == STORAGE}


def _condition(remote: Object) -> Object:
    """A condition of the remote, in which a hostile remote can store no more than a message."""
    return {key: cut(remote[key], TEXT_MAX) for key in _CONDITION_FIELDS if key in remote}


def _differs(quantity: str, other: str) -> bool:
    return parse_quantity(quantity) != parse_quantity(other or "0")


def _on_remote(remote_id: str) -> Object:
    expression = {"key": LABEL_REMOTE, "operator": "In", "values": [remote_id]}
    return {"matchExpressions": [expression]}
