"""Runs all controllers of one virtual node, from their declarations.

1. `watch`: the informers list and watch. They write nothing, so that a standby replica runs them
too. The queues are paused until `work`.

2. `work`: when every informer has its first full list, with its handlers called (`synced`),
everything in the caches is queued and the controllers start: a decision on a partial cache could
delete running pods. No controller starts if remote pods run in other namespaces than those to which
the mapping leads (`NamespaceMappingError`).

3. Both run until cancelled. Nothing is written on stop, except by relay controllers, which withdraw
their endpoints; workloads continue.

A replica that takes over has caches that lag behind the previous leader's last writes. `refresh`
waits until the pods of both clusters and the remote's namespaces are cached as that leader left
them: from an older state a pod could be created or run a second time, or in a namespace that the
other replica has released and deletes. When an informer works again, all failed keys are retried at
once.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from sync.base import exception_summary
from sync.base.safe_callbacks import Callbacks
from sync.cache.cache_share import NamespaceShares
from sync.cache.informer import Informer
from sync.cache.store import key_of
from sync.cache.store_writer import Handler
from sync.cache.unreadable_informer import UnreadableInformer
from sync.cache.watcher import BATCH
from sync.capacity.remote_capacity import CapacityAggregator
from sync.capacity.unschedulable_pods import UnschedulablePods
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, Watch
from sync.engine.controller_list import Build, ControllerOptions, build_controllers
from sync.engine.shared_informers import SharedInformers, home_references
from sync.kube.client import KubeClient
from sync.namespaces.home_namespace_labels import HomeNamespaceLabels
from sync.namespaces.namespace_ownership import NamespaceOwnership, OwnershipRecord
from sync.namespaces.per_namespace_informers import NamespaceWatches
from sync.namespaces.remote_namespace_creation import NamespaceMapping
from sync.pods.pod_controller import PodController
from sync.references.reference_keys import REFERENCED_RESOURCES
from sync.references.reference_watches import ReferenceWatches
from sync.runtime.controller import Controller
from sync.runtime.event_recorder import EventRecorder
from translators.capacity.node_capacity import NO_LIMITS, OfferLimits
from translators.object_accessors import HomeNamespace, Object, metadata, name_of, namespace_of
from translators.ownership_labels import (
    LABEL_NODE,
    home_namespace_of,
    is_owned,
    namespace_users,
)
from translators.timestamps import format_time
from translators.translation_options import Policy

T = TypeVar("T")


def utc_now() -> str:
    """The time in RFC 3339, in whole seconds as the API keeps it."""
    return _rfc3339(int(time.time()))


@functools.lru_cache(maxsize=1)
def _rfc3339(seconds: int) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))


class Engine:
    """Runs the pods in the remote that home's scheduler has bound to ``policy.identity.node``.

    ``account``: as in `ControllerContext`; None is ``home``.
    ``record``: where home keeps which remote namespaces it created
    (`sync.namespaces.namespace_ownership`). ``limits``: bounds of the virtual node's capacity.
    ``build`` creates the controllers.
    """

    def __init__(
        self,
        home: KubeClient,
        remote: KubeClient,
        *,
        account: KubeClient | None = None,
        policy: Policy,
        record: OwnershipRecord,
        options: ControllerOptions,
        limits: OfferLimits = NO_LIMITS,
        now: Callable[[], str] = utc_now,
        build: Build = build_controllers,
    ) -> None:
        self._identity = policy.identity
        account = account or home
        self.events = EventRecorder(home, reader=account, node=policy.identity.node, now=now)
        shared = SharedInformers(
            home,
            remote,
            policy,
            account=account,
            fast_keepalive=options.listeners is not None,
        )
        self.home_pods = shared.home_pods
        self.remote_pods = shared.remote_pods
        self.remote_nodes = shared.remote_nodes
        self._remote_namespaces, self._storage = shared.remote_namespaces, shared.storage
        self.unschedulable_pods: UnschedulablePods | None = None
        """Whether remote pods wait for a node; None if they may wait for ever."""
        if (timeout := policy.unschedulable_timeout) is not None:
            self.unschedulable_pods = UnschedulablePods(
                shared.remote_pods, policy.identity, timeout=timeout
            )
        self._ownership = NamespaceOwnership(record, shared.remote_namespaces, policy.identity)
        self._namespaces = NamespaceMapping(
            remote,
            shared.remote_namespaces,
            policy.identity,
            self._ownership,
            labels=HomeNamespaceLabels(account),
            level=policy.pod_security,
            prepared=policy.remote_namespaces,
            has_pods=functools.partial(shared.home_pods.store.has, "namespace"),
        )
        self.capacity = CapacityAggregator(
            policy.identity,
            limits,
            accepts=self._namespaces.may_use,
            nodes_unknown_in=() if policy.cluster_reads.nodes else policy.remote_namespaces,
        )
        self._ownership.on_recognized = lambda it: self.capacity.namespace_changed(it, it)
        shares = NamespaceShares(home.limits)
        self._home_watches = NamespaceWatches(account, shares=shares)
        self._references = ReferenceWatches(
            home,
            shared.home_pods,
            functools.partial(home_references, policy),
            shares=shares,
        )
        context = ControllerContext(
            home=home,
            account=account,
            remote=remote,
            policy=policy,
            home_pods=shared.home_pods,
            remote_pods=shared.remote_pods,
            remote_nodes=shared.remote_nodes,
            remote_namespaces=shared.remote_namespaces,
            priority_classes=shared.priority_classes,
            remote_quotas=shared.remote_quotas,
            copies=shared.copies,
            capacity=self.capacity,
            namespaces=self._namespaces,
            watches=self._home_watches,
            references=self._references,
            events=self.events,
            now=now,
            storage=shared.storage,
        )
        self._components = build(context, options)
        self._declarations = [
            *self._shared_declarations(shared),
            *(component.declare() for component in self._components),
        ]
        self._requeue: Callbacks[HomeNamespace] = Callbacks("requeue of a home namespace")
        # The handlers of each informer to which the present objects are passed.
        self._replayed: defaultdict[Informer, list[Handler]] = defaultdict(list)
        for watch in (each for declared in self._declarations for each in declared.watches):
            if watch.replay and watch.handler is not None:
                self._replayed[watch.informer].append(watch.handler)
        self._is_working = False
        watches = (it for declared in self._declarations for it in declared.watches)
        informers = dict.fromkeys(it.informer for it in watches)
        self.informers = [it for it in informers if not isinstance(it, UnreadableInformer)]
        """The informers of whole clusters, or of all prepared namespaces of the remote, which must
        be synced before anything is decided."""
        self._connect()

    def _shared_declarations(self, shared: SharedInformers) -> list[Declaration]:
        capacity, remote_namespaces = self.capacity, shared.remote_namespaces

        async def reevaluate_namespaces() -> None:
            # The ownership record decides which namespaces count.
            for namespace in remote_namespaces.store:
                capacity.namespace_changed(namespace, namespace)

        async def check_mapping() -> None:
            self._namespaces.check_pods(self.remote_pods.store, self.home_pods.store)

        return [
            Declaration("event-recorder", run=self.events.run),
            Declaration("namespace-record", prepare=self._ownership.load, run=self._ownership.run),
            Declaration(
                "references",
                watches=[Watch(self.home_pods, self._references.pod_changed, replay=False)],
                run=self._references.run,
            ),
            Declaration(
                "namespace-mapping",
                watches=[
                    Watch(self.home_pods),
                    Watch(self.remote_pods, self._namespaces.pod_changed, replay=False),
                    Watch(remote_namespaces, self._remote_namespace_changed),
                ],
                prepare=check_mapping,
            ),
            Declaration(
                "capacity",
                watches=[
                    Watch(self.remote_nodes, capacity.node_changed, replay=False),
                    Watch(self.remote_pods, capacity.pod_changed, replay=False),
                    Watch(shared.unmanaged_pods, capacity.pod_changed, replay=False),
                    Watch(remote_namespaces, capacity.namespace_changed, replay=False),
                    Watch(shared.remote_quotas, capacity.quota_changed, replay=False),
                ],
                prepare=reevaluate_namespaces,
            ),
        ]

    @property
    def watches(self) -> list[Informer]:
        """All informers: `informers`, and those of the namespaces and objects that are
        watched now."""
        informers = [
            *self.informers,
            *self._home_watches.informers,
            *self._references.informers,
        ]
        for declared in self._declarations:
            if declared.own_informers is not None:
                informers += declared.own_informers()
        return informers

    @property
    def controllers(self) -> list[Controller[Any]]:
        return [it.controller for it in self._declarations if it.controller is not None]

    @property
    def pods(self) -> PodController:
        return self.find(PodController)

    def other_nodes(self) -> set[str]:
        """The other virtual nodes, as label values, that use namespaces of this home cluster in the
        remote, or have provisioned volumes there."""
        nodes = set[str]()
        for namespace in self._remote_namespaces.store:
            if is_owned(namespace, self._identity):
                nodes |= namespace_users(namespace)
        for claim in self._storage.remote_claims.store if self._storage is not None else ():
            nodes.add(str((metadata(claim).get("labels") or {}).get(LABEL_NODE) or ""))
        return nodes - {"", self._identity.node_label}

    def find(self, kind: type[T]) -> T:
        """The controller of this class. Raises LookupError if there is none."""
        found = self.find_optional(kind)
        if found is None:
            raise LookupError(f"no {kind.__name__} is registered")
        return found

    def find_optional(self, kind: type[T]) -> T | None:
        """The controller of this class; None if there is none."""
        return next((it for it in self._components if isinstance(it, kind)), None)

    # -- connect ---------------------------------------------------------------------------

    def _connect(self) -> None:
        for declared in self._declarations:
            for watch in declared.watches:
                if watch.handler is not None:
                    watch.informer.on_change(watch.handler)
                if watch.on_state is not None:
                    watch.informer.on_state(watch.on_state)
            for home_watch in declared.home_watches:
                by_name = home_watch.resource in REFERENCED_RESOURCES.values()
                watches = self._references if by_name else self._home_watches
                watches.on_change(home_watch.resource, home_watch.handler)
            if declared.requeue_namespace is not None:
                self._requeue.add(declared.requeue_namespace)
            if declared.requeue_reference is not None:
                self._references.on_read(declared.requeue_reference)
            if declared.namespace_forbidden is not None:
                self._home_watches.on_forbidden(declared.namespace_forbidden)
            if declared.run_in_namespace is not None:
                self._home_watches.run_alongside(declared.run_in_namespace)
            if declared.controller is not None:
                declared.controller.queue.pause()
        self._home_watches.on_synced(self._requeue)
        self._home_watches.on_synced(self._references.retry_now)
        for informer in self.informers:
            informer.on_state(lambda it: self.retry_now() if it.error is None else None)

    def _remote_namespace_changed(self, old: Object | None, new: Object | None) -> None:
        """Requeues the home namespace of a remote namespace that was deleted or lost the bridge's
        labels, and all that belongs into a namespace that is handed over (again)."""
        may_use = [state is not None and self._namespaces.may_use(state) for state in (old, new)]
        if new is not None and may_use == [False, True] and self._is_working:
            self._requeue_place(name_of(new))
        still_owned = new is not None and is_owned(new, self._identity)
        if old is not None and is_owned(old, self._identity) and not still_owned:
            home = home_namespace_of(old)
            if home is not None:
                self._requeue(home)

    def _requeue_place(self, place: str) -> None:
        for informer in self.informers:
            if "place" in informer.store.indices:
                for obj in informer.store.by_index("place", place):
                    self._replay_object(informer, obj)
        for namespace in self._home_namespaces():
            if self._identity.remote_namespace(namespace) == place:
                self._requeue(namespace)

    # -- run -------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Runs the informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self.informers:
                name = f"watch-{informer.client.side}-{informer.resource}"
                group.create_task(informer.run(), name=name)
            group.create_task(self._home_watches.run(), name="watch-home-namespaces")

    async def synced(self) -> None:
        """Waits until every informer has its first full list and every declaration is prepared.
        Raises NamespaceMappingError if remote pods run in other namespaces than those to which the
        mapping leads."""
        for informer in self.informers:
            await informer.synced.wait()
        for declared in self._declarations:
            if declared.prepare is not None:
                await declared.prepare()

    async def refresh(self) -> None:
        """Waits until the pods of both clusters, and the remote's namespaces, are cached as they
        were at this call, or later."""
        informers = (self.home_pods, self.remote_pods, self._remote_namespaces)
        await asyncio.gather(*(informer.refresh() for informer in informers))

    async def work(self) -> None:
        """Runs the controllers until cancelled. `watch` must run."""
        await self.synced()
        for controller in self.controllers:
            controller.queue.resume()
        self._is_working = True
        await self._replay()
        for declared in self._declarations:
            if declared.start is not None:
                declared.start()
        async with asyncio.TaskGroup() as group:
            for declared in self._declarations:
                if declared.run is not None:
                    group.create_task(declared.run(), name=declared.name)
                elif declared.controller is not None:
                    group.create_task(declared.controller.run(), name=declared.name)

    async def _replay(self) -> None:
        for informer in self.informers:
            for count, obj in enumerate(list(informer.store), start=1):
                self._replay_object(informer, obj)
                if count % BATCH == 0:
                    await asyncio.sleep(0)
        for namespace in self._home_namespaces():
            if self._home_watches.last_synced(namespace) is not None:
                self._requeue(namespace)
            await asyncio.sleep(0)

    def _replay_object(self, informer: Informer, obj: Object) -> None:
        for handler in self._replayed[informer]:
            with exception_summary.log_defects(f"{informer.resource} {key_of(obj)}"):
                handler(None, obj)

    def _home_namespaces(self) -> set[HomeNamespace]:
        return {HomeNamespace(namespace_of(pod)) for pod in self.home_pods.store}

    def retry_now(self) -> None:
        """Retries every failed key now, because the cause of its failure may be gone."""
        for controller in self.controllers:
            controller.queue.retry_now()
