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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from sync.base import clock
from sync.base.histograms import Histogram
from sync.base.namespace_fair_cache import FairCache
from sync.cache.informer import Informer
from sync.cache.store import Key, Store
from sync.cache.stub import Stub
from sync.declaration.controller_context import ControllerContext
from sync.declaration.controller_declaration import Declaration, HomeWatch, Watch
from sync.kube.api_resources import CONFIG_MAPS, NODES, SECRETS, Resource
from sync.kube.client import KubeClient
from sync.mirror.copy_controller import CopyController
from sync.pods import action_planner
from sync.pods.action_executor import ActionExecutor
from sync.pods.actions import ConfirmAbsence, PodState, WriteStatus
from sync.pods.last_states import LastStates
from sync.pods.remote_pod_lookup import RemotePodLookup
from sync.pods.service_account_tokens import TokenController
from sync.references.reference_keys import CopyKey
from sync.runtime.controller import Controller, ReconcileBlocked
from sync.runtime.log_fields import changes, key_fields, object_fields
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import (
    HomeNamespace,
    Object,
    is_deleting,
    is_ready,
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
from translators.pods import (
    home_scheduler_filters,
    kubelet_admission,
    pod_status,
    restart_policy_never,
    synthetic_status,
)
from translators.pods.pod_addresses import rejected_addresses
from translators.storage.identifiers import ClaimKey, claim_of_volume

#: Pods reconciled at once: enough to keep the connections of both clients busy.
WORKERS = 64
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
        self._last_remote = LastStates(context.remote.limits)
        # The rejected addresses of each remote pod that were reported, by its UID.
        self._reported_addresses: FairCache[str, list[str]] = FairCache()
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
            self._last_remote.pop(uid_of(obj))
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
            home = self._home_pods.store.get(key)
            if uid_of(home or {}) == origin.uid or not self._home_pods.synced.is_set():
                self._last_remote.put(origin.uid, obj)
            self._executor.forget_deletion(uid_of(obj))
            self._executor.updates.forget(uid_of(obj))
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


class KubeletAdmission:
    """The input of `translators.pods.kubelet_admission`, which decides only about pods that never
    ran: the capacity of the remote's nodes, and the virtual node.

    Reads the cache of remote nodes, and the API server of the home cluster if a new pod does not
    select the cached virtual node.
    """

    def __init__(
        self, home: KubeClient, remote_nodes: Informer, *, elastic: Mapping[str, int]
    ) -> None:
        self._home = home
        self._elastic = elastic
        self._remote_nodes = remote_nodes
        self._remote_capacity: Amounts | None = None
        self.cached_node: Callable[[], Object | None] = lambda: None
        """Returns the cached Node object of the virtual node; None if unknown."""

    def remote_node_changed(self, old: Object | None, new: Object | None) -> None:
        before, after = (
            ((node or {}).get("status") or {}).get("allocatable") for node in (old, new)
        )
        if before != after:
            self._remote_capacity = None

    def remote_capacity(self) -> Amounts:
        """The sum of the allocatable of all remote nodes, and at least what the remote has once its
        autoscaler has added nodes (``--elastic``)."""
        if self._remote_capacity is None:
            total = kubelet_admission.total_allocatable(self._remote_nodes.store)
            if total:  # Without nodes, nothing is rejected.
                total |= {it: max(total.get(it, 0), least) for it, least in self._elastic.items()}
            self._remote_capacity = total
        return self._remote_capacity

    async def virtual_node_for(self, home: Object | None, remote: Object | None) -> Object | None:
        """The virtual node's Node object; None if unknown. If a new pod does not select the cached
        Node, reads it from home's API server: a label may just have been added."""
        node = self.cached_node()
        if home is None or remote is not None or node is None:
            return node
        if restart_policy_never.may_have_started(home) or is_deleting(home):
            return node
        if pod_status.is_terminal(home) or home_scheduler_filters.selects_node(home, node):
            return node
        return await self._home.get(NODES, name_of(node))


#: Seconds for a node to come back and to confirm the deletion, independent of the pod's grace
#: period: DefaultTerminationGracePeriodSeconds in k8s.io/api/core/v1.
UNREACHABLE_SECONDS = 30.0


class _Deletion(NamedTuple):
    """A deletion of a remote pod, as first seen by this process."""

    key: Key
    """The home pod's."""
    node: str
    since: float
    """Monotonic clock."""


class UnreachableNodeDeletions:
    """Decides when a home pod is deleted because its remote node cannot confirm the remote pod's
    deletion.

    A remote pod that is being deleted is re-created in place after its deletion. On a node that is
    not Ready the pod stays Terminating until the kubelet is back, or the Node is deleted. In a
    single cluster the deletionTimestamp lets the pod's controller replace it immediately. So the
    bridge deletes the home pod too, `UNREACHABLE_SECONDS` after it saw the deletion, by the clock
    of this process: the remote's may be wrong. The home pod stays Terminating as long as the remote
    pod exists, so that a StatefulSet never runs two pods of one name.

    ``nodes`` is the cache of remote nodes; None if the bridge may not read them. Then no home pod
    is deleted: the node of a pod that terminates slowly looks like a lost one.
    """

    def __init__(self, nodes: Store | None) -> None:
        self._nodes = nodes
        # By the UID of each remote pod that is being deleted on a node.
        self._deleting: dict[str, _Deletion] = {}

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._deleting.pop(uid_of(old or {}), None)
        elif is_deleting(new) and (node := (new.get("spec") or {}).get("nodeName")):
            origin = origin_of(new)
            if origin is not None and uid_of(new) not in self._deleting:
                key = Key(origin.namespace, origin.name)
                self._deleting[uid_of(new)] = _Deletion(key, node, clock.now())

    def affected(self, old: Object | None, new: Object | None) -> list[Key]:
        """The home pods whose remote pods are being deleted on a node whose readiness changes."""
        if is_ready(old or {}) == is_ready(new or {}):
            return []
        name = name_of(new or old or {})
        return [deletion.key for deletion in self._deleting.values() if deletion.node == name]

    def seconds_left(self, remote: Object) -> float | None:
        """Seconds until the home pod is to be deleted, 0 for now; None while the remote's kubelet
        is expected to confirm the deletion."""
        known = self._deleting.get(uid_of(remote))
        if known is None or self._nodes is None:
            return None
        node = self._nodes.get(Key("", known.node))
        if is_ready(node or {}):
            return None
        wait = UNREACHABLE_SECONDS
        if node is None:
            # Deleted, or no longer selected; such a node may still be running.
            wait = max(wait, float(metadata(remote).get("deletionGracePeriodSeconds") or 0))
        return max(0.0, known.since + wait - clock.now())


#: Histogram bounds in seconds, from the bridge's own overhead to the pull of large images.
START_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class PodLatency:
    """Measures how soon home pods follow the remote.

    - *Status lag*: from the first change of a remote pod that the home pod's status does not show
      yet, to the answer to the status write, including failed attempts.
    - *Start*: from the first sight of a new home pod on the node until its status shows that it
      runs, or ran to completion. Pods that existed before, fail before they run, or are skipped
      (DaemonSets) do not count.

    Nothing is measured before `begin`: a standby sees what the leader does.
    """

    def __init__(self) -> None:
        self.status_lag = Histogram()
        """Status lag, in seconds."""
        self.start = Histogram(START_BOUNDS)
        """Start, in seconds."""
        self._measuring = False
        # Since when a change in the remote waits to be in home's status, by the home pod's key.
        self._pending: dict[Key, float] = {}
        # Since when a home pod waits to start, by its UID.
        self._starting: dict[str, float] = {}

    def begin(self) -> None:
        self._measuring = True

    def remote_changed(self, key: Key) -> None:
        if self._measuring:
            self._pending.setdefault(key, clock.now())

    def take_change(self, key: Key) -> float | None:
        """Removes the pending change of this key and returns its time; None if there is none."""
        return self._pending.pop(key, None)

    def restore_change(self, key: Key, since: float | None) -> None:
        """Puts back a change that was taken and whose status write failed."""
        if since is not None:
            self._pending[key] = since

    def status_written(self, since: float) -> None:
        self.status_lag.observe(clock.now() - since)

    def home_changed(self, old: Object | None, new: Object | None) -> None:
        """Observes when a home pod begins to wait, starts, or is deleted."""
        if new is None:
            if old is not None:
                self._starting.pop(uid_of(old), None)
        elif old is None:
            if self._measuring and pod_status.phase(new) == "Pending":
                self._starting[uid_of(new)] = clock.now()
        elif self._starting and (phase := pod_status.phase(new)) != "Pending":
            since = self._starting.pop(uid_of(new), None)
            ran = phase in ("Running", "Succeeded") and not synthetic_status.is_creation_blocked(
                new
            )
            if since is not None and ran:
                self.start.observe(clock.now() - since)
