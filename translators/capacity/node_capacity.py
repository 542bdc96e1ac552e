"""What the virtual node offers: what is free on the remote's nodes that can take our pods.

A node counts when it is Ready, not cordoned, and has no NoSchedule or NoExecute taint: pods of
ours carry only the tolerations that their owners gave them, so a tainted node is not theirs by
right. Taints that Kubernetes sets itself (not-ready, memory-pressure, …) count like any other: they
go with their cause. A node that is itself a virtual one never counts: two clusters that have joined
each other would add up each other's sums for ever.

Every resource that a node names is offered, GPUs and huge pages included. The steps, in this order:

1. What others request on a node is taken from that node (`free`), never below zero, so that a node
   with more requests than it can hold takes nothing from its neighbours. Pods of this virtual node
   are not taken off: home's scheduler subtracts what it has placed.
2. The sum over the nodes that count, less ``Limits.reserve``, the amount that the remote keeps.
3. Times ``Limits.share``: a part of what remains, rounded down.
4. At most ``Limits.caps``, and at most what quotas leave (`translators.capacity.resource_quota`): bounds come last,
   so that they mean what they say.

``capacity`` is the sum of what the nodes that count have, whatever of it is offered.

Pods of ours on a node that counts no more (a cordoned one) are still subtracted by home's
scheduler: until they have left it, the virtual node offers too little rather than too much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from translators.capacity import pod_requests
from translators.capacity.pod_requests import CPU, MEMORY, PODS, Amounts
from translators.identity import LABEL_VIRTUAL
from translators.objects import Object, is_ready, metadata

#: The reason of a virtual node's Ready condition while no node of the remote counts, though some
#: are Ready: all are cordoned or tainted, and pods there run on.
NO_SCHEDULABLE_NODES = "NoSchedulableNodes"
#: Resources in the order in which people read them; others come after.
_FIRST = (CPU, MEMORY, PODS)
#: What `largest` is rounded down to: a tenth of a CPU, 128 MiB.
_COARSE = {CPU: 100, MEMORY: 2**27}


@dataclass(frozen=True, slots=True)
class OfferLimits:
    """How much of the remote a person lets the virtual node offer."""

    reserve: Mapping[str, int] = field(default_factory=dict)
    share: Fraction = Fraction(1)
    caps: Mapping[str, int] = field(default_factory=dict)


#: All that is free.
NO_LIMITS = OfferLimits()


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What the virtual node's status says, as maps of resource name → quantity."""

    capacity: dict[str, str]
    allocatable: dict[str, str]
    nodes: int
    """How many nodes of the remote were summed."""


def is_counted(node: Object) -> bool:
    """Whether pods of ours can be placed on this node of the remote."""
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
    """What is left of a node, by the resources that it has."""
    return {
        resource: max(0, amount - sum(it.get(resource, 0) for it in used))
        for resource, amount in allocatable.items()
    }


def offered_capacity(
    *,
    has: Mapping[str, int],
    free: Mapping[str, int],
    nodes: int,
    limits: OfferLimits,
    quota: Mapping[str, int],
) -> NodeCapacity:
    """From the sums over the nodes that count (``has``: their capacity) to what the Node says.

    ``quota``: what quotas leave of the resources that they bound.
    """
    allocatable = {
        resource: floor(max(0, amount - limits.reserve.get(resource, 0)) * limits.share)
        for resource, amount in free.items()
    }
    return NodeCapacity(
        capacity=_printed(has),
        allocatable=_printed(_at_most(_at_most(allocatable, limits.caps), quota)),
        nodes=nodes,
    )


def largest_pod(nodes: Iterable[Mapping[str, int]], offer: Mapping[str, str]) -> str:
    """The size of the largest pod that could run: ``cpu=1500m,memory=3Gi``.

    It is what is free on one node, the one with the most free CPU (of several, the most memory) of
    those that can take another pod. ``nodes`` are what is free on each, after all pods, ours too;
    ``offer``, the allocatable of the virtual node, is the most that a pod can have of it. Rounded
    down coarsely, so that it says the same for longer. Without such a node: ``cpu=0,memory=0``.
    """
    able = (node for node in nodes if node.get(PODS, 0) > 0)
    best = max(able, key=lambda it: (it.get(CPU, 0), it.get(MEMORY, 0)), default={})
    sizes = _at_most(best, pod_requests.parse_resource_list(offer))
    return ",".join(
        f"{resource}={pod_requests.format_amount(resource, sizes.get(resource, 0) // step * step)}"
        for resource, step in _COARSE.items()
    )


def resource_sort_key(resource: str) -> tuple[int, str]:
    """Sorts resources as people read them: CPU, memory, pods, and the others by name."""
    return _FIRST.index(resource) if resource in _FIRST else len(_FIRST), resource


def _at_most(amounts: Mapping[str, int], bounds: Mapping[str, int]) -> Amounts:
    return {
        resource: min(amount, bounds.get(resource, amount)) for resource, amount in amounts.items()
    }


def _printed(amounts: Mapping[str, int]) -> dict[str, str]:
    return {
        resource: pod_requests.format_amount(resource, amount)
        for resource, amount in sorted(amounts.items())
    }
