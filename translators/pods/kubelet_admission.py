"""Rejects pods as a kubelet's admission does: pods that exceed the node's resources or select other
nodes.

Home's scheduler never binds such a pod to the virtual node, but a user can set ``nodeName``.
Without the rejection the pod would stay Pending in the remote, or run where it must not. Only
requests that exceed the sum of the remote's nodes, Ready or not, are rejected: other pods may fit
later. The remote's kubelets check the rest (operating system, host ports), except for taints, which
home's taint-eviction-controller handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.object_accessors import Object
from translators.pods import home_scheduler_filters

#: The order in which a kubelet checks resources; others follow.
_FIRST = ("cpu", "memory", "ephemeral-storage")


def total_allocatable(nodes: Iterable[Object]) -> Amounts:
    """The sum of the allocatable resources of all nodes; {} without nodes."""
    total: Amounts = {}
    for node in nodes:
        amounts = pod_requests.parse_resource_list((node.get("status") or {}).get("allocatable"))
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def admission_rejection(
    home: Object, allocatable: Mapping[str, int], node: Object | None = None
) -> tuple[str, str] | None:
    """The kubelet's (reason, message) if the pod requests more than ``allocatable``, or does not
    select ``node``, the virtual node; else None. Messages as in pkg/kubelet/lifecycle/predicate.go.
    Without information about the nodes, nothing is rejected."""
    if insufficient := _insufficient_resource(home, allocatable):
        return insufficient
    if node is None or home_scheduler_filters.selects_node(home, node):
        return None
    return "NodeAffinity", (
        "Pod was rejected: Predicate NodeAffinity failed: "
        "node(s) didn't match Pod's node affinity/selector"
    )


def _insufficient_resource(home: Object, allocatable: Mapping[str, int]) -> tuple[str, str] | None:
    if not allocatable:
        return None
    requested = pod_requests.requests_of(home)
    del requested[pod_requests.PODS]  # The nodes can run at least one pod.
    for resource in sorted(requested, key=lambda it: (it not in _FIRST, it)):
        amount, limit = requested[resource], allocatable.get(resource, 0)
        if amount > limit:
            return f"OutOf{resource}", (
                f"Pod was rejected: Node didn't have enough resource: {resource}, "
                f"requested: {amount}, used: 0, capacity: {limit}"
            )
    return None
