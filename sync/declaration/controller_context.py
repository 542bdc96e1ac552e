"""The dependencies of all controllers: clients, shared informers, and namespaces.

Modeled on the ControllerContext of kube-controller-manager. The engine creates one and runs its
informers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sync.cache.informer import Informer
from sync.capacity.remote_capacity import CapacityAggregator
from sync.kube.api_resources import Resource
from sync.kube.client import KubeClient
from sync.namespaces.per_namespace_informers import NamespaceWatches
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.references.reference_watches import ReferenceWatches
from sync.runtime.event_recorder import EventRecorder
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInformers:
    """The informers of VolumeSnapshots. The account reads home's objects, of all namespaces."""

    home_snapshots: Informer
    home_contents: Informer
    """Home's VolumeSnapshotContents. Indexes: ``handle`` (the remote VolumeSnapshot) and ``source``
    (the remote PVC of which it is taken)."""
    home_classes: Informer
    remote_snapshots: Informer
    """This home's VolumeSnapshots in the remote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageInformers:
    """The informers of `sync.storage`. The account reads home's objects, of all namespaces."""

    home_claims: Informer
    """Home's PVCs. Indexes: ``class`` (the name of the StorageClass) and ``namespace``, of those
    for which the virtual node is selected."""
    home_volumes: Informer
    """Home's PersistentVolumes; of other drivers' only the fields that identify them. Indexes:
    ``claim`` (the PVC that a volume is for) and ``handle`` (of volumes of the bridge)."""
    home_classes: Informer
    remote_claims: Informer
    """This home's PVCs in the remote. Index: ``origin`` (the home PVC that each was created
    for)."""
    remote_classes: Informer
    snapshots: SnapshotInformers | None = None
    """None where a side lacks VolumeSnapshots, or the permissions are not granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """The dependencies of a controller, which names the informers that it reads in its
    `Declaration`."""

    home: KubeClient
    """Acts as the virtual node: it may do what a kubelet may."""
    account: KubeClient
    """Acts at home as the bridge's own account, for what a node may not do; the same client as
    ``home`` where home signs no node's certificate."""
    remote: KubeClient
    policy: Policy
    home_pods: Informer
    """Pods bound to the virtual node. Indexes: ``namespace``, ``reference`` (the ConfigMaps and
    Secrets that a pod needs) and ``claim`` (the PVCs that it mounts); all only of pods that are to
    run in the remote."""
    remote_pods: Informer
    """This home's pods in the remote, those of its other virtual nodes too. Indexes: ``namespace``
    and ``reference``, both by home namespace, ``relay`` (relay agents), and ``place`` (the
    namespace that a pod is in)."""
    remote_nodes: Informer
    """The remote nodes that the virtual node stands for; empty where ``policy.cluster_reads`` has
    no nodes."""
    remote_namespaces: Informer
    """All namespaces of the remote, or the prepared ones where ``policy.cluster_reads`` has no
    namespaces; reduced by `sync.capacity.remote_capacity.slim_namespace`."""
    priority_classes: Informer
    """The remote's PriorityClasses; empty where ``policy.cluster_reads`` has none."""
    remote_quotas: Informer
    """The remote's ResourceQuotas, as far as they can be read."""
    copies: Mapping[Resource, Informer]
    """This home's ConfigMaps, Secrets, Services and EndpointSlices in the remote. Indexes:
    ``origin`` (home namespace), ``relay`` and ``place``."""
    capacity: CapacityAggregator
    """The sums of what the remote can provide."""
    namespaces: NamespaceMapping
    watches: NamespaceWatches
    references: ReferenceWatches
    events: EventRecorder
    now: Callable[[], str]
    """The current time in RFC 3339."""
    storage: StorageInformers | None = None
    """None if the bridge provisions no volumes."""

    @property
    def identity(self) -> Identity:
        """The identity of this home and its virtual node."""
        return self.policy.identity
