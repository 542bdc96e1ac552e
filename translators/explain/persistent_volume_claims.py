"""Why home's scheduler would not bind a pod to a node for the PersistentVolumeClaims that it names.

As the filter VolumeBinding (pkg/scheduler/framework/plugins/volumebinding) decides for one node:
claims that are missing, being deleted, lost, or bound to a volume of other nodes keep the pod off;
so do unbound ones, unless their StorageClass waits for the first consumer. Whether its provisioner
then makes a volume for the node shows only afterwards: `waiting` names such claims. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from translators.objects import Object, is_deleting
from translators.pods.scheduling_predicates import PredicateFailure, term_matches_node

#: The provisioner of classes whose volumes people make beforehand
#: (k8s.io/kubernetes/pkg/controller/volume/persistentvolume/util NotSupportedProvisioner).
_NO_PROVISIONER = "kubernetes.io/no-provisioner"

#: When an unbound claim gets its volume: before any scheduler looks (or never), from those that
#: people made, or once a node is chosen.
_Binding: TypeAlias = Literal["immediate", "static", "provisioned", "unknown"]


@dataclass(frozen=True, slots=True)
class PodStorage:
    """What home has of a pod's claims, by name. None is missing; a name that could not be looked up
    is not there, and decides nothing."""

    claims: Mapping[str, Object | None] = field(default_factory=dict)
    volumes: Mapping[str, Object | None] = field(default_factory=dict)
    classes: Mapping[str, Object | None] = field(default_factory=dict)


def claim_names(pod: Object) -> dict[str, str]:
    """The claims that a pod names, by the names of its volumes."""
    found = {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            found[str(volume.get("name"))] = str(name)
    return found


def volume_binding_failures(
    pod: Object, node: Object, storage: PodStorage
) -> Iterator[PredicateFailure]:
    """What of the pod's claims keeps it off the node."""
    for volume, name in claim_names(pod).items():
        if name in storage.claims and (why := _why(storage.claims[name], node, storage)):
            yield PredicateFailure(f"spec.volumes[{volume}]", f"PersistentVolumeClaim {name} {why}")


def unbound_claims(pod: Object, storage: PodStorage) -> Iterator[str]:
    """Unbound claims that do not keep the pod off by themselves, as text."""
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
                    "StorageClass makes a volume when a node is chosen, if it serves that node"
                )


def _why(claim: Object | None, node: Object, storage: PodStorage) -> str:
    if claim is None:
        return "is missing at home"
    if is_deleting(claim):
        return "is being deleted at home"
    match _phase(claim):
        case "Bound":
            return _elsewhere(claim, node, storage)
        case "Lost":
            return "is Lost at home: its PersistentVolume does not exist any more"
    match _binding(claim, storage):
        case "immediate":
            return "is not bound at home; `kubectl describe pvc` says why"
        case "static":
            return "is not bound at home, and its StorageClass has no provisioner"
    return ""


def _elsewhere(claim: Object, node: Object, storage: PodStorage) -> str:
    """Why the bound volume cannot be used on the node; "" where it can, or nobody knows."""
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
    found = storage.classes.get(name) or {}
    if found.get("volumeBindingMode") != "WaitForFirstConsumer":
        return "immediate"
    return "static" if found.get("provisioner") == _NO_PROVISIONER else "provisioned"


def _phase(claim: Object) -> str:
    return str((claim.get("status") or {}).get("phase") or "Pending")
