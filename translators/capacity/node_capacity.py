"""Computes the capacity of the virtual node from the free resources of the remote's nodes.

A node is counted if it is Ready, not cordoned, and has no NoSchedule or NoExecute taint: pods of
the bridge have only their own tolerations. Taints that Kubernetes sets itself (not-ready,
memory-pressure, …) count like any other; they disappear with their cause. Virtual nodes are never
counted: two clusters that have joined each other would add each other's capacity endlessly.

All resources of a node are offered, including GPUs and huge pages, in these steps:

1. The requests of unmanaged pods are subtracted from their node (`free_resources`), never below
   zero, so that an overcommitted node does not reduce others. Pods of this virtual node are not
   subtracted; home's scheduler does that.
2. The sum over the counted nodes, minus ``--reserve``, which the remote keeps.
3. Multiplied by ``--share``, rounded down.
4. At least ``--elastic``: what the remote has once its autoscaler has added nodes.
5. At most ``--limits``, and at most what quotas leave (`translators.capacity.resource_quota`).
   These limits come last, so that they apply to the final amount.

The result is the Node's ``status.allocatable``. Its ``status.capacity`` is the total capacity of
the counted nodes, and at least ``--elastic``.

Where the bridge may not read the remote's nodes, options and quotas declare what step 1 sums up.

If a node is no longer counted (cordoned, for example), home's scheduler still subtracts the
bridge's pods on it: until they end, the virtual node offers too little rather than too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from translators.capacity import pod_requests
from translators.capacity.pod_requests import CPU, MEMORY, PODS, Amounts
from translators.object_accessors import Object, is_ready, metadata
from translators.ownership_labels import LABEL_VIRTUAL

#: Reason of the virtual node's Ready condition if no node of the remote is counted, though some are
#: Ready: all are cordoned or tainted, and pods on them keep running.
NO_SCHEDULABLE_NODES = "NoSchedulableNodes"
#: Resources that are listed first.
_FIRST = (CPU, MEMORY, PODS)
#: Pods of an elastic node, unless the options name another number: the default of kubelets
#: (maxPods in k8s.io/kubelet/config/v1beta1).
ELASTIC_NODE_PODS = 110
#: Units to which `largest_pod` rounds down: 0.1 CPU, 128 MiB.
_COARSE = {CPU: 100, MEMORY: 2**27}


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """The part of the remote that the virtual node offers (options of the join)."""

    reserve: Mapping[str, int] = field(default_factory=dict)
    share: Fraction = Fraction(1)
    caps: Mapping[str, int] = field(default_factory=dict)
    elastic: Mapping[str, int] = field(default_factory=dict)
    """The resources that are offered even if the present nodes have less, or none of them."""

    @property
    def elastic_total(self) -> Amounts:
        """``elastic``, with pods: a node without a place for pods is none. One node may have all of
        it; {} without elastic nodes."""
        return {PODS: ELASTIC_NODE_PODS, **self.elastic} if self.elastic else {}


#: Offers all free resources.
NO_LIMITS = OfferLimits()


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Resources of the virtual node's status, as maps of resource name to quantity."""

    capacity: dict[str, str]
    allocatable: dict[str, str]
    nodes: int | None
    """The number of counted nodes; None if the remote's nodes are unknown."""


def is_counted(node: Object) -> bool:
    """Whether the bridge's pods can be scheduled to this node of the remote."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return False
    taints = spec.get("taints") or ()
    if any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in taints):
        return False
    if LABEL_VIRTUAL in (metadata(node).get("labels") or {}):
        return False
    return is_ready(node)


def free_resources(allocatable: Mapping[str, int], *used: Mapping[str, int]) -> Amounts:
    """The unused resources of a node."""
    return {
        resource: max(0, amount - sum(it.get(resource, 0) for it in used))
        for resource, amount in allocatable.items()
    }


def offered_capacity(
    *,
    has: Mapping[str, int],
    free: Mapping[str, int],
    nodes: int | None,
    limits: OfferLimits,
    quota: Mapping[str, int],
) -> NodeCapacity:
    """The capacity of the virtual node, from sums over the counted nodes: ``has``, their capacity,
    and ``free``. ``quota`` limits the resources that quotas limit."""
    allocatable = {
        resource: floor(max(0, amount - limits.reserve.get(resource, 0)) * limits.share)
        for resource, amount in free.items()
    }
    elastic = limits.elastic_total
    allocatable = _at_least(allocatable, elastic)
    return NodeCapacity(
        capacity=_format_amounts(_at_least(has, elastic)),
        allocatable=_format_amounts(_at_most(_at_most(allocatable, limits.caps), quota)),
        nodes=nodes,
    )


def largest_pod(nodes: Iterable[Mapping[str, int]], offer: Mapping[str, str]) -> str:
    """The size of the largest pod that could run: ``cpu=1500m,memory=3Gi``.

    The free CPU and memory of the node with the most free CPU (then memory) that can take another
    pod, limited by ``offer``, the allocatable resources of the virtual node. Rounded down coarsely,
    so that it changes rarely. Without such a node: ``cpu=0,memory=0``.
    """
    candidates = (node for node in nodes if node.get(PODS, 0) > 0)
    best = max(candidates, key=lambda it: (it.get(CPU, 0), it.get(MEMORY, 0)), default={})
    sizes = _at_most(best, pod_requests.parse_resource_list(offer))
    return ",".join(
        f"{resource}={pod_requests.format_amount(resource, sizes.get(resource, 0) // step * step)}"
        for resource, step in _COARSE.items()
    )


def resource_sort_key(resource: str) -> tuple[int, str]:
    """Sorts CPU, memory and pods first, then by name."""
    return _FIRST.index(resource) if resource in _FIRST else len(_FIRST), resource


def _at_most(amounts: Mapping[str, int], bounds: Mapping[str, int]) -> Amounts:
    return {
        resource: min(amount, bounds.get(resource, amount)) for resource, amount in amounts.items()
    }


def _at_least(amounts: Mapping[str, int], bounds: Mapping[str, int]) -> Amounts:
    least = {it: max(amounts.get(it, 0), bound) for it, bound in bounds.items()}
    return {**amounts, **least}


def _format_amounts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {
        resource: pod_requests.format_amount(resource, amount)
        for resource, amount in sorted(amounts.items())
    }
