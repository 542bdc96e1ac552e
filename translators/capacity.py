"""What the virtual node can offer: the sum of the remote's nodes that can take our pods.

A node counts when it is Ready, not cordoned, and has no NoSchedule or NoExecute taint: pods of
ours carry only the tolerations that their owners gave them, so a tainted node is not theirs by
right. Every resource that a node names is summed, GPUs and huge pages included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from translators.quantity import total
from translators.types import Object


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the virtual node's status says, as maps of resource name → quantity."""

    capacity: dict[str, str]
    allocatable: dict[str, str]
    nodes: int
    """How many nodes of the remote were summed."""


def of_nodes(nodes: Iterable[Object]) -> Capacity:
    """The sum over the nodes that count."""
    counted = [node for node in nodes if counts(node)]
    return Capacity(
        capacity=_sum(counted, "capacity"),
        allocatable=_sum(counted, "allocatable"),
        nodes=len(counted),
    )


def counts(node: Object) -> bool:
    """Whether pods of ours can be placed on this node of the remote."""
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return False
    taints = spec.get("taints") or ()
    if any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in taints):
        return False
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _sum(nodes: list[Object], field: str) -> dict[str, str]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for resource, quantity in ((node.get("status") or {}).get(field) or {}).items():
            found[resource].append(str(quantity))
    return {resource: total(quantities) for resource, quantities in sorted(found.items())}
