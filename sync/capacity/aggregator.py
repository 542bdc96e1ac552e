"""What the remote can offer now, kept up to date by the events of its nodes, pods and quotas.

- Fed by informers, whose handlers these are. One event costs what it changed: sums are kept by node
  and by namespace, only nodes that changed are counted anew, and a pod's usage only where something
  changed that it is computed of.
- A pod counts from when it is seen until it is gone or has ended (Succeeded, Failed), on the node
  that it is bound to, even where that node is not known yet. What was counted of a pod is what is
  taken off again, whatever its last event says.
- `on_change` handlers are called when something that is offered may have changed. Events that
  change nothing of it (statuses, heartbeats) call none.

The rules are those of `translators.capacity.node_capacity` and `translators.capacity.resource_quota`.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from sync.base.callbacks import Callbacks
from translators.capacity import node_capacity, pod_requests, resource_quota
from translators.capacity.node_capacity import NodeCapacity, OfferLimits
from translators.capacity.pod_requests import Amounts
from translators.identity import (
    Identity,
    is_in_mapped_namespace,
    is_owned_by_node,
    is_usable_namespace,
)
from translators.objects import Object, metadata, name_of, namespace_of, uid_of
from translators.relay import reverse

K = TypeVar("K")

#: Field selector of the pods that can still use something of a node.
NOT_TERMINAL = "status.phase!=Succeeded,status.phase!=Failed"
#: Different sizes of pods that are kept once only.
_SIZES = 4096


@dataclass(frozen=True, slots=True)
class RemoteCapacity:
    """What there is for the virtual node."""

    capacity: NodeCapacity
    largest: str
    """`translators.capacity.node_capacity.largest`."""
    exhausted: tuple[str, ...] | None
    """The quotas of this home's namespaces that are used up, in words; None where it has none."""


class PodUsage(NamedTuple):
    """What one pod takes, and from what. A tuple, since there may be very many."""

    namespace: str
    node: str
    own: bool
    """Whether the pod is this virtual node's."""
    amounts: tuple[tuple[str, int], ...]


def usage(pod: Object, identity: Identity) -> PodUsage | None:
    """What the remote pod takes; None where it has ended."""
    if _has_ended(pod.get("status") or {}):
        return None
    return PodUsage(
        namespace=sys.intern(namespace_of(pod)),
        node=sys.intern(str((pod.get("spec") or {}).get("nodeName") or "")),
        # A relay pod is no pod that home's scheduler counts, nor is one with copied labels.
        own=is_owned_by_node(pod, identity)
        and is_in_mapped_namespace(pod, identity)
        and reverse.relay_home_namespace(pod) is None,
        amounts=_once(tuple(sorted(pod_requests.requests_of(pod).items()))),
    )


def _takes_alike(old: Object, new: Object) -> bool:
    """Whether a glance shows that `usage` is the same of two states of a pod: the parts that
    it reads are the same objects (`sync.cache.interning`), or say the same."""
    if "usage" in new:
        return old.get("usage") is new["usage"]
    labels = metadata(old).get("labels") is metadata(new).get("labels")
    if not labels or old.get("spec") is not new.get("spec"):
        return False
    before, after = old.get("status") or {}, new.get("status") or {}
    return _has_ended(before) == _has_ended(after) and pod_requests.same_allocated_resources(
        before, after
    )


def _has_ended(status: Object) -> bool:
    return status.get("phase") in ("Succeeded", "Failed")


def slim_pod(pod: Object, identity: Identity) -> Object:
    """What an informer keeps of a pod of others: what it needs itself, and the pod's `usage`."""
    found = usage(pod, identity)
    return {"metadata": {**_identified(pod), "namespace": namespace_of(pod)}, "usage": found}


def slim_namespace(namespace: Object) -> Object:
    """What an informer keeps of a namespace: whose it is, for whom (`identity.is_usable_namespace`), and whether
    it is going."""
    meta = metadata(namespace)
    said = {key: meta[key] for key in ("labels", "annotations", "deletionTimestamp") if key in meta}
    return {"metadata": {**_identified(namespace), **said}}


def _identified(obj: Object) -> Object:
    return {key: metadata(obj)[key] for key in ("name", "uid", "resourceVersion")}


