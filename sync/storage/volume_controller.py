"""Reclaims home's PersistentVolumes whose PVC was deleted: `sync.storage.volume_planner` decides.

This is the only place that deletes a remote PVC with data: by its UID, after home's API server has
confirmed that the home PVC no longer exists. Of several virtual nodes of one remote each may do so:
every request names a UID.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sync.base.resource_version import version_of
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext, StorageInformers
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube.api_errors import BadRequest, Forbidden, Invalid, KubeError, NotFound
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from sync.runtime.controller import Controller
from sync.runtime.log_fields import changes, object_fields
from sync.storage import volume_planner
from sync.storage.pvc_lookup import PvcLookup
from sync.storage.volume_planner import (
    Action,
    AwaitCopies,
    Confirm,
    ConfirmedState,
    DeleteRemote,
    DeleteVolume,
    RemoveFinalizer,
)
from translators.object_accessors import (
    Object,
    metadata,
    name_of,
    namespace_of,
    namespaced_name,
    uid_of,
)
from translators.storage import remote_pvc
from translators.storage.identifiers import FINALIZER, volume_handle
from translators.storage.remote_pvc import DataSource

#: PersistentVolumes reconciled at once.
WORKERS = 8
#: Plans of one reconcile: one with the caches, and one with what the API servers confirm.
PLANS = 2
#: Seconds until a copy that the cache does not show is looked for again.
CONFIRM = 1.0
#: The reason of Events, as of every provisioner.
REASON_DELETE_FAILED = "VolumeFailedDelete"


class VolumeController:
    """The reconciler of PersistentVolumes. A key is the name of one at home."""

    def __init__(self, context: ControllerContext, storage: StorageInformers) -> None:
        self._account = context.account
        self._remote = context.remote
        self._policy = context.policy
        self._identity = context.identity
        self._events = context.events
        self.storage = storage
        self._lookup = PvcLookup(context, storage)
        self.controller: Controller[Key] = Controller(
            "persistent-volumes", self._reconcile, workers=WORKERS, kind="PersistentVolume"
        )
        self.deletions: Counter[str] = Counter({"success": 0, "failure": 0})
        """How many volumes were deleted with their data, and how many attempts failed."""

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self.storage.home_volumes, self.home_volume_changed),
                Watch(self.storage.remote_claims, self.remote_claim_changed, replay=False),
            ],
        )

    def home_volume_changed(self, _: Object | None, new: Object | None) -> None:
        handle = volume_handle(new) if new is not None else None
        if new is not None and handle is not None and handle.remote_id == self._policy.remote_id:
            self.controller.queue.add(key_of(new))

    def remote_claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the volume of a remote PVC that was deleted, and that of the source of one that no
        longer has to be filled from it."""
        remote = new or old or {}
        found = list(self._lookup.volumes_of(remote)) if new is None else []
        source = remote_pvc.data_source(remote)
        if source is not None and (new is None or remote_pvc.awaited_source(new) is None):
            found += self._lookup.volumes_at(source.namespace, source.name)
        for volume in found:
            self.controller.queue.add(key_of(volume))

    async def _reconcile(self, key: Key) -> None:
        confirmed: ConfirmedState | None = None
        for _ in range(PLANS):
            volume = self.storage.home_volumes.store.get(key)
            if volume is None:
                return
            handle = volume_handle(volume)
            cached = self._lookup.remote_claim(handle) if handle is not None else None
            action = volume_planner.plan_action(volume, confirmed, self._identity, cached=cached)
            if action != Confirm():
                await self._execute(volume, action)
                return
            confirmed = await self._confirm(volume)

    async def _execute(self, volume: Object, action: Action | None) -> None:
        match action:
            case AwaitCopies(message, copies):
                self._events.warn(volume, REASON_DELETE_FAILED, message)
                if not self._lookup.has_cached(copies):
                    self.controller.queue.add_after(key_of(volume), CONFIRM)
            case DeleteRemote(remote):
                try:
                    await self._delete_remote(volume, remote)
                except KubeError:
                    self.deletions["failure"] += 1
                    raise
            case DeleteVolume():
                await self._remove_finalizer(volume)
                deleted = await self._account.delete(
                    PERSISTENT_VOLUMES, name_of(volume), uid=uid_of(volume), decode=True
                )
                if deleted is not None:
                    self.storage.home_volumes.observe_write(deleted)
                self.deletions["success"] += 1
                self._log(volume, "deleted: its data was reclaimed")
            case RemoveFinalizer():
                await self._remove_finalizer(volume)
                self._log(volume, "released: its data stays in the remote")

    async def _confirm(self, volume: Object) -> ConfirmedState:
        """Confirms by a patch without change that the PersistentVolume is as the cache shows it, so
        that an administrator who keeps the data at the last moment is not overlooked, and reads
        both PVCs and the copies of the remote one. Raises KubeError."""
        meta = {"uid": uid_of(volume), "resourceVersion": version_of(volume)}
        await self._account.patch(PERSISTENT_VOLUMES, name_of(volume), {"metadata": meta})
        reference = (volume.get("spec") or {}).get("claimRef") or {}
        home = await self._account.find(
            PERSISTENT_VOLUME_CLAIMS,
            str(reference.get("name")),
            namespace=str(reference.get("namespace")),
        )
        claim_exists = home is not None and uid_of(home) == reference.get("uid")
        handle = volume_handle(volume)
        if claim_exists or handle is None:
            return ConfirmedState(True, None)
        remote = await self._remote.find(
            PERSISTENT_VOLUME_CLAIMS, handle.name, namespace=handle.namespace
        )
        copies: Sequence[Object] = ()
        if remote is not None:
            source = DataSource(PERSISTENT_VOLUME_CLAIMS.kind, handle.namespace, handle.name)
            copies = await self._lookup.copies_in_progress(source)
        return ConfirmedState(False, remote, copies)

    async def _delete_remote(self, volume: Object, remote: Object) -> None:
        """Deletes the remote PVC; the watch shows the end of that, which queues the volume."""
        try:
            deleted = await self._remote.delete(
                PERSISTENT_VOLUME_CLAIMS,
                name_of(remote),
                namespace=namespace_of(remote),
                uid=uid_of(remote),
                decode=True,
            )
        except (Forbidden, Invalid, BadRequest) as error:
            message = (
                f"remote: cannot delete PersistentVolumeClaim {namespaced_name(remote)}: "
                f"{error.message}"
            )
            self._events.warn(volume, REASON_DELETE_FAILED, message)
            raise
        if deleted is not None:
            self.storage.remote_claims.observe_write(deleted)
        self._log(volume, f"PersistentVolumeClaim {namespaced_name(remote)} deleted in the remote")

    async def _remove_finalizer(self, volume: Object) -> None:
        finalizers = metadata(volume).get("finalizers") or []
        if FINALIZER not in finalizers:
            return
        meta = {
            "uid": uid_of(volume),
            "resourceVersion": version_of(volume),
            "finalizers": [it for it in finalizers if it != FINALIZER],
        }
        try:
            changed = await self._account.patch(
                PERSISTENT_VOLUMES, name_of(volume), {"metadata": meta}
            )
        except NotFound:
            return
        self.storage.home_volumes.observe_write(changed)

    def _log(self, volume: Object, what: str) -> None:
        fields = object_fields("PersistentVolume", volume, cluster="home")
        changes.info("PersistentVolume %s: %s", name_of(volume), what, extra=fields)
