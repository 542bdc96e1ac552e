"""Creates the informers of home's and the remote's storage, and the indexes of their stores."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping

from sync.cache.informer import Informer
from sync.cache.namespaced_informer import NamespacedInformer
from sync.cache.store import Indexer
from sync.declaration.controller_context import SnapshotInformers, StorageInformers
from sync.kube.api_resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_SNAPSHOT_CLASSES,
    VOLUME_SNAPSHOT_CONTENTS,
    VOLUME_SNAPSHOTS,
    Resource,
)
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata, namespace_of
from translators.ownership_labels import home_selector, origin_of
from translators.storage import remote_pvc, volume_snapshot
from translators.storage.identifiers import (
    DRIVER,
    ClaimKey,
    claim_of_volume,
    class_name,
    selected_node,
    volume_handle,
)
from translators.translation_options import Policy

#: Metadata that is kept of a PersistentVolume that the bridge does not serve.
_KEPT_METADATA = ("name", "uid", "resourceVersion", "creationTimestamp")


def storage_informers(account: KubeClient, remote: KubeClient, policy: Policy) -> StorageInformers:
    """The informers of an engine that provisions volumes."""
    return StorageInformers(
        home_claims=Informer(
            account,
            PERSISTENT_VOLUME_CLAIMS,
            indexers={
                "class": lambda claim: (class_name(claim),),
                "snapshot": _source_snapshot_of,
                "namespace": functools.partial(_namespace_on_node, policy.identity.node),
            },
            slim=_without_managed_fields,
        ),
        home_volumes=Informer(
            account,
            PERSISTENT_VOLUMES,
            indexers={"claim": _claim_of, "handle": _handle_of},
            slim=_slim_volume,
        ),
        home_classes=Informer(account, STORAGE_CLASSES),
        remote_claims=_in_remote(
            remote,
            PERSISTENT_VOLUME_CLAIMS,
            policy,
            {"origin": _origin_of, "awaited source": _awaited_source_of},
        ),
        remote_classes=Informer(remote, STORAGE_CLASSES),
        snapshots=_snapshot_informers(account, remote, policy) if policy.snapshots else None,
    )


def _snapshot_informers(
    account: KubeClient, remote: KubeClient, policy: Policy
) -> SnapshotInformers:
    return SnapshotInformers(
        home_snapshots=Informer(account, VOLUME_SNAPSHOTS, slim=_without_managed_fields),
        home_contents=Informer(
            account,
            VOLUME_SNAPSHOT_CONTENTS,
            indexers={"handle": _snapshot_handle_of, "source": _snapshot_source_of},
            slim=_without_managed_fields,
        ),
        home_classes=Informer(account, VOLUME_SNAPSHOT_CLASSES),
        remote_snapshots=_in_remote(remote, VOLUME_SNAPSHOTS, policy),
    )


def _namespace_on_node(node: str, claim: Object) -> Iterable[Hashable]:
    return (namespace_of(claim),) if selected_node(claim) == node else ()


def _in_remote(
    remote: KubeClient,
    resource: Resource,
    policy: Policy,
    indexers: Mapping[str, Indexer] | None = None,
) -> Informer:
    """This home's objects in the remote, or in its prepared namespaces."""
    labels = home_selector(policy.identity)
    if not policy.remote_namespaces:
        return Informer(remote, resource, labels=labels, indexers=indexers)
    namespaces = policy.remote_namespaces
    return NamespacedInformer(
        remote, resource, namespaces=namespaces, labels=labels, indexers=indexers
    )


def _origin_of(remote: Object) -> Iterable[Hashable]:
    origin = origin_of(remote)
    return () if origin is None else (ClaimKey(origin.namespace, origin.name),)


def _awaited_source_of(remote: Object) -> Iterable[Hashable]:
    source = remote_pvc.awaited_source(remote)
    return () if source is None else (source,)


def _source_snapshot_of(claim: Object) -> Iterable[Hashable]:
    name = remote_pvc.source_snapshot(claim)
    return (ClaimKey(namespace_of(claim), name),) if name else ()


def _claim_of(volume: Object) -> Iterable[Hashable]:
    claim = claim_of_volume(volume)
    return () if claim is None else (claim,)


def _handle_of(volume: Object) -> Iterable[Hashable]:
    handle = volume_handle(volume)
    return () if handle is None else (handle,)


def _snapshot_handle_of(content: Object) -> Iterable[Hashable]:
    handle = volume_snapshot.served_handle(content)
    return () if handle is None else (handle,)


def _snapshot_source_of(content: Object) -> Iterable[Hashable]:
    handle = volume_snapshot.source_handle(content)
    return () if handle is None or not volume_snapshot.is_served(content) else (handle,)


def _without_managed_fields(obj: Object) -> Object:
    obj["metadata"].pop("managedFields", None)
    return obj


def _slim_volume(volume: Object) -> Object:
    csi = (volume.get("spec") or {}).get("csi") or {}
    if csi.get("driver") == DRIVER:
        return _without_managed_fields(volume)
    meta = {key: value for key, value in metadata(volume).items() if key in _KEPT_METADATA}
    spec: Object = {"claimRef": (volume.get("spec") or {}).get("claimRef")}
    return {**volume, "metadata": meta, "spec": spec, "status": {}}
