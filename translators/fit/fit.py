"""Decides whether pods fit single nodes of a cluster, given as groups of nodes.

Evaluates what `translators.pods.home_scheduler_filters` does: node selector, required node
affinity, taints and requests. Pod affinity, topology spread and host ports are not evaluated, nor
are node names in an affinity, which groups do not have. Pods are as their scheduler gets them:
`in_remote` is the form of a home pod there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from translators.capacity import pod_requests
from translators.capacity.pod_requests import PODS, Amounts
from translators.field_paths import set_or_remove
from translators.fit.node_groups import NodeGroup, merge_equal
from translators.object_accessors import Object
from translators.pods import home_scheduler_filters, scheduling_fields

#: Distinct reasons of `misfits`.
_MAX_REASONS = 5


def in_remote(pod: Object) -> Object:
    """The home pod with the node selection that it has in the remote, where the labels of home's
    nodes and the taints of virtual nodes do not exist."""
    spec = dict(pod.get("spec") or {})
    selector = scheduling_fields.translate_node_selector(spec.get("nodeSelector"))
    set_or_remove(spec, "nodeSelector", selector)
    nodes = scheduling_fields.translate_node_affinity(
        (spec.get("affinity") or {}).get("nodeAffinity")
    )
    set_or_remove(spec, "affinity", {"nodeAffinity": nodes} if nodes else {})
    set_or_remove(spec, "tolerations", scheduling_fields.own_tolerations(pod))
    return {**pod, "spec": spec}


def misfits(pod: Object, groups: Iterable[NodeGroup]) -> tuple[str, ...]:
    """() if one node of the groups can take the pod; otherwise the reasons, those of the closest
    nodes first: the fewest reasons, then the smallest lack of resources."""
    requests = pod_requests.requests_of(pod)
    found: dict[str, int] = {}
    rank: dict[str, tuple[int, float]] = {}
    for group in groups:
        failures = list(_selection_failures(pod, group))
        lacks = _lacks(requests, group.amounts)
        if not failures and not lacks:
            return ()
        reasons = [*failures, *(_format_lack(it, requests, group) for it in lacks)]
        reason = "; ".join(reasons)
        found[reason] = found.get(reason, 0) + group.count
        lacking = sum(1 - group.amounts.get(it, 0) / requests[it] for it in lacks)
        rank[reason] = min(rank.get(reason, (len(reasons), lacking)), (len(reasons), lacking))
    if not found:
        return ("no schedulable node",)
    ordered = sorted(found, key=lambda it: (rank[it], it))
    return tuple(
        f"{it} ({found[it]} node{'s' if found[it] > 1 else ''})" for it in ordered[:_MAX_REASONS]
    )


def fits(pod: Object, groups: Iterable[NodeGroup]) -> bool:
    """Whether one node of the groups can take the pod."""
    return not misfits(pod, groups)


def pack(pods: Sequence[Object], groups: Sequence[NodeGroup]) -> tuple[int, ...] | None:
    """For each pod the index of the group that takes it, if *all* pods together fit; None if they
    do not. First fit decreasing, elastic groups last: exact for equal pods, and otherwise it may
    miss a packing, but never invents one."""
    room = _Room(groups)
    placed: list[int] = [-1] * len(pods)
    for index in _largest_first(pods, groups):
        group = room.place(pods[index])
        if group is None:
            return None
        placed[index] = group
    return tuple(placed)


def reserve(groups: Sequence[NodeGroup], pods: Sequence[Object]) -> tuple[NodeGroup, ...]:
    """The room that the pods leave when each is placed as in `pack`; a pod that fits no node takes
    none."""
    if not pods:
        return tuple(groups)
    room = _Room(groups)
    for index in _largest_first(pods, groups):
        room.place(pods[index])
    return room.groups()


@dataclass(slots=True)
class _Bin:
    """Equal nodes of one group."""

    group: int
    amounts: Amounts
    count: int


class _Room:
    """Places pods one after the other. Nodes with a pod of this run come first."""

    def __init__(self, groups: Sequence[NodeGroup]) -> None:
        self._groups = groups
        order = sorted(range(len(groups)), key=lambda it: groups[it].elastic)
        self._bins = [_Bin(it, groups[it].amounts, groups[it].count) for it in order]

    def place(self, pod: Object) -> int | None:
        """Subtracts the pod from the first node that takes it, and returns the group's index."""
        requests = pod_requests.requests_of(pod)
        selected: dict[int, bool] = {}
        for position, bin_ in enumerate(self._bins):
            if bin_.count <= 0 or _lacks(requests, bin_.amounts):
                continue
            group = bin_.group
            if group not in selected:
                failure = next(_selection_failures(pod, self._groups[group]), None)
                selected[group] = failure is None
            if not selected[group]:
                continue
            rest = {key: it - requests.get(key, 0) for key, it in bin_.amounts.items()}
            if bin_.count == 1:
                bin_.amounts = rest
            else:
                bin_.count -= 1
                self._bins.insert(position, _Bin(group, rest, 1))
            return group
        return None

    def groups(self) -> tuple[NodeGroup, ...]:
        return merge_equal(
            self._groups[it.group].with_amounts(it.amounts, it.count) for it in self._bins
        )


def _selection_failures(pod: Object, group: NodeGroup) -> Iterator[str]:
    node = {"metadata": {"labels": group.labels}, "spec": {"taints": list(group.taints)}}
    for failure in home_scheduler_filters.label_and_taint_failures(pod, node):
        yield f"{failure.field}: {failure.message}"


def _lacks(requests: Mapping[str, int], free: Mapping[str, int]) -> list[str]:
    return sorted(it for it, amount in requests.items() if amount > free.get(it, 0))


def _format_lack(resource: str, requests: Mapping[str, int], group: NodeGroup) -> str:
    if resource == PODS:
        return "takes no more pods"
    wanted = pod_requests.format_amount(resource, requests[resource])
    free = pod_requests.format_amount(resource, group.amounts.get(resource, 0))
    return f"requests {resource} {wanted}, {free} free"


def _largest_first(pods: Sequence[Object], groups: Sequence[NodeGroup]) -> list[int]:
    """The pods' indexes, by their largest share of the largest node's free amount."""
    largest: Amounts = {}
    for group in groups:
        for resource, amount in group.amounts.items():
            largest[resource] = max(largest.get(resource, 0), amount)

    def size(index: int) -> float:
        requests = pod_requests.requests_of(pods[index])
        return max(amount / max(1, largest.get(it, 0)) for it, amount in requests.items())

    return sorted(range(len(pods)), key=size, reverse=True)
