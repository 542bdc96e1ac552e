"""Computes why a pod's PersistentVolumeClaims keep home's scheduler from binding it to a node.

The rules are those of the VolumeBinding filter (pkg/scheduler/framework/plugins/volumebinding) for
one node. Whether a provisioner then creates a volume for the node is unknown in advance:
`unbound_claims` lists such PVCs. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from translators.object_accessors import Object, is_deleting
from translators.pods.home_scheduler_filters import PredicateFailure, term_matches_node

#: The provisioner of StorageClasses with manually created volumes (NotSupportedProvisioner).
_NO_PROVISIONER = "kubernetes.io/no-provisioner"

#: When an unbound PVC gets its volume: before scheduling (or never), from manually created volumes,
#: or after a node is chosen.
_Binding: TypeAlias = Literal["immediate", "static", "provisioned", "unknown"]


@dataclass(frozen=True, slots=True)
class PodStorage:
    """Home's objects for a pod's PVCs, by name. None is a missing object; a name that could not be
    read is absent and has no effect."""

    claims: Mapping[str, Object | None] = field(default_factory=dict)
    volumes: Mapping[str, Object | None] = field(default_factory=dict)
    classes: Mapping[str, Object | None] = field(default_factory=dict)


def claim_names(pod: Object) -> dict[str, str]:
    """The PVCs of a pod, by volume name."""
    names = {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            names[str(volume.get("name"))] = str(name)
    return names


def volume_binding_failures(
    pod: Object, node: Object, storage: PodStorage
) -> Iterator[PredicateFailure]:
    """The PVCs that prevent scheduling to the node."""
    for volume, name in claim_names(pod).items():
        if name in storage.claims and (problem := _problem(storage.claims[name], node, storage)):
            yield PredicateFailure(
                f"spec.volumes[{volume}]", f"PersistentVolumeClaim {name} {problem}"
            )


def unbound_claims(pod: Object, storage: PodStorage) -> Iterator[str]:
    """Messages about unbound PVCs that do not prevent scheduling by themselves."""
    for name in claim_names(pod).values():
        claim = storage.claims.get(name)
        if not claim or _phase(claim) != "Pending":
            continue
        match _binding(claim, storage):
            case "unknown":
                yield f"PersistentVolumeClaim {name} is not bound at home"
            case "provisioned":
                yield (
                    f"PersistentVolumeClaim {name} is not bound at home: the provisioner of its "
                    "StorageClass creates a volume once a node is chosen, if it supports that node"
                )


def _problem(claim: Object | None, node: Object, storage: PodStorage) -> str:
    if claim is None:
        return "is missing at home"
    if is_deleting(claim):
        return "is being deleted at home"
    match _phase(claim):
        case "Bound":
            return _volume_problem(claim, node, storage)
        case "Lost":
            return "is Lost at home: its PersistentVolume no longer exists"
    match _binding(claim, storage):
        case "immediate":
            return "is not bound at home; see `kubectl describe pvc`"
        case "static":
            return "is not bound at home, and its StorageClass has no provisioner"
    return ""


def _volume_problem(claim: Object, node: Object, storage: PodStorage) -> str:
    """Why the node cannot use the bound volume; "" if it can, or if that is unknown."""
    name = str((claim.get("spec") or {}).get("volumeName") or "")
    if name not in storage.volumes:
        return ""
    volume = storage.volumes[name]
    if volume is None:
        return f"is bound at home to PersistentVolume {name}, which does not exist"
    required = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get("required") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if not terms or any(term_matches_node(term, node) for term in terms):
        return ""
    return f"is bound at home to PersistentVolume {name}, which only other nodes can use"


def _binding(claim: Object, storage: PodStorage) -> _Binding:
    name = str((claim.get("spec") or {}).get("storageClassName") or "")
    if name and name not in storage.classes:
        return "unknown"
    storage_class = storage.classes.get(name) or {}
    if storage_class.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "immediate"
    return "static" if storage_class.get("provisioner") == _NO_PROVISIONER else "provisioned"


def _phase(claim: Object) -> str:
    return str((claim.get("status") or {}).get("phase") or "Pending")
