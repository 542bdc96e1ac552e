"""Aggregates what the remote can provide now, from its nodes, pods and ResourceQuotas.

- The cost of an event depends on its change only: sums are kept by node and by namespace, and a
  pod's usage is computed again only if a field that it depends on changed.
- A pod counts from its first event until it is deleted or terminal, on the node that it is bound
  to, even if that node is not known yet. The amounts that were added for a pod are the ones that
  are subtracted, whatever its last event contains. It counts once while its labels change.
- Where the remote's nodes are unknown, options and the quotas of the prepared namespaces declare
  the capacity (`translators.capacity.declared_capacity`), and unmanaged pods count by namespace.
- `on_change` handlers are called when the result may have changed, but not for other status updates
  and heartbeats.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sync.base.safe_callbacks import Callbacks
from translators.capacity import (
    declared_capacity,
    node_capacity,
    pod_requests,
    resource_quota,
)
from translators.capacity.node_capacity import NodeCapacity, OfferLimits
from translators.capacity.pod_requests import Amounts
from translators.handed_over_namespaces import is_usable_namespace
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.ownership_labels import is_in_mapped_namespace, is_owned_by_node
from translators.pods.pod_status import is_terminal
from translators.relay import reverse_plan
from translators.virtual_node_identity import Identity

K = TypeVar("K")

#: Field selector of pods that still use resources of a node.
NOT_TERMINAL = "status.phase!=Succeeded,status.phase!=Failed"
#: Distinct requests of pods that are interned, and the characters of their resources' names: those
#: of one name of the API are 317 at most, and the remote decides how long and how many they are.
_INTERNED_MAX, _INTERNED_TEXT_MAX = 4096, 317


@dataclass(frozen=True, slots=True)
class RemoteCapacity:
    """The resources that the virtual node offers."""

    capacity: NodeCapacity
    largest: str
    """`translators.capacity.node_capacity.largest_pod`."""
    exhausted: tuple[str, ...] | None
    """A text for each exhausted quota of this home's namespaces; None if they have no quota."""


class PodUsage(NamedTuple):
    """The resources that one pod uses, and where. A tuple saves memory: there may be very many."""

    namespace: str
    node: str
    own: bool
    """Whether the pod belongs to this virtual node."""
    amounts: tuple[tuple[str, int], ...]


def usage(pod: Object, identity: Identity) -> PodUsage | None:
    """The usage of a remote pod; None if the pod is terminal."""
    if is_terminal(pod):
        return None
    return PodUsage(
        namespace=sys.intern(namespace_of(pod)),
        node=sys.intern(str((pod.get("spec") or {}).get("nodeName") or "")),
        # Home's scheduler counts neither a relay agent nor a pod with copied labels.
        own=is_owned_by_node(pod, identity)
        and is_in_mapped_namespace(pod, identity)
        and reverse_plan.relay_home_namespace(pod) is None,
        amounts=_shared(tuple(sorted(pod_requests.requests_of(pod).items()))),
    )


