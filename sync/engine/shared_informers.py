"""The informers that several controllers read, and the indexes of their stores.

Pods that are not to run in the remote are in no index, so that nothing is watched or copied for
them. A remote object is indexed by its home namespace only if it is in the remote namespace to
which that is mapped.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from sync.cache.informer import Informer
from sync.cache.interning import InternPool
from sync.cache.namespaced_informer import NamespacedInformer
from sync.cache.stub import stub_of
from sync.cache.unreadable_informer import UnreadableInformer
from sync.capacity.remote_capacity import NOT_TERMINAL, slim_namespace, slim_pod
from sync.kube.api_resources import (
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    Resource,
)
from sync.kube.client import KubeClient
from sync.mirror.copy_rules import COPIED_RESOURCES, copies_selector
from sync.pods import action_planner
from sync.references.content_digest import slim_copy
from sync.references.reference_keys import (
    REFERENCED_RESOURCES,
    CopyKey,
    reference_keys,
    watched_keys,
)
from sync.storage.storage_informers import storage_informers
from translators.object_accessors import Object, namespace_of
from translators.ownership_labels import (
    home_selector,
    is_in_mapped_namespace,
    origin_of,
    unmanaged_selector,
)
from translators.pods import references
from translators.relay import reverse_plan
from translators.remote_shapes import POD_USAGE
from translators.storage.identifiers import claims_of_pod
from translators.translation_options import Policy
from translators.virtual_node_identity import Identity


class SharedInformers:
    """Creates the informers; the engine runs those that a declaration names. ``account`` reads
    home's storage. ``fast_keepalive`` as for `Informer`."""

    def __init__(
        self,
        home: KubeClient,
        remote: KubeClient,
        policy: Policy,
        *,
        account: KubeClient,
        fast_keepalive: bool,
    ) -> None:
        identity, pool = policy.identity, InternPool()
        self.home_pods = Informer(
            home,
            PODS,
            fields=f"spec.nodeName={identity.node}",
            indexers={
                "namespace": lambda pod: (
                    (namespace_of(pod),) if action_planner.may_run(pod, policy) else ()
                ),
                "reference": functools.partial(home_references, policy),
                "claim": functools.partial(_mounted_claims, policy),
            },
            indexed=("spec", "metadata.ownerReferences"),
            pool=pool,
        )
        create = functools.partial(_remote_informer, remote, policy)
        self.remote_pods = create(
            PODS,
            labels=home_selector(identity),
            indexers={
                "namespace": functools.partial(_origin_namespace, identity),
                "reference": functools.partial(_remote_references, identity),
                "relay": _relay_namespace,
                "place": _place,
            },
            indexed=("metadata.annotations", *references.REFERENCE_FIELDS),
            pool=pool,
            stub=stub_of,
            fast_keepalive=fast_keepalive,
        )
        self.unmanaged_pods = create(
            PODS,
            labels=unmanaged_selector(identity),
            fields=NOT_TERMINAL,
            slim=functools.partial(slim_pod, identity=identity),
            shape=POD_USAGE,
        )
        self.remote_nodes = create(NODES, labels=policy.node_selection)
        # All namespaces: each can be granted to this home, and have quotas.
        self.remote_namespaces = create(NAMESPACES, slim=slim_namespace)
        self.remote_quotas = create(RESOURCE_QUOTAS)
        self.priority_classes = create(PRIORITY_CLASSES)
        self.copies: dict[Resource, Informer] = {
            resource: _copies_informer(remote, resource, policy) for resource in COPIED_RESOURCES
        }
        provisions = policy.storage == "provision"
        self.storage = storage_informers(account, remote, policy) if provisions else None


def _copies_informer(remote: KubeClient, resource: Resource, policy: Policy) -> Informer:
    return _remote_informer(
        remote,
        policy,
        resource,
        labels=copies_selector(resource, home_selector(policy.identity)),
        indexers={
            "origin": functools.partial(_origin_namespace, policy.identity),
            "relay": _relay_namespace,
            "place": _place,
        },
        indexed=("metadata.annotations",),
        slim=slim_copy if resource in REFERENCED_RESOURCES.values() else None,
        stub=stub_of,
    )


def _remote_informer(
    remote: KubeClient, policy: Policy, resource: Resource, **options: Any
) -> Informer:
    """An informer of the remote with these options of `Informer`: of the whole remote, or where
    the credential does not permit that, of the prepared namespaces, or of nothing."""
    namespaces, reads = policy.remote_namespaces, policy.cluster_reads
    cluster_wide = {
        NODES: reads.nodes,
        NAMESPACES: reads.namespaces,
        PODS: reads.pods,
        PRIORITY_CLASSES: reads.priority_classes,
        RESOURCE_QUOTAS: reads.resource_quotas,
    }
    if not namespaces or cluster_wide.get(resource, False):
        return Informer(remote, resource, **options)
    if resource.namespaced or resource is NAMESPACES:
        return NamespacedInformer(remote, resource, namespaces=namespaces, **options)
    return UnreadableInformer(remote, resource)


def home_references(policy: Policy, home: Object) -> Iterable[CopyKey]:
    """The ConfigMaps and Secrets of home that a pod needs; none if it is not to run."""
    return watched_keys(home, policy) if action_planner.may_run(home, policy) else ()


def _mounted_claims(policy: Policy, home: Object) -> Iterable[Hashable]:
    if policy.storage == "none" or not action_planner.may_run(home, policy):
        return ()
    return claims_of_pod(home)


def _origin_namespace(identity: Identity, remote: Object) -> Iterable[Hashable]:
    origin = origin_of(remote)
    mapped = origin is not None and is_in_mapped_namespace(remote, identity)
    return (origin.namespace,) if origin is not None and mapped else ()


def _place(remote: Object) -> Iterable[Hashable]:
    return (namespace_of(remote),)


def _relay_namespace(remote: Object) -> Iterable[Hashable]:
    """The home namespace that a relay agent, or a slice of reverse forwarding, is for."""
    home = reverse_plan.relay_home_namespace(remote)
    return () if home is None else (home,)


def _remote_references(identity: Identity, remote: Object) -> Iterator[Hashable]:
    """The ConfigMaps and Secrets that a remote pod refers to, as keys of home's objects."""
    origin = origin_of(remote)
    if origin is not None and is_in_mapped_namespace(remote, identity):
        yield from reference_keys(remote, origin.namespace)
