"""Decides which remote holds all pods of a Workload. Pure.

A remote can hold a Workload if home's scheduler would bind each pod to the virtual node, the node
offers enough for all of them beside what home's other pods and earlier promises use, and all pods
*together* fit the free room of the remote's real nodes, again beside earlier promises. Of several,
the cheapest is chosen (`cluster-bridge.io/cost`), and among these the one with the least free CPU,
so that larger remotes stay free for larger Workloads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.fit.fit import in_remote, misfits, pack
from translators.fit.node_groups import NodeGroup
from translators.fit.published_room import NOTICED_MINUTES
from translators.kueue.workload import PodSet
from translators.object_accessors import Object, metadata, name_of
from translators.ownership_labels import LABEL_COST
from translators.pods.home_scheduler_filters import predicate_failures

NO_ROOM = (
    f"publishes no free room yet: wait up to {NOTICED_MINUTES} minutes after Kueue's installation, "
    "or join with --publish-room on"
)


@dataclass(frozen=True, slots=True)
class Remote:
    """One virtual node and what is known about its remote."""

    node: Object
    groups: tuple[NodeGroup, ...] | None
    """The free room of the real nodes without promises; None if the bridge publishes no room."""
    promised: int = 0
    """How many pods the promises are for."""
    requested: Amounts | None = None
    """The requests of home's pods on the virtual node and of promised ones."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One remote's answer; ``reason`` is "" if it can hold the Workload."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen virtual node, if any, and the verdict of each."""

    node: Object | None
    verdicts: tuple[Verdict, ...]

    @property
    def message(self) -> str:
        """One sentence for the status of the Workload."""
        if self.node is not None:
            return f"all pods fit {name_of(self.node)}"
        if not self.verdicts:
            return "home has no virtual node"
        reasons = "; ".join(f"{it.node}: {it.reason}" for it in self.verdicts)
        return f"no remote can hold all pods: {reasons}"


def choose(pod_sets: Sequence[PodSet], remotes: Iterable[Remote]) -> Choice:
    """The remote for a Workload."""
    verdicts, fitting = [], []
    for remote in sorted(remotes, key=lambda it: name_of(it.node)):
        reason = refusal(pod_sets, remote)
        verdicts.append(Verdict(name_of(remote.node), reason))
        if not reason:
            fitting.append(remote)
    best = min(fitting, key=_rank, default=None)
    return Choice(best.node if best else None, tuple(verdicts))


def refusal(pod_sets: Sequence[PodSet], remote: Remote) -> str:
    """Why the remote cannot hold all pods; "" if it can."""
    needed = [it for it in pod_sets if it.count]
    for pod_set in needed:
        if failure := _home_failure(pod_set, remote.node):
            return failure
    if remote.groups is None:
        return NO_ROOM
    return _offer_failure(needed, remote) or _room_failure(needed, remote, remote.groups)


def _home_failure(pod_set: PodSet, node: Object) -> str:
    """Why home's scheduler would not bind one pod to the node. Gates are removed before."""
    for failure in predicate_failures(pod_set.pod, node):
        if not failure.field.startswith("spec.schedulingGates"):
            return f"pod set {pod_set.name}: {failure.field}: {failure.message}"
    return ""


def _offer_failure(pod_sets: Iterable[PodSet], remote: Remote) -> str:
    total: Amounts = {}
    for pod_set in pod_sets:
        for resource, amount in pod_requests.requests_of(pod_set.pod).items():
            total[resource] = total.get(resource, 0) + amount * pod_set.count
    status = remote.node.get("status") or {}
    allocatable = pod_requests.parse_resource_list(status.get("allocatable"))
    for resource, amount in sorted(total.items()):
        free = allocatable.get(resource, 0) - (remote.requested or {}).get(resource, 0)
        if amount > free:
            wanted, left, of = (
                pod_requests.format_amount(resource, it)
                for it in (amount, max(free, 0), allocatable.get(resource, 0))
            )
            return f"requests {wanted} of {resource}; the node has {left} left of {of}"
    return ""


def _room_failure(pod_sets: Iterable[PodSet], remote: Remote, groups: tuple[NodeGroup, ...]) -> str:
    pods = [pod for it in pod_sets for pod in [in_remote(it.pod)] * it.count]
    if pack(pods, groups) is not None:
        return ""
    promised = f", beside {remote.promised} promised pods" if remote.promised else ""
    for pod_set in pod_sets:
        if reasons := misfits(in_remote(pod_set.pod), groups):
            return (
                f"pod set {pod_set.name}: no node of the remote takes a pod{promised}: {reasons[0]}"
            )
    return f"its nodes have no room for all {len(pods)} pods together{promised}"


def _rank(remote: Remote) -> tuple[float, int, str]:
    free = sum(group.free.get(pod_requests.CPU, 0) * group.count for group in remote.groups or ())
    return _cost(remote.node), free, name_of(remote.node)


def _cost(node: Object) -> float:
    """The node's cost label; a node without a usable one is the most expensive."""
    try:
        cost = float((metadata(node).get("labels") or {}).get(LABEL_COST, "inf"))
    except ValueError:
        return math.inf
    return math.inf if math.isnan(cost) else cost