@functools.lru_cache(maxsize=_SIZES)
def _once(amounts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The same object for equal sizes: pods of one template have the same."""
    return amounts


class _Sum:
    """A sum of amounts, of which each can be taken off again; it names what its parts name."""

    __slots__ = ("_named", "amounts")

    def __init__(self) -> None:
        self.amounts: Amounts = {}
        self._named: dict[str, int] = {}

    def add(self, amounts: Mapping[str, int], sign: int = 1) -> None:
        for resource, amount in amounts.items():
            named = self._named.get(resource, 0) + sign
            if named:
                self._named[resource] = named
                self.amounts[resource] = self.amounts.get(resource, 0) + sign * amount
            else:
                del self._named[resource], self.amounts[resource]


class _Size(NamedTuple):
    """A node of the remote, as far as it is counted."""

    counts: bool
    capacity: Amounts
    allocatable: Amounts


class _Counted(NamedTuple):
    """What a node that counts adds to the totals, and what ours leave of it too."""

    has: Amounts
    free: Amounts
    left: Amounts


class CapacityAggregator:
    """The sums, of what the handlers were told. ``accepts`` tells whether this home may use a
    namespace of the remote, by its labels and annotations unless given."""

    def __init__(
        self,
        identity: Identity,
        limits: OfferLimits,
        *,
        accepts: Callable[[Object], bool] | None = None,
    ) -> None:
        self._identity = identity
        self._accepts = accepts or functools.partial(is_usable_namespace, identity=identity)
        self._limits = limits
        self._handlers: Callbacks[[]] = Callbacks("offer of the remote")
        self._nodes: dict[str, _Size] = {}
        # What was counted of each pod, by its UID.
        self._pods: dict[str, PodUsage] = {}
        # Requests by (node, whether ours), and those of others by namespace.
        self._on_node: defaultdict[tuple[str, bool], _Sum] = defaultdict(_Sum)
        self._foreign: defaultdict[str, _Sum] = defaultdict(_Sum)
        # The number of our pods in each namespace that has some.
        self._busy: defaultdict[str, int] = defaultdict(int)
        # Names of the namespaces that this home may use, and the quotas of all, by namespace.
        self._accepted: set[str] = set()
        self._quotas: defaultdict[str, dict[str, Object]] = defaultdict(dict)
        # The nodes that count, as they are in the totals, and those of which that is stale.
        self._counted: dict[str, _Counted] = {}
        self._stale: set[str] = set()
        self._has, self._free = _Sum(), _Sum()

    def on_change(self, handler: Callable[[], None]) -> None:
        """Calls ``handler()`` when `offered` may give something else."""
        self._handlers.add(handler)

    def current(self) -> RemoteCapacity:
        """What there is now."""
        for node in self._stale:
            self._count(node)
        self._stale.clear()
        quotas = {
            namespace: list(several.values())
            for namespace, several in self._quotas.items()
            if namespace in self._accepted
        }
        offered = node_capacity.offered_capacity(
            has=self._has.amounts,
            free=self._free.amounts,
            nodes=len(self._counted),
            limits=self._limits,
            quota=resource_quota.remaining(
                quotas,
                unmanaged={
                    name: self._foreign[name].amounts for name in quotas if name in self._foreign
                },
                namespaces_with_pods=self._busy,
            ),
        )
        used_up = [
            resource_quota.exhausted_keys(it, offered.capacity)
            for several in quotas.values()
            for it in several
        ]
        return RemoteCapacity(
            offered,
            largest=node_capacity.largest_pod(
                (node.left for node in self._counted.values()), offered.allocatable
            ),
            exhausted=tuple(sorted(filter(None, used_up))) if quotas else None,
        )

    # -- what changed ----------------------------------------------------------------------

    def node_changed(self, old: Object | None, new: Object | None) -> None:
        """A node of the remote came, changed or went."""
        name = name_of(new or old or {})
        before = self._nodes.pop(name, None)
        after = _size(new) if new is not None else None
        if after is not None:
            self._nodes[name] = after
        if before != after:
            self._stale.add(name)
            self._tell()

    def pod_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod of the remote came, changed or went: one of ours, or a `slim_pod` of others."""
        if old is not None and new is not None and _takes_alike(old, new):
            return
        uid = uid_of(new or old or {})
        before = self._pods.pop(uid, None)
        after = None
        if new is not None:
            after = new["usage"] if "usage" in new else usage(new, self._identity)
        if after is not None:
            self._pods[uid] = after
        if before != after:
            self._use(before, -1)
            self._use(after, 1)
            self._tell()

    def namespace_changed(self, old: Object | None, new: Object | None) -> None:
        """A namespace of the remote came, changed or went."""
        name = name_of(new or old or {})
        before = name in self._accepted
        if new is not None and self._accepts(new):
            self._accepted.add(name)
        else:
            self._accepted.discard(name)
        if before != (name in self._accepted) and name in self._quotas:
            self._tell()

    def quota_changed(self, old: Object | None, new: Object | None) -> None:
        """A ResourceQuota of the remote came, changed or went."""
        namespace = namespace_of(new or old or {})
        several = self._quotas[namespace]
        if new is not None:
            several[name_of(new)] = new
        else:
            several.pop(name_of(old or {}), None)
        if not several:
            del self._quotas[namespace]
        if namespace in self._accepted:
            self._tell()

    # -- sums ------------------------------------------------------------------------------

    def _tell(self) -> None:
        self._handlers()

    def _use(self, used: PodUsage | None, sign: int) -> None:
        if used is None:
            return
        amounts = dict(used.amounts)
        if used.node:
            _add(self._on_node, (used.node, used.own), amounts, sign)
            self._stale.add(used.node)
        if not used.own:
            _add(self._foreign, used.namespace, amounts, sign)
            return
        self._busy[used.namespace] += sign
        if not self._busy[used.namespace]:
            del self._busy[used.namespace]

    def _requested(self, node: str, *, own: bool) -> Amounts:
        found = self._on_node.get((node, own))
        return found.amounts if found is not None else {}

    def _count(self, name: str) -> None:
        """Puts the node as it is now into the totals, in place of what it was."""
        before = self._counted.pop(name, None)
        if before is not None:
            self._has.add(before.has, -1)
            self._free.add(before.free, -1)
        size = self._nodes.get(name)
        if size is None or not size.counts:
            return
        theirs, ours = (self._requested(name, own=own) for own in (False, True))
        counted = _Counted(
            has=size.capacity,
            free=node_capacity.free_resources(size.allocatable, theirs),
            left=node_capacity.free_resources(size.allocatable, theirs, ours),
        )
        self._counted[name] = counted
        self._has.add(counted.has)
        self._free.add(counted.free)


def _add(sums: defaultdict[K, _Sum], key: K, amounts: Amounts, sign: int) -> None:
    sums[key].add(amounts, sign)
    if not sums[key].amounts:
        del sums[key]


def _size(node: Object) -> _Size:
    status = node.get("status") or {}
    return _Size(
        counts=node_capacity.is_counted(node),
        capacity=pod_requests.parse_resource_list(status.get("capacity")),
        allocatable=pod_requests.parse_resource_list(status.get("allocatable")),
    )
