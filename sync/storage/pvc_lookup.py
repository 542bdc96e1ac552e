"""Finds the PVCs of both clusters that belong together, in the caches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sync.cache.store import Key, key_of
from sync.declaration.controller_context import ControllerContext, StorageInformers
from sync.kube.api_resources import PERSISTENT_VOLUME_CLAIMS
from sync.kube.client import RUNNING_LIST_LIMIT
from translators.derived_names import label_value
from translators.object_accessors import (
    HomeNamespace,
    Object,
    RemoteNamespace,
    name_of,
    namespace_of,
)
from translators.ownership_labels import home_selector
from translators.storage import pvc_resolution, remote_pvc, volume_snapshot
from translators.storage.identifiers import (
    LABEL_DATA_SOURCE,
    ClaimKey,
    VolumeHandle,
    bound_volume,
    claim_names,
    claims_of_pod,
)
from translators.storage.pvc_resolution import Unresolved
from translators.storage.remote_pvc import DataSource


class PvcLookup:
    """Reads the caches of an engine that provisions volumes."""

    def __init__(self, context: ControllerContext, storage: StorageInformers) -> None:
        self._account = context.account
        self._remote = context.remote
        self._policy = context.policy
        self._storage = storage

    def remote_claim(self, handle: VolumeHandle) -> Object | None:
        """The managed PVC that the handle names, if it is in this remote."""
        if handle.remote_id != self._policy.remote_id:
            return None
        return self._storage.remote_claims.store.get(Key(handle.namespace, handle.name))

    def volumes_of(self, remote: Object) -> Sequence[Object]:
        """Home's PersistentVolumes whose data is in a remote PVC."""
        return self.volumes_at(namespace_of(remote), name_of(remote))

    def volumes_at(self, namespace: str, name: str) -> Sequence[Object]:
        """The home cluster's PersistentVolumes whose data is in the remote PVC of this name."""
        handle = VolumeHandle(self._policy.remote_id, RemoteNamespace(namespace), name)
        return self._storage.home_volumes.store.by_index("handle", handle)

    async def copies_in_progress(self, source: DataSource) -> Sequence[Object]:
        """The remote PVCs that may still have to be filled from a PVC or VolumeSnapshot of the
        remote; if the cache has none, according to the remote's API server: another virtual node
        may have just created one. Raises KubeError."""
        if cached := self._storage.remote_claims.store.by_index("awaited source", source):
            return cached
        home, name = home_selector(self._policy.identity), label_value(source.name)
        found = await self._remote.list(
            PERSISTENT_VOLUME_CLAIMS,
            namespace=source.namespace,
            labels=f"{home},{LABEL_DATA_SOURCE}={name}",
            most=RUNNING_LIST_LIMIT,
        )
        return [claim for claim in found.items if remote_pvc.awaited_source(claim) == source]

    def has_cached(self, remotes: Iterable[Object]) -> bool:
        """Whether the cache has one of these PVCs of the remote, so that its next change is an
        event."""
        store = self._storage.remote_claims.store
        return any(store.get(key_of(remote)) is not None for remote in remotes)

    def resolve(self, key: ClaimKey) -> str | Unresolved:
        """The name of the remote PVC for a home PVC (`pvc_resolution.resolve`)."""
        home = self._storage.home_claims.store.get(Key(*key))
        volume = None
        if home is not None and (name := bound_volume(home)):
            volume = self._storage.home_volumes.store.get(Key("", name))
        handle = pvc_resolution.used_handle(home, volume, self._policy, name=key.name)
        remote = None if isinstance(handle, Unresolved) else self.remote_claim(handle)
        return pvc_resolution.resolve(home, volume, remote, self._policy, name=key.name)

    def resolve_snapshot(self, key: ClaimKey) -> str | Unresolved:
        """The name of the remote VolumeSnapshot for a home VolumeSnapshot
        (`volume_snapshot.resolve_source`)."""
        snapshots = self._storage.snapshots
        if snapshots is None:
            return volume_snapshot.not_served(key.name)
        snapshot = snapshots.home_snapshots.store.get(Key(*key))
        status: Object = (snapshot or {}).get("status") or {}
        bound = str(status.get("boundVolumeSnapshotContentName") or "")
        content = snapshots.home_contents.store.get(Key("", bound))
        namespace = self._policy.identity.remote_namespace(HomeNamespace(key.namespace))
        return volume_snapshot.resolve_source(
            key.name, snapshot, content, self._policy, namespace=namespace
        )

    async def refresh(self, pod: Object) -> None:
        """Reads the pod's PVCs from home's API server: home binds a pod right after its PVCs, and
        the caches may show the pod first. Raises KubeError."""
        for key in claims_of_pod(pod):
            claim = await self._account.find(
                PERSISTENT_VOLUME_CLAIMS, key.name, namespace=key.namespace
            )
            if claim is not None:
                self._storage.home_claims.observe_write(claim)

    def claims_of(self, pod: Object) -> dict[str, str] | Unresolved:
        """The remote PVCs that a home pod mounts, by the name of the volume; or why one of them
        cannot be mounted."""
        found: dict[str, str] = {}
        ephemeral = {
            str(it["name"]) for it in pod["spec"].get("volumes") or () if it.get("ephemeral")
        }
        for volume, name in claim_names(pod).items():
            key = ClaimKey(namespace_of(pod), name)
            if volume in ephemeral:
                claim = self._storage.home_claims.store.get(Key(*key))
                problem = pvc_resolution.foreign_ephemeral_claim(pod, claim, name=name)
                if problem is not None:
                    return problem
            resolved = self.resolve(key)
            if isinstance(resolved, Unresolved):
                return resolved
            found[volume] = resolved
        return found
