"""Computes what is promised to an admitted Workload and not used yet. Pure.

Two ledgers count a Workload that runs on a virtual node: the *room* of the remote's real nodes,
which the bridge publishes, and the virtual node's *allocatable*, from which home's scheduler
subtracts the pods that are bound to the node. A pod leaves the promises when the ledger counts the
pod itself; a completed pod returns to them, because a controller may start the next in its place,
until Kueue reports that it is not needed (`reclaimablePods`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from translators.kueue.workload import PodSet, pod_set_of
from translators.object_accessors import Object

_TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Promises:
    """The pods of one Workload that no ledger counts yet."""

    for_room: tuple[Object, ...]
    """Pods for which the remote's published room does not account."""
    for_node: tuple[Object, ...]
    """Pods that are not bound to the virtual node."""


def promises(
    pod_sets: Iterable[PodSet], bound: Iterable[Object], settled: Iterable[Object]
) -> Promises:
    """The promises to a Workload.

    ``bound`` are its pods that are bound to the virtual node, ``settled`` those of them that the
    published room certainly accounts for.
    """
    in_node, in_room = _counts(bound), _counts(settled)
    room: list[Object] = []
    node: list[Object] = []
    for pod_set in pod_sets:
        room += [pod_set.pod] * max(pod_set.count - in_room[pod_set.name], 0)
        node += [pod_set.pod] * max(pod_set.count - in_node[pod_set.name], 0)
    return Promises(tuple(room), tuple(node))


def has_ended(pod: Object) -> bool:
    """Whether the pod uses no resources any more."""
    return (pod.get("status") or {}).get("phase") in _TERMINAL


def _counts(pods: Iterable[Object]) -> Counter[str]:
    return Counter(pod_set_of(pod) for pod in pods if not has_ended(pod))
