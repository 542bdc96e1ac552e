"""Decides whether a transfer may begin, and how. Pure.

Every refusal is a PreflightError that names the cause and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bridge.base.command_error import PreflightError
from bridge.base.printable_text import summarize_names
from bridge.node.node_object import remote_id_of
from bridge.volumes import node_choice
from bridge.volumes.transfer_objects import is_transfer_pod
from translators.object_accessors import (
    Object,
    controller_of,
    is_deleting,
    is_ready,
    name_of,
    namespace_of,
    namespaced_name,
)
from translators.storage import storage_class
from translators.storage.identifiers import (
    ClaimKey,
    bound_volume,
    claims_of_pod,
    class_name,
    is_bound,
)
from translators.storage.remote_pvc import capacity, requested

_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Where the data is, and where it goes."""

    claim: Object
    volume: Object
    """The PersistentVolume of the claim."""
    source_node: Object
    target_node: Object
    storage_class: str
    """The StorageClass of the target claim."""

    @property
    def size(self) -> str:
        """The capacity of the volume."""
        return capacity(self.claim) or requested(self.claim)


def plan_transfer(
    claim: Object,
    volume: Object | None,
    *,
    to: str,
    nodes: list[Object],
    classes: list[Object],
    wanted_class: str,
) -> TransferPlan:
    """The plan of a transfer. Raises PreflightError."""
    name = namespaced_name(claim)
    _check_claim(claim, name)
    if volume is None:
        raise PreflightError(
            f"home: PersistentVolumeClaim {name} has lost its PersistentVolume "
            f"{bound_volume(claim)}; restore it first"
        )
    target = _target_node(nodes, to)
    return TransferPlan(
        claim,
        volume,
        node_choice.source_node(nodes, volume),
        target,
        _storage_class(claim, target, classes, wanted_class),
    )


def check_moves(plan: TransferPlan) -> None:
    """Raises PreflightError if the volume can be used on the target node already."""
    if node_choice.has_volume(plan.target_node, plan.volume):
        raise PreflightError(
            f"home: pods on {name_of(plan.target_node)} can use PersistentVolumeClaim "
            f"{namespaced_name(plan.claim)} already; there is nothing to move"
        )


def check_unused(claim: Object, pods: Iterable[Object]) -> None:
    """Raises PreflightError if an unfinished pod uses the claim."""
    if not (users := using_pods(claim, pods)):
        return
    names = summarize_names(sorted(map(name_of, users)))
    if all(map(is_deleting, users)):
        next_step = "it is being deleted: run the command again when it has ended"
    else:
        next_step = "scale its controller to zero, or delete the pod, and run the command again"
    raise PreflightError(
        f"home: {names} uses PersistentVolumeClaim {namespaced_name(claim)} and could write while "
        f"it is copied; {next_step}"
    )


def using_pods(claim: Object, pods: Iterable[Object]) -> list[Object]:
    """The unfinished pods that mount the claim, without those of transfers."""
    return [
        it
        for it in _pods_with(claim, pods)
        if (it.get("status") or {}).get("phase") not in _FINISHED
    ]


def possible_writers(claim: Object, pods: Iterable[Object], since: str) -> list[Object]:
    """The pods that can have written to the claim since ``since``, a time of home's API server:
    those that have a node, and have not finished or were created later."""
    return [
        it
        for it in _pods_with(claim, pods)
        if (it.get("spec") or {}).get("nodeName")
        and (
            (it.get("status") or {}).get("phase") not in _FINISHED
            or str(it["metadata"].get("creationTimestamp") or "") >= since
        )
    ]


def _pods_with(claim: Object, pods: Iterable[Object]) -> list[Object]:
    key = ClaimKey(namespace_of(claim), name_of(claim))
    return [it for it in pods if not is_transfer_pod(it) and key in claims_of_pod(it)]


def _check_claim(claim: Object, name: str) -> None:
    what = f"home: PersistentVolumeClaim {name}"
    if is_deleting(claim):
        raise PreflightError(f"{what} is being deleted")
    if not bound_volume(claim) or not is_bound(claim):
        phase = (claim.get("status") or {}).get("phase") or "Pending"
        raise PreflightError(f"{what} is {phase} and has no data; it must be Bound")
    if (claim.get("spec") or {}).get("volumeMode") == "Block":
        raise PreflightError(f"{what} is a block device; only volumes with files can be copied")
    if (controller_of(claim) or {}).get("kind") == "Pod":
        raise PreflightError(
            f"{what} is a generic ephemeral volume, which is deleted with its pod; copy its files "
            "with kubectl cp"
        )


def _target_node(nodes: list[Object], to: str) -> Object:
    for node in nodes:
        if name_of(node) == to:
            if not is_ready(node):
                raise PreflightError(
                    f"home: node {to} is not Ready; start its kubelet, or its bridge"
                )
            return node
    names = summarize_names(sorted(map(name_of, nodes)))
    raise PreflightError(f"home: there is no node {to}; the nodes are {names}")


def _storage_class(claim: Object, target: Object, classes: list[Object], wanted: str) -> str:
    """The class of the target claim: the requested one, the source's if it can be on the target
    node, or the only (of home: the default) class that can."""
    remote = remote_id_of(target)
    by_name = {name_of(it): it for it in classes}
    suited = [it for it in classes if _suits(it, remote)]
    names = sorted(map(name_of, suited))
    where = f"node {name_of(target)}"
    if wanted:
        if wanted not in by_name:
            raise PreflightError(
                f"home: there is no StorageClass {wanted}; for {where} there are "
                f"{', '.join(names) or 'none'}"
            )
        if wanted not in names:
            raise PreflightError(
                f"home: StorageClass {wanted} has no volumes on {where}; use "
                f"{', '.join(names) or 'manifests/storage-class.yaml to create one'}"
            )
        return wanted
    if class_name(claim) in names:
        return class_name(claim)
    if not remote:
        suited = [it for it in suited if storage_class.is_default(it)]
    if len(suited) == 1:
        return name_of(suited[0])
    hint = ", ".join(names) if names else "none; manifests/storage-class.yaml has one"
    raise PreflightError(
        f"home: choose the StorageClass of the volume on {where} by --storage-class: {hint}"
    )


def _suits(it: Object, remote: str) -> bool:
    """Whether the class has volumes in this remote, or if "" at home."""
    if not remote:
        return not storage_class.is_served(it)
    remotes = storage_class.permitted_remotes(it)
    return storage_class.is_served(it) and (remotes is None or remote in remotes)
