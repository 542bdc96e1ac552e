"""The context of a single controller, without an engine."""

from __future__ import annotations

import functools

from sync.cache.cache_share import NamespaceShares
from sync.capacity.remote_capacity import CapacityAggregator
from sync.declaration.controller_context import ControllerContext
from sync.engine.engine import utc_now
from sync.engine.shared_informers import SharedInformers, home_references
from sync.kube.client import KubeClient
from sync.namespaces.home_namespace_labels import HomeNamespaceLabels
from sync.namespaces.namespace_ownership import NamespaceOwnership
from sync.namespaces.per_namespace_informers import NamespaceWatches
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.references.reference_watches import ReferenceWatches
from sync.runtime.event_recorder import EventRecorder
from tests.sync.memory_ownership_record import MemoryRecord
from translators.capacity.node_capacity import NO_LIMITS
from translators.translation_options import Policy


def controller_context(home: KubeClient, remote: KubeClient, policy: Policy) -> ControllerContext:
    """A context whose informers do not run."""
    shared = SharedInformers(home, remote, policy, account=home, fast_keepalive=False)
    shares = NamespaceShares(home.limits)
    ownership = NamespaceOwnership(MemoryRecord(), shared.remote_namespaces, policy.identity)
    return ControllerContext(
        home=home,
        account=home,
        remote=remote,
        policy=policy,
        home_pods=shared.home_pods,
        remote_pods=shared.remote_pods,
        remote_nodes=shared.remote_nodes,
        remote_namespaces=shared.remote_namespaces,
        priority_classes=shared.priority_classes,
        remote_quotas=shared.remote_quotas,
        copies=shared.copies,
        capacity=CapacityAggregator(policy.identity, NO_LIMITS),
        namespaces=NamespaceMapping(
            remote,
            shared.remote_namespaces,
            policy.identity,
            ownership,
            labels=HomeNamespaceLabels(home),
        ),
        watches=NamespaceWatches(home, shares=shares),
        references=ReferenceWatches(
            home, shared.home_pods, functools.partial(home_references, policy), shares=shares
        ),
        events=EventRecorder(home, node=policy.identity.node, now=utc_now),
        now=utc_now,
        storage=shared.storage,
    )
