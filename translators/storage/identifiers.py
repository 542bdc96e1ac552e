"""The names, annotations and keys by which the bridge recognises its volumes.

A volume consists of three objects: the home PVC, the remote PVC with the data, and home's
PersistentVolume, whose `VolumeHandle` names the remote PVC. Each follows from the home PVC's UID:
a PVC that is deleted and re-created, one whose data is retained, and PVCs of two home namespaces
never share a remote PVC.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from translators.derived_names import DNS_LABEL_MAX, hashed_name
from translators.object_accessors import HomeUid, Object, RemoteNamespace, metadata
from translators.ownership_labels import DOMAIN

#: The provisioner of StorageClasses whose PVCs the bridge provisions, and the name of the CSIDriver
#: (which must contain no slash).
DRIVER = f"volumes.{DOMAIN}"
#: On home's PersistentVolumes: the bridge removes it once the volume is released.
FINALIZER = f"{DOMAIN}/volume"
#: On a home PVC, set by a user: the existing PVC of the remote that pods use in its place.
ANNOTATION_REMOTE_PVC = f"{DOMAIN}/remote-pvc"
#: On a remote PVC until home has its PersistentVolume. No pod mounts the PVC before, so that it has
#: no data, and the bridge may delete it.
ANNOTATION_UNFINISHED = f"{DOMAIN}/unfinished"
#: A label of a remote PVC: the name of the remote PVC or VolumeSnapshot of which it is a copy.
LABEL_DATA_SOURCE = f"{DOMAIN}/data-source"
#: Set on a PVC by home's scheduler (or the bridge, for a pod with a fixed ``nodeName``).
ANNOTATION_SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: Set on a PVC by home's PersistentVolume controller when a provisioner is to act.
ANNOTATION_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_ANNOTATION_PROVISIONER_BETA = "volume.beta.kubernetes.io/storage-provisioner"
#: On a PersistentVolume: its provisioner.
ANNOTATION_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_ANNOTATION_CLASS_BETA = "volume.beta.kubernetes.io/storage-class"
#: A key of ``csi.volumeAttributes``: the UID of the remote PVC.
ATTRIBUTE_UID = "remoteUID"

_HANDLE = re.compile(r"([^/]+)/([^/]+)/([^/]+)")


class VolumeHandle(NamedTuple):
    """The remote PVC of a volume: the remote's identity, namespace and name."""

    remote_id: str
    namespace: RemoteNamespace
    name: str

    def __str__(self) -> str:
        return "/".join(self)


class ClaimKey(NamedTuple):
    """A home PVC as the value of an index."""

    namespace: str
    name: str


def remote_claim_name(home: Object) -> str:
    """The name of the remote PVC for a home PVC: at most 63 characters, because tools of storage
    vendors use PVC names as label values."""
    meta = metadata(home)
    return hashed_name(meta["name"], meta["uid"], max_length=DNS_LABEL_MAX)


def volume_name(claim_uid: HomeUid | str) -> str:
    """The name of home's PersistentVolume for a PVC, as external provisioners name it."""
    return f"pvc-{claim_uid}"


def volume_handle(volume: Object) -> VolumeHandle | None:
    """The remote PVC of a PersistentVolume; None if the bridge's driver does not serve it."""
    csi = (volume.get("spec") or {}).get("csi") or {}
    return parse_handle(csi.get("volumeHandle")) if csi.get("driver") == DRIVER else None


def parse_handle(text: object) -> VolumeHandle | None:
    """The handle as `str` of a `VolumeHandle` writes it; None if it has another form."""
    match = _HANDLE.fullmatch(text if isinstance(text, str) else "")
    return VolumeHandle(match[1], RemoteNamespace(match[2]), match[3]) if match else None


def remote_claim_uid(volume: Object) -> str:
    """The UID of the remote PVC at the time when the PersistentVolume was created."""
    csi = (volume.get("spec") or {}).get("csi") or {}
    return str((csi.get("volumeAttributes") or {}).get(ATTRIBUTE_UID) or "")


def class_name(claim: Object) -> str:
    """The PVC's StorageClass; "" if it has none."""
    annotations = metadata(claim).get("annotations") or {}
    legacy = annotations.get(_ANNOTATION_CLASS_BETA)
    return str(legacy or (claim.get("spec") or {}).get("storageClassName") or "")


def bound_volume(claim: Object) -> str:
    """The PersistentVolume that the PVC names; "" if it names none."""
    return str((claim.get("spec") or {}).get("volumeName") or "")


def is_bound(claim: Object) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"


def selected_node(claim: Object) -> str:
    """The node for which home's scheduler wants the volume; "" if there is none."""
    return str((metadata(claim).get("annotations") or {}).get(ANNOTATION_SELECTED_NODE) or "")


def awaits_driver(claim: Object) -> bool:
    """Whether home's PersistentVolume controller has handed the PVC to the bridge's provisioner."""
    annotations = metadata(claim).get("annotations") or {}
    keys = (ANNOTATION_PROVISIONER, _ANNOTATION_PROVISIONER_BETA)
    return any(annotations.get(key) == DRIVER for key in keys)


def is_unfinished(remote: Object) -> bool:
    """Whether no pod has been able to mount the remote PVC."""
    return ANNOTATION_UNFINISHED in (metadata(remote).get("annotations") or {})


def claim_of_volume(volume: Object) -> ClaimKey | None:
    """The home PVC that a PersistentVolume is for; None if it is for none."""
    reference = (volume.get("spec") or {}).get("claimRef") or {}
    if not reference.get("name"):
        return None
    return ClaimKey(str(reference.get("namespace") or ""), str(reference["name"]))


def is_volume_of(volume: Object, claim: Object) -> bool:
    """Whether the home cluster's PersistentVolume controller has bound the PersistentVolume to
    exactly this PVC. The PVC does not prove that: a user can be permitted to write its status."""
    return claim_uid_of_volume(volume) == metadata(claim).get("uid")


def claim_uid_of_volume(volume: Object) -> str:
    """The UID of the home PVC to which a PersistentVolume is bound; "" if it is bound to none."""
    reference = (volume.get("spec") or {}).get("claimRef") or {}
    return str(reference.get("uid") or "")


def claims_of_pod(pod: Object) -> Iterable[ClaimKey]:
    """The home PVCs that a pod mounts, those of generic ephemeral volumes included."""
    namespace = str(metadata(pod).get("namespace") or "")
    return (ClaimKey(namespace, name) for name in claim_names(pod).values())


def claim_names(pod: Object) -> dict[str, str]:
    """The names of the home PVCs that a pod mounts, by the name of the volume. The PVC of a generic
    ephemeral volume is called POD-VOLUME."""
    found = {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            found[str(volume["name"])] = str(claim.get("claimName") or "")
        elif volume.get("ephemeral"):
            found[str(volume["name"])] = f"{metadata(pod)['name']}-{volume['name']}"
    return found
