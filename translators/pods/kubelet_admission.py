"""What a kubelet rejects before it runs a pod: one that asks for more than its node has, or selects
other nodes.

Home's scheduler places no such pod; one that is bound by hand would wait in the remote for ever, or
run where it was not to. The virtual node rejects only what is more than all of the remote's nodes
have together, whether they are Ready or not: what does not fit now may fit later, and a pod that
may yet run is not given up.

What else a kubelet's admission looks at is left to others. The remote's kubelet compares the
operating system, when it gets the pod. Ports of the host conflict only on one node of the remote:
its scheduler looks for another. A NoExecute taint of the virtual node is home's
taint-eviction-controller's, which deletes such a pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.objects import Object
from translators.pods import scheduling_predicates

#: Resources in the order in which a kubelet names the first that lacks; others come after.
_FIRST = ("cpu", "memory", "ephemeral-storage")


def total_allocatable(nodes: Iterable[Object]) -> Amounts:
    """The allocatable resources of all nodes together; {} where there are none."""
    total: Amounts = {}
    for node in nodes:
        found = pod_requests.parse_resource_list((node.get("status") or {}).get("allocatable"))
        for resource, amount in found.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def admission_rejection(
    home: Object, has: Mapping[str, int], node: Object | None = None
) -> tuple[str, str] | None:
    """(reason, message) as a kubelet's where the pod asks for more than ``has``, or does not select
    ``node``, the virtual node; else None.

    The words are those of pkg/kubelet/lifecycle/predicate.go; CPU is counted in thousandths there
    too. Nothing is rejected where nothing is known of the nodes.
    """
    return _too_large(home, has) or (_misplaced(home, node) if node is not None else None)


def _misplaced(home: Object, node: Object) -> tuple[str, str] | None:
    if scheduling_predicates.selects_node(home, node):
        return None
    return "NodeAffinity", (
        "Pod was rejected: Predicate NodeAffinity failed: "
        "node(s) didn't match Pod's node affinity/selector"
    )


def _too_large(home: Object, has: Mapping[str, int]) -> tuple[str, str] | None:
    if not has:
        return None
    asked = pod_requests.requests_of(home)
    del asked[pod_requests.PODS]  # One pod is never more than the nodes have.
    for resource in sorted(asked, key=lambda it: (it not in _FIRST, it)):
        if asked[resource] > has.get(resource, 0):
            return f"OutOf{resource}", (
                f"Pod was rejected: Node didn't have enough resource: {resource}, "
                f"requested: {asked[resource]}, used: 0, capacity: {has.get(resource, 0)}"
            )
    return None
