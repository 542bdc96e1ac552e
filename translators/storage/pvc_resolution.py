"""Finds the remote PVC for a PVC that a home pod mounts.

| home PVC                                | remote PVC                                             |
|-----------------------------------------|--------------------------------------------------------|
| has `cluster-bridge.io/remote-pvc`    | the existing PVC that the annotation names             |
| bound to a volume in this remote        | the PVC of the volume, once the remote has it          |
| bound to a volume elsewhere             | none: the pod waits                                    |
| not bound, deleted, or missing          | none: the pod waits                                    |

So a pod never mounts a PVC of the remote that happens to have the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from translators.object_accessors import (
    HomeNamespace,
    Object,
    controller_of,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import has_home_uid, is_owned
from translators.storage.identifiers import (
    ANNOTATION_REMOTE_PVC,
    VolumeHandle,
    bound_volume,
    claim_uid_of_volume,
    is_bound,
    is_unfinished,
    is_volume_of,
    remote_claim_uid,
    volume_handle,
)
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity

#: ``status.reason`` of a pod that waits for a PVC, and of one whose volume the remote cannot reach.
REASON_WAITING, REASON_UNREACHABLE = "VolumePending", "VolumeNotInRemote"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a pod cannot use a PVC in the remote: a CamelCase word, and a sentence."""

    reason: str
    message: str


def used_handle(
    home: Object | None, volume: Object | None, policy: Policy, *, name: str
) -> VolumeHandle | Unresolved:
    """The remote PVC that pods of the home PVC ``name`` mount, whether or not it exists.
    ``volume`` is home's PersistentVolume that the PVC names, if that exists."""
    if home is None:
        return _waits(name, "does not exist")
    if is_deleting(home):
        return _waits(name, "is being deleted")
    namespace = policy.identity.remote_namespace(HomeNamespace(namespace_of(home)))
    if existing := (metadata(home).get("annotations") or {}).get(ANNOTATION_REMOTE_PVC):
        return VolumeHandle("", namespace, str(existing))
    if not bound_volume(home) or not is_bound(home):
        return _waits(name, "is not bound to a volume yet")
    if volume is None:
        return _waits(name, f"is bound to PersistentVolume {bound_volume(home)}, which is missing")
    handle = volume_handle(volume)
    if handle is None or handle.remote_id != policy.remote_id:
        return Unresolved(
            REASON_UNREACHABLE,
            f"PersistentVolumeClaim {name} is bound to PersistentVolume {name_of(volume)}, which "
            "is not in the remote cluster: run the pod on a node that has the volume, or set the "
            f"annotation {ANNOTATION_REMOTE_PVC} of the PersistentVolumeClaim to the name of one "
            f"in the remote's namespace {namespace}",
        )
    if not is_volume_of(volume, home):
        return _waits(name, f"is not the one to which PersistentVolume {name_of(volume)} is bound")
    if handle.namespace != namespace:
        return Unresolved(
            REASON_UNREACHABLE,
            f"the data of PersistentVolumeClaim {name} is in the remote's namespace "
            f"{handle.namespace}, and the pod runs in {namespace}: join with the "
            "--namespace-template with which the volume was provisioned",
        )
    return handle


def resolve(
    home: Object | None,
    volume: Object | None,
    remote: Object | None,
    policy: Policy,
    *,
    name: str,
) -> str | Unresolved:
    """The name of the remote PVC for the home PVC ``name``. ``remote`` is the PVC of
    `used_handle`; of one that an annotation names the remote's kubelet reports whether it
    exists."""
    handle = used_handle(home, volume, policy, name=name)
    if isinstance(handle, Unresolved) or not handle.remote_id:
        return handle if isinstance(handle, Unresolved) else handle.name
    if remote is None or not holds_data_of(remote, volume or {}, policy.identity):
        return Unresolved(
            REASON_UNREACHABLE,
            f"remote: PersistentVolumeClaim {handle.namespace}/{handle.name} with the data of "
            f"PersistentVolumeClaim {name} does not exist; restore it, or delete {name} to start "
            "with an empty volume",
        )
    if is_unfinished(remote):
        return _waits(name, "is not finished in the remote yet")
    if is_deleting(remote):
        return Unresolved(
            REASON_UNREACHABLE,
            f"remote: PersistentVolumeClaim {handle.namespace}/{handle.name} with the data of "
            f"PersistentVolumeClaim {name} is being deleted in the remote",
        )
    return handle.name


def holds_data_of(remote: Object, volume: Object, identity: Identity) -> bool:
    """Whether a PVC of the remote has the data of home's PersistentVolume: it is managed by this
    home, and is the recorded PVC, or (if the remote was restored from a backup) was created for the
    same home PVC."""
    is_recorded = uid_of(remote) == remote_claim_uid(volume)
    is_same = is_recorded or has_home_uid(remote, claim_uid_of_volume(volume))
    return is_owned(remote, identity) and is_same


def foreign_ephemeral_claim(pod: Object, claim: Object | None, *, name: str) -> Unresolved | None:
    """The problem of a generic ephemeral volume whose PVC belongs to another pod, or to none: the
    kubelet refuses it, too. None if there is none."""
    if claim is None or (controller_of(claim) or {}).get("uid") == uid_of(pod):
        return None
    return Unresolved(
        REASON_UNREACHABLE,
        f"PersistentVolumeClaim {name} was not created for this pod, which has an ephemeral volume "
        "of that name; rename the volume or the PersistentVolumeClaim",
    )


def replace_claims(pod: Object, claims: Mapping[str, str]) -> Object:
    """The pod whose volumes mount these remote PVCs, by the name of the volume. A generic ephemeral
    volume becomes a PVC volume: the remote would create a second PVC for it."""
    spec: Object = pod.get("spec") or {}
    if not claims:
        return pod
    volumes = [_replaced(it, claims.get(str(it.get("name")))) for it in spec.get("volumes") or ()]
    return {**pod, "spec": {**spec, "volumes": volumes}}


def mounted_claims(remote: Object) -> dict[str, str]:
    """The PVCs that a remote pod mounts, by the name of the volume, as for `replace_claims`."""
    return {
        str(volume.get("name")): str(claim.get("claimName"))
        for volume in (remote.get("spec") or {}).get("volumes") or ()
        if (claim := volume.get("persistentVolumeClaim"))
    }


def _replaced(volume: Object, claim: str | None) -> Object:
    if claim is None:
        return volume
    mount: Object = {**(volume.get("persistentVolumeClaim") or {}), "claimName": claim}
    kept = {key: value for key, value in volume.items() if key != "ephemeral"}
    return {**kept, "persistentVolumeClaim": mount}


def _waits(name: str, why: str) -> Unresolved:
    return Unresolved(REASON_WAITING, f"PersistentVolumeClaim {name} {why}")