def _shared(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The interned amounts, unless they are too large to be kept after the pod."""
    size = sum(len(resource) for resource, _ in amounts)
    return _interned(amounts) if size <= _INTERNED_TEXT_MAX else amounts


def _is_same_usage(old: Object, new: Object) -> bool:
    """Whether `usage` is certainly the same for two states of a pod."""
    if "usage" in new:
        return old.get("usage") is new["usage"]
    labels = metadata(old).get("labels") is metadata(new).get("labels")
    if not labels or old.get("spec") is not new.get("spec"):
        return False
    before, after = old.get("status") or {}, new.get("status") or {}
    return is_terminal(old) == is_terminal(new) and pod_requests.same_allocated_resources(
        before, after
    )


def slim_pod(pod: Object, identity: Identity) -> Object:
    """Reduces an unmanaged pod to its identity and its `usage`, for the informer's store."""
    meta = {**_identifiers(pod), "namespace": namespace_of(pod)}
    return {"metadata": meta, "usage": usage(pod, identity)}


def slim_namespace(namespace: Object) -> Object:
    """Reduces a namespace to its identity, owner, grants and deletion, for the informer's store."""
    meta = metadata(namespace)
    kept = {key: meta[key] for key in ("labels", "annotations", "deletionTimestamp") if key in meta}
    return {"metadata": {**_identifiers(namespace), **kept}}


def _identifiers(obj: Object) -> Object:
    return {key: metadata(obj)[key] for key in ("name", "uid", "resourceVersion")}


@functools.lru_cache(maxsize=_INTERNED_MAX)
def _interned(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return amounts


class _Sum:
    """A sum of amounts that can be subtracted again. It contains a resource, even with the amount
    0, while one of its summands does."""

    __slots__ = ("_summands", "amounts")

    def __init__(self) -> None:
        self.amounts: Amounts = {}
        self._summands: dict[str, int] = {}

    def add(self, amounts: Mapping[str, int], sign: int = 1) -> None:
        for resource, amount in amounts.items():
            named = self._summands.get(resource, 0) + sign
            if named:
                self._summands[resource] = named
                self.amounts[resource] = self.amounts.get(resource, 0) + sign * amount
            else:
                del self._summands[resource], self.amounts[resource]


class _NodeSize(NamedTuple):
    """The fields of a remote node that are summed."""

    counts: bool
    capacity: Amounts
    allocatable: Amounts


class _Counted(NamedTuple):
    """The amounts of one remote node: its capacity, what unmanaged pods leave of its allocatable
    (both part of the totals), and what all pods leave."""

    has: Amounts
    free: Amounts
    left: Amounts


class _Offer(NamedTuple):
    """The input of `node_capacity.offered_capacity`, and what all pods leave of each node."""

    has: Amounts
    free: Amounts
    left: list[Amounts]
    nodes: int | None


class CapacityAggregator:
    """The sums over all events so far. ``accepts`` returns whether this home may use a remote
    namespace; the default decides by its labels and annotations. ``nodes_unknown_in``: the
    prepared namespaces, if the bridge may not read the remote's nodes."""

    def __init__(
        self,
        identity: Identity,
        limits: OfferLimits,
        *,
        accepts: Callable[[Object], bool] | None = None,
        nodes_unknown_in: Collection[str] = (),
    ) -> None:
        self._identity = identity
        self._nodes_unknown_in = frozenset(nodes_unknown_in)
        self._accepts = accepts or functools.partial(is_usable_namespace, identity=identity)
        self._limits = limits
        self._handlers: Callbacks[[]] = Callbacks("offer of the remote")
        self._nodes: dict[str, _NodeSize] = {}
        # The usage of each pod, by UID: of full pods, and of slim ones, which take precedence.
        self._pods: dict[str, PodUsage] = {}
        self._slim_pods: dict[str, PodUsage] = {}
        # Requests by (node, whether of this virtual node's pods); those of other pods by namespace.
        self._on_node: defaultdict[tuple[str, bool], _Sum] = defaultdict(_Sum)
        self._unmanaged: defaultdict[str, _Sum] = defaultdict(_Sum)
        # The number of this virtual node's pods by namespace.
        self._pod_counts: defaultdict[str, int] = defaultdict(int)
        # The namespaces that this home may use, and all quotas by namespace.
        self._accepted: set[str] = set()
        self._quotas: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        # The counted nodes as they are in the totals, and the nodes to sum again.
        self._counted: dict[str, _Counted] = {}
        self._stale: set[str] = set()
        self._has, self._free = _Sum(), _Sum()
        # Requests of this virtual node's pods, on any node or none.
        self._own = _Sum()

    def on_change(self, handler: Callable[[], None]) -> None:
        """Calls ``handler()`` when the result of `current` may have changed."""
        self._handlers.add(handler)

    def current(self) -> RemoteCapacity:
        quotas = {
            namespace: list(of_namespace.values())
            for namespace, of_namespace in self._quotas.items()
            if namespace in self._accepted
        }
        unmanaged = {it: self._unmanaged[it].amounts for it in quotas if it in self._unmanaged}
        offer = self._declared_offer(quotas) if self._nodes_unknown_in else self._counted_offer()
        offered = node_capacity.offered_capacity(
            has=offer.has,
            free=offer.free,
            nodes=offer.nodes,
            limits=self._limits,
            quota=resource_quota.remaining(
                quotas, unmanaged=unmanaged, namespaces_with_pods=self._pod_counts
            ),
        )
        used_up = [
            resource_quota.exhausted_keys(it, offered.capacity)
            for of_namespace in quotas.values()
            for it in of_namespace
        ]
        exhausted = tuple(sorted(filter(None, used_up))) if quotas else None
        elastic = self._limits.elastic_total
        nodes = [*offer.left, elastic] if elastic else offer.left
        largest = node_capacity.largest_pod(nodes, offered.allocatable)
        return RemoteCapacity(offered, largest, exhausted)

    @property
    def elastic(self) -> Mapping[str, int]:
        """The resources of the remote once its autoscaler has added nodes; {} if it adds none."""
        return self._limits.elastic

    @property
    def is_elastic(self) -> bool:
        """Whether the remote adds nodes for pods that wait."""
        return bool(self._limits.elastic)

    def _counted_offer(self) -> _Offer:
        for node in self._stale:
            self._count(node)
        self._stale.clear()
        left = [node.left for node in self._counted.values()]
        return _Offer(self._has.amounts, self._free.amounts, left, len(self._counted))

    def _declared_offer(self, quotas: Mapping[str, list[Object]]) -> _Offer:
        """The declared capacity, as if one node had all of it: no pod can be larger."""
        prepared = self._nodes_unknown_in
        declared = declared_capacity.declared_capacity(
            self._limits.caps,
            {name: its for name, its in quotas.items() if name in prepared},
            {name: it.amounts for name, it in self._unmanaged.items() if name in prepared},
        )
        left = node_capacity.free_resources(declared.free, self._own.amounts)
        return _Offer(declared.total, declared.free, [left], None)

    # -- handlers ----------------------------------------------------------------------

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        before = self._nodes.pop(name, None)
        after = _size(new) if new is not None else None
        if after is not None:
            self._nodes[name] = after
        if before != after:
            self._stale.add(name)
            self._handlers()

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """Handles a change of a remote pod: a full pod of this home, or a `slim_pod`. A pod whose
        labels change is added as the one and deleted as the other, in any order."""
        if old is not None and new is not None and _is_same_usage(old, new):
            return
        pod = new or old or {}
        uid, is_slim = uid_of(pod), "usage" in pod
        before = self._usage_of(uid)
        of_kind = self._slim_pods if is_slim else self._pods
        of_kind.pop(uid, None)
        if new is not None:
            used = new["usage"] if is_slim else usage(new, self._identity)
            if used is not None:
                of_kind[uid] = used
        after = self._usage_of(uid)
        if before != after:
            self._use(before, -1)
            self._use(after, 1)
            self._handlers()

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        name = name_of(new or old or {})
        before = name in self._accepted
        if new is not None and self._accepts(new):
            self._accepted.add(name)
        else:
            self._accepted.discard(name)
        if before != (name in self._accepted) and name in self._quotas:
            self._handlers()

    def quota_changed(self, old: Object | None, new: Object | None) -> None:
        namespace = namespace_of(new or old or {})
        of_namespace = self._quotas[namespace]
        if new is not None:
            of_namespace[name_of(new)] = new
        else:
            of_namespace.pop(name_of(old or {}), None)
        if not of_namespace:
            del self._quotas[namespace]
        if namespace in self._accepted:
            self._handlers()

    # -- sums ------------------------------------------------------------------------------

    def _usage_of(self, uid: str) -> PodUsage | None:
        return self._slim_pods.get(uid) or self._pods.get(uid)

    def _use(self, used: PodUsage | None, sign: int) -> None:
        if used is None:
            return
        amounts = dict(used.amounts)
        if used.node:
            _add(self._on_node, (used.node, used.own), amounts, sign)
            self._stale.add(used.node)
        if not used.own:
            _add(self._unmanaged, used.namespace, amounts, sign)
            return
        self._own.add(amounts, sign)
        self._pod_counts[used.namespace] += sign
        if not self._pod_counts[used.namespace]:
            del self._pod_counts[used.namespace]

    def _count(self, name: str) -> None:
        """Replaces the node's previous amounts in the totals by its current ones."""
        before = self._counted.pop(name, None)
        if before is not None:
            self._has.add(before.has, -1)
            self._free.add(before.free, -1)
        size = self._nodes.get(name)
        if size is None or not size.counts:
            return
        sums = (self._on_node.get((name, is_own)) for is_own in (False, True))
        others, own = (it.amounts if it is not None else {} for it in sums)
        counted = _Counted(
            has=size.capacity,
            free=node_capacity.free_resources(size.allocatable, others),
            left=node_capacity.free_resources(size.allocatable, others, own),
        )
        self._counted[name] = counted
        self._has.add(counted.has)
        self._free.add(counted.free)


def _add(sums: defaultdict[K, _Sum], key: K, amounts: Amounts, sign: int) -> None:
    sums[key].add(amounts, sign)
    if not sums[key].amounts:
        del sums[key]


def _size(node: Object) -> _NodeSize:
    status = node.get("status") or {}
    return _NodeSize(
        counts=node_capacity.is_counted(node),
        capacity=pod_requests.parse_resource_list(status.get("capacity")),
        allocatable=pod_requests.parse_resource_list(status.get("allocatable")),
    )
