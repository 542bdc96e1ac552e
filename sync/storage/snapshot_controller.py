"""Reconciles home's VolumeSnapshotContents whose volumes are in the remote:
`sync.storage.snapshot_planner` decides, and this acts.

The bridge is to home's snapshot controller what csi-snapshotter is beside a CSI driver. Home is
asked first whether the bridge may write the PVC: no snapshot is taken for a namespace that is not
bound to the bridge. Of several
virtual nodes of one remote each may act: names follow from UIDs, and every deletion names a UID.
"""

from __future__ import annotations

from sync.base.resource_version import version_of
from sync.cache.store import Key, key_of
from sync.declaration.controller_context import (
    ControllerContext,
    SnapshotInformers,
    StorageInformers,
)
from sync.declaration.controller_declaration import Declaration, Watch
from sync.kube.api_errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from sync.kube.api_resources import (
    PERSISTENT_VOLUME_CLAIMS,
    VOLUME_SNAPSHOTS,
)
from sync.namespaces.per_namespace_informers import home_forbids
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import changes, object_fields
from sync.storage import snapshot_planner
from sync.storage.exact_patch import patch_exactly
from sync.storage.pvc_lookup import PvcLookup
from sync.storage.snapshot_planner import (
    Action,
    CreateSnapshot,
    DeleteSnapshot,
    PatchContent,
    RemoveFinalizer,
    SnapshotState,
)
from sync.storage.volume_planner import copies_message
from translators.object_accessors import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
    namespaced_name,
    uid_of,
)
from translators.storage import remote_pvc, volume_snapshot
from translators.storage.identifiers import VolumeHandle, claim_of_volume, claim_uid_of_volume
from translators.storage.remote_pvc import DataSource
from translators.storage.volume_snapshot import FINALIZER

#: Contents reconciled at once.
WORKERS = 8
#: Seconds until a snapshot that the cache does not have is looked for again.
CONFIRM = 1.0
#: Plans of one reconcile: create and show the status, or delete and remove the finalizer.
PLANS = 3


