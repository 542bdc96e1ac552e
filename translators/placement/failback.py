"""Decides which placed pods may return to an earlier tier of their policy. Pure.

A pod returns by its eviction: its controller creates another, which is placed by the tiers again.
So only pods that lose nothing by that may return:

- running and ready for at least ``readyFor`` of the policy, to a virtual node that has been Ready
  for as long, so that a remote that comes and goes moves nothing to and fro;
- of a ReplicaSet, ReplicationController or StatefulSet, which replace them, and not of a Job, whose
  work would begin again;
- without PersistentVolumeClaims, whose data stays where it is;
- without the annotation ``cluster-autoscaler.kubernetes.io/safe-to-evict: "false"``, by which their
  owners reject evictions for the sake of capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from translators.capacity import pod_requests
from translators.fit.fit import in_remote, reserve
from translators.object_accessors import (
    Object,
    condition_of,
    controller_of,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
)
from translators.placement import placed_pod
from translators.placement.decision import HOME, Room, decide, fingerprint
from translators.placement.placement_policy import PlacementPolicy
from translators.timestamps import parse_time

_REPLACED_BY = ("ReplicaSet", "ReplicationController", "StatefulSet")
#: Sources of volumes that are PersistentVolumeClaims.
_CLAIMS = {"persistentVolumeClaim", "ephemeral"}
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@dataclass(frozen=True, slots=True)
class PossibleReturn:
    """A placed pod for which an earlier tier has room."""

    pod: Object
    successor: Object
    """The pod as its controller creates it again: without its place."""
    choice: str
    """The better place."""
    tier: str


def possible_returns(
    pods: Iterable[Object],
    policy: PlacementPolicy,
    room: Room,
    *,
    counts: Mapping[str, int],
    now: datetime,
    refused: Callable[[Object], Mapping[str, str]],
) -> Iterator[PossibleReturn]:
    """Each placed pod that may return if no other one does. The last tier comes first, and in a
    tier the pods go by namespace and name. ``refused``: the candidates to which a pod must not
    return, with the reason.

    Of pods between which the decision sees no difference, one is decided if they have to stay."""
    if policy.failback_per_minute is None:
        return
    tiers = {it.name: position for position, it in enumerate(policy.tiers)}
    candidates = []
    for pod in pods:
        record = placed_pod.read_full_record(pod)
        if record is None or record["policy"] != policy.name:
            continue
        present = tiers.get(str(record.get("tier")), 0)
        if present and _may_move(pod, policy.failback_ready_for, now):
            candidates.append((present, namespace_of(pod), name_of(pod), record["choice"], pod))
    unsteady = _not_ready_for_long(room, policy.failback_ready_for, now)
    hopeless: set[tuple[int, str, frozenset[str]]] = set()
    for present, _, _, choice, pod in sorted(candidates, key=lambda it: (-it[0], *it[1:3])):
        blocked = {**unsteady, **refused(pod)}
        free = without_place(pod, choice)
        kind = present, fingerprint(free), frozenset(blocked)
        if kind in hopeless:
            continue
        earlier = replace(policy, tiers=policy.tiers[:present])
        better = decide(free, earlier, room, counts=counts, blocked=blocked)
        if better.choice is not None:
            yield PossibleReturn(pod, free, better.choice, better.tier)
        else:
            hopeless.add(kind)


def with_pod(room: Room, pod: Object, choice: str) -> Room:
    """The room that is left once the pod without a place is there."""
    if choice == HOME:
        return replace(room, home=reserve(room.home, [pod]))
    requests = pod_requests.requests_of(pod)
    remotes = [
        replace(
            it,
            free={key: amount - requests.get(key, 0) for key, amount in it.free.items()},
            groups=None if it.groups is None else reserve(it.groups, [in_remote(pod)]),
        )
        if name_of(it.node) == choice
        else it
        for it in room.remotes
    ]
    return replace(room, remotes=remotes)


def without_place(pod: Object, choice: str) -> Object:
    """The pod without what `placed_pod.placed` has added for this choice."""
    spec = dict(pod.get("spec") or {})
    spec.pop("nodeName", None)
    selector = dict(spec.get("nodeSelector") or {})
    if selector.get(placed_pod.HOSTNAME) == choice:
        del selector[placed_pod.HOSTNAME]
    spec["nodeSelector"] = selector
    if choice == HOME:
        spec["affinity"] = placed_pod.widened(spec.get("affinity") or {})
    return {**pod, "spec": spec}


def is_replaced(pod: Object) -> bool:
    """Whether a controller creates another pod after the deletion of this one, without a count of
    failures as in a Job."""
    return (controller_of(pod) or {}).get("kind") in _REPLACED_BY


def _may_move(pod: Object, ready_for: float, now: datetime) -> bool:
    meta, spec, status = metadata(pod), pod.get("spec") or {}, pod.get("status") or {}
    return (
        status.get("phase") == "Running"
        and not is_deleting(pod)
        and spec.get("restartPolicy", "Always") == "Always"
        and is_replaced(pod)
        and not any(_CLAIMS & it.keys() for it in spec.get("volumes") or ())
        and (meta.get("annotations") or {}).get(_SAFE_TO_EVICT) != "false"
        and _is_ready_for(pod, ready_for, now)
    )


def _not_ready_for_long(room: Room, ready_for: float, now: datetime) -> dict[str, str]:
    """The virtual nodes that have not been Ready for so many seconds, with that as the reason."""
    return {
        name_of(it.node): f"has not been Ready for {ready_for:g} s"
        for it in room.remotes
        if not _is_ready_for(it.node, ready_for, now)
    }


def _is_ready_for(obj: Object, seconds: float, now: datetime) -> bool:
    ready = condition_of(obj, "Ready")
    since = ready.get("lastTransitionTime")
    return (
        ready.get("status") == "True"
        and isinstance(since, str)
        and (now - parse_time(since)).total_seconds() >= seconds
    )
