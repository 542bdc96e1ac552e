"""`bridge volume copy`, `move` and `cancel`.

The order of a move, whose state is in annotations of the claims (`transfer_record`):

1. Check the claim, both nodes and the class, and that no pod uses the claim. Record the move.
2. Create the target claim. Start a transfer pod for each claim, copy, and verify the copy.
3. End the pods. Record both PersistentVolumes as they will be, and delete the source's: from then
   on no pod can start with the claim. If one has started meanwhile, restore it, and fail.
4. Swap the PersistentVolumes. The source claim has the copy, the target claim has the old data.

A command that fails, is interrupted or killed is run again: before step 3 it copies again, after it
it finishes the swap. `cancel` undoes a move that has not swapped yet, and removes an unfinished
copy. Nothing here deletes data of the source, except `delete_old` after the end of step 4.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace

from bridge.base.command_error import PreflightError
from bridge.clusters.connection import Notify
from bridge.volumes import (
    claim_moves,
    source_read,
    transfer_checks,
    transfer_pods,
    transfer_summary,
    volume_swap,
)
from bridge.volumes.data_transfer import Copied, copy_volume
from bridge.volumes.progress_meter import Meter
from bridge.volumes.transfer_checks import TransferPlan
from bridge.volumes.transfer_objects import target_claim, transfer_pod
from bridge.volumes.transfer_record import (
    ANNOTATION_COPY,
    ANNOTATION_MOVE,
    ANNOTATION_OLD,
    MoveRecord,
    copies,
    copy_value,
    move_record,
    new_record,
)
from bridge.volumes.transfer_summary import TransferResult, TransferSettings
from sync.base.resource_version import version_of
from sync.kube.api_errors import AlreadyExists, Conflict
from sync.kube.api_resources import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    STORAGE_CLASSES,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.storage.identifiers import bound_volume

#: Asks whether to do what the lines describe.
Confirm = Callable[[list[str]], bool]


class Transfer:
    """One command. ``notify`` receives a line for each finished step."""

    def __init__(
        self, home: KubeClient, settings: TransferSettings, *, notify: Notify, meter: Meter
    ) -> None:
        self._home = home
        self._settings = settings
        self._notify = notify
        self._meter = meter
        self._run = secrets.token_hex(8)

    async def run(self, *, dry_run: bool, confirm: Confirm) -> TransferResult | None:
        """Copies or moves the volume; None if the person does not confirm. Raises PreflightError
        and KubeError."""
        claim = await self._claim()
        record = move_record(claim)
        if record is not None and record.phase != "copying":
            if not self._settings.is_move:
                raise PreflightError(claim_moves.unfinished_message(claim, record))
            if dry_run:
                return TransferResult(None, record.target)
            if (finished := await self._continue(claim, record)) is not None:
                return finished
            claim = await self._claim()
            record = move_record(claim)
        plan = await self._plan(claim, record)
        target = self._target(claim, record)
        await self._check_target(plan, target)
        if dry_run:
            return TransferResult(plan, target)
        if not confirm(transfer_summary.describe(plan, self._settings, target)):
            return None
        if self._settings.is_move:
            record = await self._begin(claim, record)
            target = record.target
        source_pod, copied = await self._copy(plan, target)
        if record is None or not self._settings.is_move:
            await self._finish_copy(claim, target)
            return TransferResult(plan, target, copied)
        since = str(metadata(source_pod)["creationTimestamp"])
        await self._swap(plan, replace(record, since=since))
        return TransferResult(plan, target, copied, await self._finish(record))

    # -- before the copy ---------------------------------------------------------------------

    async def _claim(self) -> Object:
        return await claim_moves.find_claim(
            self._home, self._settings.namespace, self._settings.claim
        )

    async def _plan(self, claim: Object, record: MoveRecord | None) -> TransferPlan:
        settings = self._settings
        if record is not None and (not settings.is_move or record.node != settings.to):
            raise PreflightError(claim_moves.unfinished_message(claim, record))
        volume = None
        if name := bound_volume(claim):
            volume = await self._home.find(PERSISTENT_VOLUMES, name)
        plan = transfer_checks.plan_transfer(
            claim,
            volume,
            to=settings.to,
            nodes=(await self._home.list(NODES)).items,
            classes=(await self._home.list(STORAGE_CLASSES)).items,
            wanted_class=settings.storage_class,
        )
        if settings.is_move:
            transfer_checks.check_moves(plan)
        transfer_checks.check_unused(claim, await self._pods())
        return plan

    def _target(self, claim: Object, record: MoveRecord | None) -> str:
        """The name of the target claim."""
        if not self._settings.is_move:
            return self._settings.new_name
        return (record or new_record(claim, self._settings.to, self._run)).target

    async def _check_target(self, plan: TransferPlan, target: str) -> None:
        """Has home validate the target claim, unless an interrupted command created it. Raises
        PreflightError and KubeError."""
        if not await self._existing(plan.claim, target):
            body = self._target_claim(plan, target)
            await self._home.create(
                PERSISTENT_VOLUME_CLAIMS, body, namespace=self._settings.namespace, dry_run=True
            )

    async def _existing(self, claim: Object, target: str) -> bool:
        namespace = self._settings.namespace
        found = await self._home.find(PERSISTENT_VOLUME_CLAIMS, target, namespace=namespace)
        if found is not None and not copies(found, uid_of(claim)):
            raise PreflightError(
                f"home: PersistentVolumeClaim {namespace}/{target} exists; choose another name, or "
                "delete it"
            )
        return found is not None

    def _target_claim(self, plan: TransferPlan, target: str) -> Object:
        claim = plan.claim
        annotations = {ANNOTATION_COPY: copy_value(uid_of(claim), self._run)}
        if self._settings.is_move:
            annotations[ANNOTATION_OLD] = name_of(claim)
        return target_claim(claim, target, plan.storage_class, plan.target_node, annotations)

    async def _begin(self, claim: Object, record: MoveRecord | None) -> MoveRecord:
        """Records the move, and takes an unfinished one over from an earlier command."""
        if record is None:
            record = new_record(claim, self._settings.to, self._run)
        record = replace(record, run=self._run)
        try:
            await self._write(claim, record)
        except Conflict as error:
            raise _changed(claim) from error
        return record

    async def _write(self, claim: Object, record: MoveRecord) -> None:
        """Writes the record, if the claim is unchanged. Raises Conflict if it is not."""
        meta = {
            "resourceVersion": version_of(claim),
            "annotations": {ANNOTATION_MOVE: record.as_annotation()},
        }
        await self._home.patch(
            PERSISTENT_VOLUME_CLAIMS,
            name_of(claim),
            {"metadata": meta},
            namespace=namespace_of(claim),
        )

    # -- the copy ----------------------------------------------------------------------------

    async def _copy(self, plan: TransferPlan, target: str) -> tuple[Object, Copied]:
        """Copies and verifies; returns the source's transfer pod, which has ended."""
        settings, claim, home = self._settings, plan.claim, self._home
        namespace, uid = settings.namespace, uid_of(claim)
        await transfer_pods.end(home, namespace, uid, timeout=settings.timeout)
        if await self._existing(claim, target):
            await self._annotate(target, {ANNOTATION_COPY: copy_value(uid, self._run)})
        else:
            body = self._target_claim(plan, target)
            try:
                await home.create(PERSISTENT_VOLUME_CLAIMS, body, namespace=namespace)
            except AlreadyExists as error:
                raise _changed(claim) from error
        pods = [
            transfer_pod(claim, name_of(claim), plan.source_node, settings.image, reads_only=True),
            transfer_pod(claim, target, plan.target_node, settings.image, reads_only=False),
        ]
        try:
            source, copied = await self._copy_between(plan, pods, target)
        except BaseException:
            self._meter.end()
            await transfer_pods.delete_if_possible(home, namespace, uid)
            raise
        if settings.is_move:
            await transfer_pods.end(home, namespace, uid, timeout=settings.timeout)
        else:
            await transfer_pods.delete_if_possible(home, namespace, uid)
        self._notify(transfer_summary.copied_message(copied))
        return source, copied

    async def _copy_between(
        self, plan: TransferPlan, pods: list[Object], target: str
    ) -> tuple[Object, Copied]:
        """Starts the pods, and copies between them; returns the source's pod, as it was created."""
        home, settings = self._home, self._settings
        clock = asyncio.get_running_loop().time
        began = clock()
        await transfer_pods.create(home, pods)
        await transfer_pods.wait_until_running(
            home, pods[0], claim=target, timeout=settings.timeout
        )
        async with source_read.reading(home, pods[0], self._meter) as source:
            await transfer_pods.wait_until_running(
                home, pods[1], claim=target, timeout=settings.timeout
            )
            started = clock() - began
            self._notify(f"home: transfer pods run on {transfer_summary.node_names(plan)}")
            transfer_checks.check_unused(plan.claim, await self._pods())
            found = await home.get(PODS, name_of(pods[0]), namespace=settings.namespace)
            copied = await copy_volume(home, source, pods[1], self._meter)
            return found, replace(copied, start_seconds=started)

    async def _finish_copy(self, claim: Object, target: str) -> None:
        """Marks the copy as complete, unless another command has begun to replace it."""
        namespace = self._settings.namespace
        found = await self._home.get(PERSISTENT_VOLUME_CLAIMS, target, namespace=namespace)
        annotations = metadata(found).get("annotations") or {}
        if annotations.get(ANNOTATION_COPY) != copy_value(uid_of(claim), self._run):
            raise _changed(claim)
        meta = {"resourceVersion": version_of(found), "annotations": {ANNOTATION_COPY: None}}
        try:
            await self._home.patch(
                PERSISTENT_VOLUME_CLAIMS, target, {"metadata": meta}, namespace=namespace
            )
        except Conflict as error:
            raise _changed(claim) from error

    async def _pods(self) -> list[Object]:
        return (await self._home.list(PODS, namespace=self._settings.namespace)).items

    # -- the swap ----------------------------------------------------------------------------

    async def _swap(self, plan: TransferPlan, record: MoveRecord) -> None:
        """Swaps the PersistentVolumes of both claims. Raises PreflightError and KubeError."""
        home, namespace = self._home, self._settings.namespace
        claim = await self._claim()
        current = move_record(claim)
        if current is None or current.run != record.run:
            raise _changed(claim)
        other = await home.get(PERSISTENT_VOLUME_CLAIMS, record.target, namespace=namespace)
        volume = await home.get(PERSISTENT_VOLUMES, bound_volume(claim))
        new = await home.get(PERSISTENT_VOLUMES, bound_volume(other))
        for it in (volume, new):
            await transfer_pods.wait_until_detached(home, it, timeout=self._settings.timeout)
        transfer_checks.check_unused(claim, await self._pods())
        if not volume_swap.has_data(volume, plan.volume):
            raise _changed(claim)
        record = replace(record, phase="swapping", volumes=volume_swap.swapped(volume, new))
        try:
            await self._write(claim, record)
        except Conflict as error:
            raise _changed(claim) from error
        await volume_swap.remove(home, volume)
        await self._lock(claim, record)
        await self._reach(record)

    async def _lock(self, claim: Object, record: MoveRecord) -> None:
        """Verifies that no pod can have written to the source since the copy began; otherwise
        restores it and raises PreflightError."""
        writers = transfer_checks.possible_writers(claim, await self._pods(), record.since)
        if not writers:
            return
        await self._restore(record)
        names = ", ".join(sorted(map(name_of, writers)))
        raise PreflightError(
            f"home: {names} has started with PersistentVolumeClaim {namespace_of(claim)}/"
            f"{name_of(claim)} during the copy, and may have written to it; nothing was moved. "
            "Scale its controller to zero, or delete the pod, and run the command again"
        )

    async def _continue(self, claim: Object, record: MoveRecord) -> TransferResult | None:
        """Continues a move that an earlier command has begun to swap or to restore; None if its
        data has to be copied again."""
        if record.node != self._settings.to:
            raise PreflightError(claim_moves.unfinished_message(claim, record))
        volumes = await volume_swap.read_volumes(self._home, record.volumes)
        source = bound_volume(claim)
        if record.phase == "swapping" and not volume_swap.has_data(
            volumes[source], record.volumes[source]
        ):
            if volumes[source] is not None:
                # Pods could start with the claim until now.
                await self._restore(record)
                return None
            await self._lock(claim, record)
        elif record.phase == "restoring":
            await self._restore(record)
            return None
        await self._reach(record)
        return TransferResult(None, record.target, None, await self._finish(record))

    async def _reach(self, record: MoveRecord) -> None:
        await volume_swap.reach(self._home, record.volumes)
        settings = self._settings
        await volume_swap.wait_until_bound(
            self._home, settings.namespace, settings.claim, record.target
        )

    async def _restore(self, record: MoveRecord) -> None:
        await claim_moves.restore(
            self._home, self._settings.namespace, self._settings.claim, record
        )

    async def _finish(self, record: MoveRecord) -> bool:
        """Removes the records; returns whether the old data was deleted."""
        await self._annotate(record.target, {ANNOTATION_COPY: None})
        await self._annotate(self._settings.claim, {ANNOTATION_MOVE: None})
        if not self._settings.delete_old:
            return False
        namespace = self._settings.namespace
        old = await self._home.find(PERSISTENT_VOLUME_CLAIMS, record.target, namespace=namespace)
        if old is not None:
            await self._home.delete(
                PERSISTENT_VOLUME_CLAIMS, record.target, namespace=namespace, uid=uid_of(old)
            )
        return True

    async def _annotate(self, name: str, annotations: Object) -> None:
        await self._home.patch(
            PERSISTENT_VOLUME_CLAIMS,
            name,
            {"metadata": {"annotations": annotations}},
            namespace=self._settings.namespace,
        )


def _changed(claim: Object) -> PreflightError:
    return PreflightError(
        f"home: PersistentVolumeClaim {namespace_of(claim)}/{name_of(claim)} was changed "
        "meanwhile, or another command works on it; nothing was moved. Run the command again"
    )