class SnapshotController:
    """The reconciler of VolumeSnapshotContents. A key is the name of one at home."""

    def __init__(
        self, context: ControllerContext, storage: StorageInformers, snapshots: SnapshotInformers
    ) -> None:
        self._account = context.account
        self._remote = context.remote
        self._policy = context.policy
        self._now = context.now
        self._storage = storage
        self.snapshots = snapshots
        self._lookup = PvcLookup(context, storage)
        self.controller: Controller[Key] = Controller(
            "volume-snapshots", self._reconcile, workers=WORKERS, kind="VolumeSnapshotContent"
        )

    def declare(self) -> Declaration:
        """Returns the declaration for the engine."""
        snapshots = self.snapshots
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(snapshots.home_contents, self.content_changed),
                Watch(snapshots.home_classes, self.class_changed, replay=False),
                Watch(snapshots.remote_snapshots, self.remote_changed, replay=False),
                Watch(self._storage.remote_claims, self.claim_changed, replay=False),
            ],
        )

    def content_changed(self, _: Object | None, new: Object | None) -> None:
        if new is not None and self._is_reconciled(new):
            self.controller.queue.add(key_of(new))

    def class_changed(self, _: Object | None, new: Object | None) -> None:
        """Queues the contents of a class that changed: they may have lacked it."""
        for content in self.snapshots.home_contents.store:
            if (content.get("spec") or {}).get("volumeSnapshotClassName") == name_of(new or {}):
                self.content_changed(None, content)

    def remote_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the contents of a VolumeSnapshot of the remote."""
        remote = new or old or {}
        self._queue("handle", namespace_of(remote), name_of(remote))

    def claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the contents that wait for a remote PVC, and that of the VolumeSnapshot from which
        one no longer has to be restored."""
        if old is None and new is not None:
            self._queue("source", namespace_of(new), name_of(new))
        source = remote_pvc.data_source(new or old or {})
        if source is not None and (new is None or remote_pvc.awaited_source(new) is None):
            self._queue("handle", source.namespace, source.name)

    def _queue(self, index: str, namespace: str, name: str) -> None:
        handle = VolumeHandle(self._policy.remote_id, RemoteNamespace(namespace), name)
        for content in self.snapshots.home_contents.store.by_index(index, handle):
            self.controller.queue.add(key_of(content))

    def _handle(self, content: Object) -> VolumeHandle | None:
        """The remote VolumeSnapshot of a content; None if it is not in this remote."""
        handle = volume_snapshot.served_handle(content)
        is_here = handle is not None and handle.remote_id == self._policy.remote_id
        return handle if is_here else None

    def _is_reconciled(self, content: Object) -> bool:
        """Whether the snapshot is in this remote, or in none, which each bridge of home reports."""
        return self._handle(content) is not None or volume_snapshot.has_other_source(content)

    async def _reconcile(self, key: Key) -> None:
        for _ in range(PLANS):
            content = self.snapshots.home_contents.store.get(key)
            if content is None or not self._is_reconciled(content):
                return
            state = self._state(content)
            action = snapshot_planner.plan_action(state, self._policy, self._now())
            if action is None or not await self._execute(state, action):
                return

    def _state(self, content: Object) -> SnapshotState:
        handle = self._handle(content)
        spec: Object = content.get("spec") or {}
        source = volume_snapshot.source_handle(content)
        class_name = str(spec.get("volumeSnapshotClassName") or "")
        remotes = self.snapshots.remote_snapshots.store
        return SnapshotState(
            content,
            handle,
            remote=handle and remotes.get(Key(handle.namespace, handle.name)),
            claim=self._lookup.remote_claim(source) if source is not None else None,
            home_class=self.snapshots.home_classes.store.get(Key("", class_name)),
        )

    async def _execute(self, state: SnapshotState, action: Action) -> bool:
        """Carries out the action. Returns whether to plan again now. Raises KubeError and
        ReconcileBlocked."""
        content = state.content
        match action:
            case CreateSnapshot(snapshot):
                await self._confirm_writable(state)
                return await self._create(content, snapshot)
            case PatchContent(patch):
                return await patch_exactly(
                    self.snapshots.home_contents, content, patch, subresource="status"
                )
            case DeleteSnapshot(remote):
                return await self._delete(content, remote)
            case RemoveFinalizer(confirm):
                if confirm and (found := await self._find(state)) is not None:
                    # The cache lags, so that no event of it may follow.
                    self.controller.queue.add_after(key_of(content), CONFIRM)
                    return not is_deleting(found) and await self._delete(content, found)
                return await self._remove_finalizer(content)

    async def _confirm_writable(self, state: SnapshotState) -> None:
        """Confirms by a patch without change that home still has the PVC, and that the bridge may
        write it. Raises ReconcileBlocked otherwise, and reports it."""
        namespace = volume_snapshot.snapshot_ref(state.content).namespace
        try:
            for volume in self._lookup.volumes_of(state.claim or {}):
                if await self._may_write_claim(volume, namespace):
                    return
            blocked = ReconcileBlocked(
                "VolumePending",
                f"home: no PersistentVolumeClaim of namespace {namespace} is bound to the volume",
            )
        except Forbidden as error:
            action, bound = "patch persistentvolumeclaims", HomeNamespace(namespace)
            blocked = home_forbids(action, bound, server_message=error.message)
        await self._report(state.content, blocked.message)
        raise blocked

    async def _may_write_claim(self, volume: Object, namespace: str) -> bool:
        """Whether home has the PVC of the volume, in this namespace. Raises Forbidden if the bridge
        may not write it."""
        key = claim_of_volume(volume)
        if key is None or key.namespace != namespace:
            return False
        claim_uid = claim_uid_of_volume(volume)
        if not claim_uid:
            return False
        patch = {"metadata": {"uid": claim_uid}}
        try:
            current = await self._account.patch(
                PERSISTENT_VOLUME_CLAIMS, key.name, patch, namespace=namespace
            )
        except (NotFound, Conflict):  # Deleted; or created again, with another UID.
            return False
        self._storage.home_claims.observe_write(current)
        return True

    async def _create(self, content: Object, snapshot: Object) -> bool:
        namespace = namespace_of(snapshot)
        try:
            created = await self._remote.create(VOLUME_SNAPSHOTS, snapshot, namespace=namespace)
        except AlreadyExists:
            # An earlier request created it, and the watch lags; or it is unmanaged.
            created = await self._remote.get(
                VOLUME_SNAPSHOTS, name_of(snapshot), namespace=namespace
            )
            if not volume_snapshot.is_snapshot_of(created, content, self._policy.identity):
                message = (
                    f"remote: VolumeSnapshot {namespaced_name(snapshot)} exists and is not managed "
                    "by this home; delete or rename it"
                )
                await self._report(content, message)
                raise ReconcileBlocked("RemoteClash", message) from None
        except (Forbidden, Invalid, BadRequest) as error:
            message = f"remote: the API server rejects the VolumeSnapshot: {error.message}"
            await self._report(content, message)
            raise
        else:
            self._log(content, f"created in the remote as {namespaced_name(created)}")
        self.snapshots.remote_snapshots.observe_write(created)
        return True

    async def _report(self, content: Object, message: str) -> None:
        if patch := volume_snapshot.error_patch(content, message, self._now()):
            await patch_exactly(self.snapshots.home_contents, content, patch, subresource="status")

    async def _delete(self, content: Object, remote: Object) -> bool:
        """Deletes the remote VolumeSnapshot, unless a PVC is still to be restored from it
        (`sync.storage.volume_planner`). First confirms by a patch without change that the
        content is as the cache shows it, so that an administrator who keeps the snapshot at the
        last moment is not overlooked."""
        meta = {"resourceVersion": version_of(content)}
        if not await patch_exactly(self.snapshots.home_contents, content, {"metadata": meta}):
            return False
        source = DataSource(VOLUME_SNAPSHOTS.kind, namespace_of(remote), name_of(remote))
        if copies := await self._lookup.copies_in_progress(source):
            await self._report(content, copies_message(remote, copies))
            if not self._lookup.has_cached(copies):
                self.controller.queue.add_after(key_of(content), CONFIRM)
            return False
        await self._remote.delete(
            VOLUME_SNAPSHOTS, name_of(remote), namespace=namespace_of(remote), uid=uid_of(remote)
        )
        self._log(content, f"VolumeSnapshot {namespaced_name(remote)} deleted in the remote")
        return False  # The end of the deletion queues the key.

    async def _find(self, state: SnapshotState) -> Object | None:
        """The VolumeSnapshot according to the remote's API server, if this home manages it."""
        handle = state.handle
        if handle is None:
            return None
        found = await self._remote.find(VOLUME_SNAPSHOTS, handle.name, namespace=handle.namespace)
        if found is None:
            return None
        is_same = volume_snapshot.is_snapshot_of(found, state.content, self._policy.identity)
        return found if is_same else None

    async def _remove_finalizer(self, content: Object) -> bool:
        finalizers = [it for it in metadata(content).get("finalizers") or () if it != FINALIZER]
        meta = {"resourceVersion": version_of(content), "finalizers": finalizers}
        await patch_exactly(self.snapshots.home_contents, content, {"metadata": meta})
        return False

    def _log(self, content: Object, what: str) -> None:
        fields = object_fields("VolumeSnapshotContent", content, cluster="home")
        changes.info("VolumeSnapshotContent %s: %s", name_of(content), what, extra=fields)
