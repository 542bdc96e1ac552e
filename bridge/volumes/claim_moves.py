"""Undoes unfinished transfers: restores the volumes of a move, and cancels."""

from __future__ import annotations

from dataclasses import replace

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.volumes import transfer_pods, volume_swap
from bridge.volumes.transfer_record import (
    ANNOTATION_MOVE,
    MoveRecord,
    copied_uid,
    copies,
    move_record,
)
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS
from sync.kube.client import KubeClient
from translators.object_accessors import Object, name_of, namespace_of, uid_of
from translators.storage.identifiers import bound_volume


async def restore(home: KubeClient, namespace: str, claim: str, record: MoveRecord) -> None:
    """Gives both claims their own PersistentVolumes again, and returns to the phase ``copying``.
    Raises PreflightError and KubeError."""
    volumes = record.volumes
    if record.phase == "swapping":
        volumes = volume_swap.restored(volumes)
        record = replace(record, phase="restoring", volumes=volumes)
        await _put_record(home, namespace, claim, record)
    await volume_swap.reach(home, volumes)
    await volume_swap.wait_until_bound(home, namespace, claim, record.target)
    await _put_record(
        home, namespace, claim, replace(record, phase="copying", volumes={}, since="")
    )


async def cancel(
    home: KubeClient, namespace: str, name: str, *, timeout: float, notify: Notify
) -> str:
    """Undoes an unfinished move of the claim, or removes it if it is an unfinished copy; returns
    the name of the removed claim. Raises PreflightError and KubeError."""
    claim = await find_claim(home, namespace, name)
    record = move_record(claim)
    source_uid = copied_uid(claim)
    if record is None and not source_uid:
        raise PreflightError(
            f"home: PersistentVolumeClaim {namespace}/{name} has no unfinished move, and is no "
            "unfinished copy; there is nothing to cancel. Of a copy, name the new "
            "PersistentVolumeClaim"
        )
    if record is None:
        await transfer_pods.end(home, namespace, source_uid, timeout=timeout)
        await home.delete(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace, uid=uid_of(claim))
        return name
    if record.phase != "copying":
        volumes = await volume_swap.read_volumes(home, record.volumes)
        source = bound_volume(claim)
        if record.phase == "swapping" and volume_swap.has_data(
            volumes[source], record.volumes[source]
        ):
            raise PreflightError(
                f"home: PersistentVolumeClaim {namespace}/{name} has its data on {record.node} "
                f"already; run `bridge volume move {namespace}/{name} --to {record.node}` to finish"
            )
        await restore(home, namespace, name, record)
        notify(f"PersistentVolumeClaim {namespace}/{name} has its own volume again")
    await transfer_pods.end(home, namespace, uid_of(claim), timeout=timeout)
    target = await home.find(PERSISTENT_VOLUME_CLAIMS, record.target, namespace=namespace)
    if target is not None and copies(target, uid_of(claim)):
        await home.delete(
            PERSISTENT_VOLUME_CLAIMS, record.target, namespace=namespace, uid=uid_of(target)
        )
    await home.patch(
        PERSISTENT_VOLUME_CLAIMS,
        name,
        {"metadata": {"uid": uid_of(claim), "annotations": {ANNOTATION_MOVE: None}}},
        namespace=namespace,
    )
    return record.target


async def find_claim(home: KubeClient, namespace: str, name: str) -> Object:
    """The claim. Raises PreflightError if it does not exist, and KubeError."""
    found = await home.find(PERSISTENT_VOLUME_CLAIMS, name, namespace=namespace)
    if found is None:
        raise PreflightError(f"home: there is no PersistentVolumeClaim {namespace}/{name}")
    return found


def unfinished_message(claim: Object, record: MoveRecord) -> str:
    name = f"{namespace_of(claim)}/{name_of(claim)}"
    return (
        f"home: an unfinished move of PersistentVolumeClaim {name} leads to {record.node}; finish "
        f"it by `bridge volume move {name} --to {record.node}`, or undo it by `bridge volume "
        f"cancel {name}`"
    )


async def _put_record(home: KubeClient, namespace: str, claim: str, record: MoveRecord) -> None:
    await home.patch(
        PERSISTENT_VOLUME_CLAIMS,
        claim,
        {"metadata": {"annotations": {ANNOTATION_MOVE: record.as_annotation()}}},
        namespace=namespace,
    )
