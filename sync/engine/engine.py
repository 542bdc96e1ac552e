"""All of `sync` for one virtual node, wired together and run in order.

1. `watch`: the informers of the node's home pods and of this home's objects in the remote start.
   They write nothing, so a bridge that stands by runs them too. Until `work` no key is queued: a
   standby's queues would grow by every object that comes and goes.
2. `work`: when each has had its first full list, with its handlers called (`synced`), everything
   in the caches is queued, and the controllers start: a decision on half a cache could delete what
   runs. Nothing starts where the remote's pods stand in other namespaces than they should
   (`NamespaceMappingError`).
3. Both run until cancelled. Nothing is written when they stop: workloads go on.

Who begins to work after another bridge did has caches that are behind that one's last writes, as
long as a watch lags or is cut. `refresh` waits until all pods have been seen as that bridge left
them: by an older state one could be made or run once more.

An informer that fails and works again has its cluster's failed keys tried at once.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sync.base.callbacks import Callbacks
from sync.cache.informer import Informer
from sync.cache.interning import InternPool
from sync.cache.store import Key
from sync.capacity.aggregator import NOT_TERMINAL, CapacityAggregator, slim_namespace, slim_pod
from sync.capacity.unschedulable_pods import UnschedulablePods
from sync.cleanup.empty_namespaces import EmptyNamespaceController
from sync.engine import indexers
from sync.engine.initial_keys import Seeds
from sync.kube.client import KubeClient
from sync.kube.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICES,
    Resource,
)
from sync.mirror.copies import COPIED_RESOURCES, CopyController, CopyKey, copies_selector
from sync.mirror.events import EventMirror
from sync.namespaces.mapping import NamespaceMapping
from sync.namespaces.ownership import NamespaceOwnership, OwnershipRecord
from sync.namespaces.watches import NamespaceWatches
from sync.pods.controller import PodController
from sync.pods.service_account_tokens import TokenController
from sync.relay.forward import ForwardRelayController, Listeners
from sync.relay.reverse import Forwarder, ReverseRelayController
from sync.runtime.controller import Controller
from sync.runtime.event_recorder import EventRecorder
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits
from translators.identity import Origin, home_namespace_of, is_owned, is_owned_by_node, origin_of
from translators.objects import HomeNamespace, Object, name_of, namespace_of, uid_of
from translators.pods import references
from translators.timestamps import format_time
from translators.translation_policy import Policy

#: Pods worked or waiting at once that make a burst (one or two are, where they come one after the
#: other), and seconds after that in which its last ones may still come.
BURST, BURST_SECONDS = 4, 2.0


def utc_now() -> str:
    """The time in RFC 3339, in whole seconds as the API keeps it."""
    return _rfc3339(int(time.time()))


@functools.lru_cache(maxsize=1)
def _rfc3339(seconds: int) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))


class NamespaceMappingError(Exception):
    """Pods of this node run in the remote under another mapping of namespaces."""


class Engine:
    """Makes the remote run what home has bound to ``policy.identity.node``. ``record``: where home
    keeps which namespaces of the remote it made (`sync.namespaces.ownership`). ``listeners``: what
    carries connections to the remote, where the policy's network is a relay; ``carriers``: what
    carries those from there, where it has an image for that."""

    def __init__(
        self,
        home: KubeClient,
        remote: KubeClient,
        *,
        policy: Policy,
        record: OwnershipRecord,
        namespace_linger: float,
        copy_linger: float,
        limits: OfferLimits = NO_LIMITS,
        listeners: Listeners | None = None,
        carriers: Forwarder | None = None,
        now: Callable[[], str] = utc_now,
    ) -> None:
        identity = self._identity = policy.identity
        owned = identity.home_selector
        self.events = EventRecorder(home, node=identity.node, now=now)
        pool = InternPool()
        self.home_pods = Informer(
            home,
            PODS,
            fields=f"spec.nodeName={identity.node}",
            indexers={
                "namespace": functools.partial(indexers.namespaces, policy),
                "reference": functools.partial(indexers.home_references, policy),
            },
            indexed=("spec", "metadata.ownerReferences"),
            pool=pool,
        )
        self.remote_pods = Informer(
            remote,
            PODS,
            labels=owned,
            indexers={
                "namespace": functools.partial(indexers.origins, identity),
                "reference": functools.partial(indexers.remote_references, identity),
                "relay": indexers.relayed,
            },
            indexed=("metadata.annotations", *references.REFERENCE_FIELDS),
            pool=pool,
            fast_keepalive=listeners is not None,
        )
        self.unschedulable_pods: UnschedulablePods | None = None
        """Whether pods wait for a node; None where they may wait for ever."""
        if policy.unschedulable_timeout is not None:
            self.unschedulable_pods = UnschedulablePods(self.remote_pods, identity)
        self.remote_nodes = Informer(remote, NODES, labels=policy.node_selection)
        # What there is for this node: others' use of the remote, and what bounds ours.
        # All: one can be handed over to this home, and have quotas.
        self._remote_namespaces = Informer(remote, NAMESPACES, slim=slim_namespace)
        self._owned = NamespaceOwnership(record, self._remote_namespaces, identity)
        namespaces = self._namespaces = NamespaceMapping(
            remote,
            self._remote_namespaces,
            identity,
            self._owned,
            has_pods=functools.partial(self.home_pods.store.has, "namespace"),
        )
        self.capacity = CapacityAggregator(identity, limits, accepts=namespaces.may_use)
        self._owned.on_recognized = lambda it: self.capacity.namespace_changed(it, it)
        self._foreign_pods = Informer(
            remote,
            PODS,
            labels=identity.unmanaged_selector,
            fields=NOT_TERMINAL,
            slim=functools.partial(slim_pod, identity=identity),
        )
        self._quotas = Informer(remote, RESOURCE_QUOTAS)
        self._priority_classes = Informer(remote, PRIORITY_CLASSES)
        self._copies = {
            kind: Informer(
                remote,
                kind,
                labels=copies_selector(kind, owned),
                indexers={
                    "origin": functools.partial(indexers.origins, identity),
                    "relay": indexers.relayed,
                },
                indexed=("metadata.annotations",),
            )
            for kind in COPIED_RESOURCES
        }
        self._burst_ends = 0.0
        self.event_mirror = EventMirror(home, remote, identity, in_burst=self._in_burst)
        self._namespace_synced: Callbacks[HomeNamespace] = Callbacks("home namespace readable")
        self._watches = NamespaceWatches(
            home,
            on_change=self._scoped,
            on_synced=self._namespace_synced,
            on_forbidden=self._namespace_forbidden,
            network=policy.network,
            endpoints=carriers is not None,
            alongside=self.event_mirror.follow,
        )
        self.copies = CopyController(
            remote,
            identity=identity,
            watches=self._watches,
            namespaces=namespaces,
            copies=self._copies,
            home_pods=self.home_pods,
            remote_pods=self.remote_pods,
            events=self.events,
            linger=copy_linger,
            endpoints=policy.network == "flat",
        )
        self.tokens = TokenController(
            home=home,
            remote=remote,
            policy=policy,
            home_pods=self.home_pods,
            remote_pods=self.remote_pods,
            secrets=self._copies[SECRETS],
            watches=self._watches,
            namespaces=namespaces,
            events=self.events,
            now=now,
        )
        self.pods = PodController(
            home=home,
            remote=remote,
            policy=policy,
            home_pods=self.home_pods,
            remote_pods=self.remote_pods,
            remote_nodes=self.remote_nodes,
            priority_classes=self._priority_classes,
            watches=self._watches,
            namespaces=namespaces,
            mirror=self.copies,
            tokens=self.tokens,
            events=self.events,
            now=now,
        )
        self.forward: ForwardRelayController | None = None
        """None where no connections are carried."""
        if listeners is not None:
            self.forward = ForwardRelayController(
                home,
                listeners,
                policy=policy,
                watches=self._watches,
                pods=self.pods,
                home_pods=self.home_pods,
                remote_pods=self.remote_pods,
                events=self.events,
            )
        self.reverse = ReverseRelayController(
            remote,
            carriers,
            home=home,
            policy=policy,
            watches=self._watches,
            namespaces=namespaces,
            home_pods=self.home_pods,
            remote_pods=self.remote_pods,
            services=self._copies[SERVICES],
            slices=self._copies[ENDPOINT_SLICES],
            events=self.events,
            linger=namespace_linger,
        )
        self.empty_namespaces = EmptyNamespaceController(
            remote,
            identity=identity,
            namespaces=namespaces,
            home_pods=self.home_pods,
            owned=[self.remote_pods, *self._copies.values()],
            linger=namespace_linger,
        )
        self._connect()
        self._seeds = self._what_is_queued()
        for controller in self.controllers:
            controller.queue.pause()

    @property
    def informers(self) -> list[Informer]:
        """Those that must be complete before anything is decided."""
        return [
            self.home_pods,
            self.remote_pods,
            self.remote_nodes,
            self._priority_classes,
            self._remote_namespaces,
            *self._copies.values(),
            self._foreign_pods,
            self._quotas,
            *([self.forward.slices] if self.forward is not None else []),
        ]

    @property
    def watches(self) -> list[Informer]:
        """All, with those of single namespaces, which come and go."""
        return [*self.informers, *self._watches.informers, *self.event_mirror.informers]

    @property
    def controllers(self) -> list[Controller[Any]]:
        """Those that make the clusters agree."""
        parts = (
            *(self.copies, self.tokens, self.pods, self.event_mirror, self.empty_namespaces),
            self.reverse,
        )
        found: list[Controller[Any]] = [part.controller for part in parts]
        return found if self.forward is None else [*found, self.forward.controller]

    async def synced(self) -> None:
        """Waits until every informer has had its first full list.

        Raises MappingChanged where pods would be looked for in other namespaces than they are
        in: each would be started a second time.
        """
        for informer in self.informers:
            await informer.synced.wait()
        await self._owned.load()
        for namespace in self._remote_namespaces.store:
            self.capacity.namespace_changed(namespace, namespace)
        for pod in self.remote_pods.store:
            self._check_mapping(pod)

    def _check_mapping(self, pod: Object) -> None:
        origin = origin_of(pod)
        if origin is None or not is_owned_by_node(pod, self._identity):
            return
        if not self._is_surely_ours(pod, origin):
            return
        stands_for = self._identity.remote_namespace(origin.namespace)
        if stands_for != namespace_of(pod):
            raise NamespaceMappingError(
                f"remote: pods of node {self._identity.node} run in namespace {namespace_of(pod)}, "
                f"but --namespace-template and --home-name now give {stands_for} for home's "
                f"{origin.namespace}; join with those of before, or remove the pods first: "
                f"bridge leave --name {self._identity.node}"
            )

    def _is_surely_ours(self, pod: Object, origin: Origin) -> bool:
        """Whether a bridge made the remote pod: it is in a namespace that this home made, or in
        another one that may be used, with the UID of a pod at home. Anybody can copy labels, and
        must not keep the bridge from starting."""
        namespace = self._remote_namespaces.store.get(Key("", namespace_of(pod)))
        if namespace is None or not self._namespaces.may_use(namespace):
            return False
        if self._owned.owns(namespace):
            return True
        home = self.home_pods.store.get(Key(origin.namespace, origin.name))
        return home is not None and uid_of(home) == origin.uid

    async def watch(self) -> None:
        """Keeps the caches until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers:
                name = f"watch-{informer.client.side}-{informer.resource}"
                group.create_task(informer.run(), name=name)
            group.create_task(self._watches.run(), name="watches")

    async def refresh(self) -> None:
        """Waits until the pods of both sides are known as they were at this call, or later."""
        await asyncio.gather(self.home_pods.refresh(), self.remote_pods.refresh())

    async def work(self) -> None:
        """Writes what is to be written, until cancelled. `watch` must run."""
        await self.synced()
        for controller in self.controllers:
            controller.queue.resume()
        await self._queue_all()
        self.pods.latency.begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.events.run(), name="events")
            group.create_task(self._owned.run(), name="namespace-record")
            relays = [it.controller for it in (self.forward, self.reverse) if it is not None]
            for controller in self.controllers:
                if controller not in relays:
                    group.create_task(controller.run(), name=controller.name)
            group.create_task(self.reverse.run(), name="relay-back-run")
            if self.forward is not None:
                group.create_task(self.forward.run(), name="relay-run")

    async def _queue_all(self) -> None:
        """Queues all that the caches hold, as if it had just come. What comes meanwhile is queued
        by the informers' handlers."""
        await self._seeds.sow()
        for namespace in {HomeNamespace(namespace_of(pod)) for pod in self.home_pods.store}:
            if self._watches.last_synced(namespace) is not None:
                self._namespace_synced(namespace)
            else:
                self.event_mirror.namespace_synced(namespace)
            await asyncio.sleep(0)

    def retry_now(self) -> None:
        """What failed is tried now: something that it may have failed for has changed."""
        for controller in self.controllers:
            controller.queue.retry_now()

    def _in_burst(self) -> bool:
        """Whether several pods are worked at once, or were just now."""
        queue, now = self.pods.controller.queue, time.monotonic()
        if len(queue) + len(queue.working) >= BURST:
            self._burst_ends = now + BURST_SECONDS
        return now < self._burst_ends

    def _connect(self) -> None:
        self.home_pods.on_change(self.pods.home_pod_changed)
        self.home_pods.on_change(self.copies.home_pod_changed)
        self.home_pods.on_change(self.tokens.home_pod_changed)
        self.home_pods.on_change(self.empty_namespaces.home_pod_changed)
        self.remote_pods.on_change(self._namespaces.pod_changed)
        self.remote_pods.on_change(self.pods.remote_pod_changed)
        self.remote_nodes.on_change(self.pods.remote_node_changed)
        self.remote_nodes.on_change(self.capacity.node_changed)
        self.remote_pods.on_change(self.capacity.pod_changed)
        self._foreign_pods.on_change(self.capacity.pod_changed)
        self._remote_namespaces.on_change(self.capacity.namespace_changed)
        self._quotas.on_change(self.capacity.quota_changed)
        self.remote_pods.on_change(self.copies.remote_pod_changed)
        self.remote_pods.on_change(self.tokens.remote_pod_changed)
        self.remote_pods.on_change(self.event_mirror.remote_pod_changed)
        for kind, informer in self._copies.items():
            informer.on_change(functools.partial(self.copies.copy_changed, kind))
            if kind in (SERVICES, ENDPOINT_SLICES):
                informer.on_change(functools.partial(self.reverse.copy_changed, kind))
        self._copies[SECRETS].on_change(self.tokens.secret_changed)
        self.home_pods.on_change(self.reverse.home_pod_changed)
        self.remote_pods.on_change(self.reverse.remote_pod_changed)
        for informer in (self.remote_pods, *self._copies.values()):
            informer.on_change(self.empty_namespaces.owned_changed)
        if self.forward is not None:
            self.home_pods.on_change(self.forward.home_pod_changed)
            self.remote_pods.on_change(self.forward.remote_pod_changed)
            self.remote_pods.on_state(self.forward.remote_state_changed)
            self.forward.slices.on_change(self.forward.slice_changed)
        self._remote_namespaces.on_change(self._namespace_changed)
        relays = [it for it in (self.reverse, self.forward) if it is not None]
        for part in (self.pods, self.copies, self.tokens, *relays, self.event_mirror):
            self._namespace_synced.add(part.namespace_synced)
        for informer in self.informers:
            informer.on_state(self._recovered)

    def _what_is_queued(self) -> Seeds:
        """The handlers that put keys on queues, but for those of the watches. To call one again for
        an object that it knows changes nothing else."""
        seeds = Seeds()
        parts = (self.copies, self.tokens, self.reverse)
        seeds.add(
            self.home_pods, self.pods.home_pod_changed, *(it.home_pod_changed for it in parts)
        )
        seeds.add(self.remote_pods, self.pods.queue_remote_pod, self.reverse.remote_pod_changed)
        seeds.add(self._remote_namespaces, self._namespace_changed)
        for kind, informer in self._copies.items():
            for part in (self.copies, self.reverse):
                seeds.add(informer, functools.partial(part.copy_changed, kind))
        seeds.add(self._copies[SECRETS], self.tokens.secret_changed)
        if self.forward is not None:
            seeds.add(self.forward.slices, self.forward.slice_changed)
        return seeds

    def _scoped(self, kind: Resource, old: Object | None, new: Object | None) -> None:
        self.copies.original_changed(kind, old, new)
        self.tokens.home_changed(kind, old, new)
        if old is None and new is not None and kind in (CONFIG_MAPS, SECRETS):
            namespace = HomeNamespace(namespace_of(new))
            self.pods.reference_appeared(CopyKey(kind, namespace, name_of(new)))
        self.reverse.home_changed(kind, old, new)
        if self.forward is not None:
            self.forward.home_changed(kind, old, new)

    def _namespace_forbidden(self, namespace: HomeNamespace) -> None:
        self.pods.namespace_synced(namespace)

    def _namespace_changed(self, old: Object | None, new: Object | None) -> None:
        """One of ours that is gone, or not ours any more, is made again at once where it is
        needed."""
        old, new = (
            it if it is not None and is_owned(it, self._identity) else None for it in (old, new)
        )
        if old is not None or new is not None:
            self.empty_namespaces.namespace_changed(old, new)
        gone = home_namespace_of(old) if old is not None and new is None else None
        if gone is not None:
            self._namespace_synced(gone)

    def _recovered(self, informer: Informer) -> None:
        if informer.error is None:
            self.retry_now()
