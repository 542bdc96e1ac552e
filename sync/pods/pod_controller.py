"""Reconciles the pods of one virtual node: `sync.pods.action_planner` decides,
`sync.pods.action_executor` acts.

One key, a home pod's namespace and name, stands for the home pod and its remote pod, so that
changes of both are handled together and in order.

A pod that cannot be created has the reason in its status (``status.reason`` is what `kubectl get
pods` shows) and in one Event, and is retried. An unreachable API server is reported by the Node. A
defect of the bridge that concerns a pending pod is reported as `BridgeDefect`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from sync.base import clock
from sync.base.namespace_fair_cache import FairCache
from sync.cache.store import Key
from sync.cache.stub import Stub
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_resources import CONFIG_MAPS, SECRETS, Resource
from sync.mirror.copy_controller import CopyController
from sync.pods import action_planner
from sync.pods.action_executor import ActionExecutor
from sync.pods.actions import ConfirmAbsence, PodState, WriteStatus
from sync.pods.kubelet_admission_input import KubeletAdmission
from sync.pods.remote_pod_lookup import RemotePodLookup
from sync.pods.service_account_tokens import TokenController
from sync.pods.sync_latency import PodLatency
from sync.pods.unreachable_node_deletion import UnreachableNodeDeletions
from sync.references.reference_keys import CopyKey
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import changes, key_fields, object_fields
from translators.object_accessors import (
    HomeNamespace,
    Object,
    metadata,
    name_of,
    namespace_of,
    uid_of,
)
from translators.ownership_labels import (
    has_home_uid,
    is_in_mapped_namespace,
    is_owned,
    is_owned_by_node,
    origin_of,
)
from translators.pods import pod_status, synthetic_status
from translators.pods.pod_addresses import rejected_addresses
from translators.storage.identifiers import ClaimKey, claim_of_volume

#: Pods reconciled at once: enough to keep the connections of both clients busy.
WORKERS = 64
#: Last states of deleted remote pods, kept until their home pod has been reconciled.
LAST_STATES_MAX = 10_000
#: Pods queued or being reconciled that make a burst, and seconds that it outlasts them.
BURST, BURST_SECONDS = 4, 2.0
#: Plans per reconcile: the first may ask for a confirmation (`ConfirmAbsence`), the next ones must
#: not.
PLANS = 3
#: Seconds until a remote pod is read again for which the cache has no room at all.
UNCACHED_SECONDS = 10.0


class PodController:
    """The reconciler of pods. ``copies`` and ``tokens`` write the objects that remote pods need."""

    def __init__(
        self, context: ControllerContext, *, copies: CopyController, tokens: TokenController
    ) -> None:
        self._policy = context.policy
        self._identity = context.identity
        self._home_pods = context.home_pods
        self._remote_pods = context.remote_pods
        self._remote_nodes = context.remote_nodes
        self._storage = context.storage
        self._priority_classes = context.priority_classes
        self._watches = context.watches
        self._remote = context.remote
        self._events = context.events
        self._now = context.now
        self.admission = KubeletAdmission(
            context.home, context.remote_nodes, elastic=context.capacity.elastic
        )
        self.latency = PodLatency()
        """How soon home's status follows the remote."""
        self._lookup = RemotePodLookup(context)
        # By the home pod's UID.
        self._last_remote: FairCache[str, Object] = FairCache(LAST_STATES_MAX)
        # The rejected addresses of each remote pod that were reported, by its UID.
        self._reported_addresses: FairCache[str, list[str]] = FairCache(LAST_STATES_MAX)
        self._evictions = UnreachableNodeDeletions(
            context.remote_nodes.store if self._policy.cluster_reads.nodes else None
        )
        self._burst_ends = 0.0
        self.controller: Controller[Key] = Controller(
            "pods", self._reconcile, workers=WORKERS, on_defect=self._report_defect, kind="Pod"
        )
        self._executor = ActionExecutor(
            context,
            self._lookup,
            copies=copies,
            tokens=tokens,
            priority_classes=self._priority_classes.store,
            queue=self.controller.queue,
            on_created=self._last_remote.pop,
        )

    def declare(self) -> Declaration:
        return Declaration(
            self.controller.name,
            controller=self.controller,
            watches=[
                Watch(self._home_pods, self.home_pod_changed),
                Watch(self._remote_pods, self.remote_pod_changed),
                Watch(self._remote_nodes, self.remote_node_changed, replay=False),
                Watch(self._priority_classes),
                *self._storage_watches(),
            ],
            home_watches=[
                HomeWatch(resource, functools.partial(self.reference_changed, resource))
                for resource in (CONFIG_MAPS, SECRETS)
            ],
            requeue_namespace=self.requeue_namespace,
            requeue_reference=self.requeue_reference,
            namespace_forbidden=self.requeue_namespace,
            start=self.latency.begin,
        )

    def _storage_watches(self) -> list[Watch]:
        storage = self._storage
        if storage is None:
            return []
        return [
            Watch(storage.home_claims, self.home_claim_changed, replay=False),
            Watch(storage.home_volumes, self.home_volume_changed, replay=False),
            Watch(storage.remote_claims, self.remote_claim_changed, replay=False),
        ]

    def remote_pod_of(self, home: Object) -> Object | None:
        """The remote pod of exactly this home pod, by UID; None if there is none."""
        return self._lookup.remote_pod_of(home)

    def in_burst(self) -> bool:
        """Whether a burst of pods is being reconciled, or was `BURST_SECONDS` ago."""
        queue, now = self.controller.queue, clock.now()
        if len(queue) + len(queue.working) >= BURST:
            self._burst_ends = now + BURST_SECONDS
        return now < self._burst_ends

    def home_pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues a home pod. Its namespace is watched from the first pod that may run to the
        deletion of the last pod."""
        obj = new or old or {}
        namespace = HomeNamespace(namespace_of(obj))
        self.latency.home_changed(old, new)
        if new is not None:
            if action_planner.may_run(new, self._policy):
                self._watches.retain(namespace)
        else:
            self._executor.settle_creation(uid_of(obj))
            if not self._home_pods.store.has("namespace", namespace):
                self._watches.release(namespace)
        if new is None or metadata(new).get("deletionGracePeriodSeconds") != 0:
            self._executor.forget_removal(uid_of(obj))
        key = Key(namespace, name_of(obj))
        is_finished = new is None and self._lookup.cached(key) is None
        if not is_finished and not self._executor.is_own_status_write:
            self.controller.queue.add(key)

    def remote_pod_changed(self, old: Object | None, new: Object | None) -> None:
        obj = new or old or {}
        origin = origin_of(obj)
        self._evictions.pod_changed(old, new)
        if origin is None:
            return
        key = Key(origin.namespace, origin.name)
        if not is_owned_by_node(obj, self._identity):
            is_of_home = is_owned(obj, self._identity) and self._home_pods.store.get(key)
            if new is None and is_of_home:
                # The pod of another virtual node of this home freed the name.
                self.controller.queue.add(key)
            return
        if not is_in_mapped_namespace(obj, self._identity):
            return
        if new is None:
            self._last_remote.put(namespace_of(obj), origin.uid, obj)
            self._executor.forget_deletion(uid_of(obj))
        _log_phase(old, new)
        if not self._executor.is_own_create:
            self.latency.remote_changed(key)
            self.controller.queue.add(key)

    def remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the pods that are terminating on a node whose readiness changes."""
        self.admission.remote_node_changed(old, new)
        for key in self._evictions.affected(old, new):
            self.controller.queue.add(key)

    def requeue_namespace(self, namespace: HomeNamespace) -> None:
        """Queues all pods of a namespace whose resources have been listed, or are forbidden."""
        for home in self._home_pods.store.by_index("namespace", namespace):
            self.controller.queue.add(Key(namespace, name_of(home)))

    def requeue_reference(self, key: CopyKey) -> None:
        """Queues all pods that need a home object which was read, or is forbidden."""
        for home in self._home_pods.store.by_index("reference", key):
            self.controller.queue.add(Key(key.namespace, name_of(home)))

    def reference_changed(self, resource: Resource, old: Object | None, new: Object | None) -> None:
        """Queues the pods that may wait for a ConfigMap or Secret that was created at home."""
        if old is not None or new is None:
            return
        reference = CopyKey(resource, HomeNamespace(namespace_of(new)), name_of(new))
        for home in self._home_pods.store.by_index("reference", reference):
            if synthetic_status.is_creation_blocked(home):
                self.controller.queue.add(Key(namespace_of(home), name_of(home)))

    def home_claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the pods that wait for a PVC."""
        claim = new or old or {}
        self._requeue_waiting(ClaimKey(namespace_of(claim), name_of(claim)))

    def home_volume_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the pods that wait for the PVC of a volume."""
        claim = claim_of_volume(new or old or {})
        if claim is not None:
            self._requeue_waiting(claim)

    def remote_claim_changed(self, old: Object | None, new: Object | None) -> None:
        """Queues the pods that wait for a PVC in the remote."""
        origin = origin_of(new or old or {})
        if origin is not None:
            self._requeue_waiting(ClaimKey(origin.namespace, origin.name))

    def _requeue_waiting(self, claim: ClaimKey) -> None:
        for home in self._home_pods.store.by_index("claim", claim):
            if synthetic_status.is_creation_blocked(home):
                self.controller.queue.add(Key(namespace_of(home), name_of(home)))

    async def _reconcile(self, key: Key) -> None:
        since = self.latency.take_change(key)
        try:
            status_written = await self._plan_and_execute(key)
        except BaseException:
            self.latency.restore_change(key, since)
            raise
        if status_written and since is not None:
            self.latency.status_written(since)

    async def _plan_and_execute(self, key: Key) -> bool:
        """Returns whether the plan wrote home's status."""
        absence_confirmed, found = False, None
        for _ in range(PLANS):
            state = await self._state(key, found, absence_confirmed=absence_confirmed)
            actions = action_planner.plan_actions(state, self._policy, now=self._now())
            if actions != [ConfirmAbsence()]:
                if found is not None and self._lookup.cached(key) is None:
                    self.controller.queue.add_after(key, UNCACHED_SECONDS)  # No event will come.
                await self._executor.execute(key, state, actions)
                return any(type(action) is WriteStatus for action in actions)
            found = await self._lookup.read(key)
            absence_confirmed = found is None
        raise ReconcileBlocked(
            "Undecided", f"remote: cannot determine whether the remote pod of {key} exists"
        )

    async def _state(self, key: Key, found: Object | None, *, absence_confirmed: bool) -> PodState:
        """``found`` is the remote pod that was just read, for which the cache may have no room."""
        home = self._home_pods.store.get(key)
        uid = uid_of(home) if home is not None else ""
        remote = self._lookup.cached(key) or found
        if isinstance(remote, Stub):
            remote = found or await self._lookup.read(key)
        if remote is not None and has_home_uid(remote, uid):
            if home is not None and self._executor.is_create_pending(uid):
                await self._executor.check_unconfirmed_create(key, home, remote)
            self._executor.settle_creation(uid)
        node = await self.admission.virtual_node_for(home, remote)
        state = PodState(
            home,
            remote,
            last_remote=self._last_remote.get(uid),
            create_pending=self._executor.is_create_pending(uid),
            absence_confirmed=absence_confirmed,
            is_cache_complete=self._remote_pods.is_complete,
            remote_capacity=self.admission.remote_capacity(),
            node=node,
        )
        if remote is None:
            return state
        if (wait := self._executor.updates.seconds_until_repetition(remote)) is not None:
            self.controller.queue.add_after(key, wait)
        if home is not None and self._policy.network == "flat":
            self._report_addresses(home, remote)
        return replace(
            state,
            rejected_resize=self._executor.updates.rejected_resize(remote),
            eviction_seconds=self._evictions.seconds_left(remote),
            ineffective_updates=self._executor.updates.ineffective(remote),
        )

    def _report_addresses(self, home: Object, remote: Object) -> None:
        """Reports the pod IPs that are not copied to home, once for each pod and change."""
        rejected = rejected_addresses(remote.get("status") or {}, self._policy)
        if not rejected or self._reported_addresses.get(uid_of(remote)) == rejected:
            return
        self._reported_addresses.put(namespace_of(home), uid_of(remote), rejected)
        self._remote.limits.rejected["address"] += 1
        message = (
            f"the remote reports pod IPs that are not copied to home: {', '.join(rejected)}; check "
            "--remote-pod-cidr, whether the clusters' pod CIDRs overlap, and whether the remote's "
            "API server can be trusted"
        )
        self._events.warn(home, "PodIPRejected", message)

    async def _report_defect(self, key: Key, error: Exception) -> None:
        home = self._home_pods.store.get(key)
        phase = ((home or {}).get("status") or {}).get("phase", "Pending")
        if home is not None and phase == "Pending" and self._lookup.cached(key) is None:
            await self._executor.report_defect(key, home, error)


def _log_phase(old: Object | None, new: Object | None) -> None:
    if old is None or new is None or pod_status.phase(old) == pod_status.phase(new):
        return
    origin = origin_of(new)
    name = f"{origin.namespace}/{origin.name}" if origin else name_of(new)
    node = (new.get("spec") or {}).get("nodeName") or "no node yet"
    fields = key_fields("Pod", origin) if origin else object_fields("Pod", new, cluster="remote")
    changes.info("pod %s: %s in the remote (%s)", name, pod_status.phase(new), node, extra=fields)
