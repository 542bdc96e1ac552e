"""Decides which placed pods may return to an earlier tier of their policy. Pure.

A pod returns by its eviction: its controller creates another, which is placed by the tiers again.
So only pods that lose nothing by that may return:

- running and ready for at least `MIN_AGE` seconds, so that a remote that comes and goes moves
  nothing to and fro;
- of a ReplicaSet, ReplicationController or StatefulSet, which replace them, and not of a Job, whose
  work would begin again;
- without PersistentVolumeClaims, whose data stays where it is;
- without the annotation ``cluster-autoscaler.kubernetes.io/safe-to-evict: "false"``, by which their
  owners reject evictions for the sake of capacity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from translators.object_accessors import (
    Object,
    condition_of,
    is_deleting,
    metadata,
    name_of,
    namespace_of,
)
from translators.placement import placed_pod
from translators.placement.decision import HOME, Decision, Room, decide, fingerprint
from translators.placement.placement_policy import PlacementPolicy
from translators.timestamps import parse_time

#: Seconds that a pod must have been ready in its place.
MIN_AGE = 300.0
_REPLACED_BY = ("ReplicaSet", "ReplicationController", "StatefulSet")
#: Sources of volumes that are PersistentVolumeClaims.
_CLAIMS = {"persistentVolumeClaim", "ephemeral"}
_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def first_return(
    pods: Iterable[Object],
    policy: PlacementPolicy,
    room: Room,
    *,
    counts: Mapping[str, int],
    now: datetime,
) -> tuple[Object, Decision] | None:
    """The placed pod that returns next, with the decision among the earlier tiers; None if all
    stay. The last tier is left first, and in a tier the pods go by namespace and name.

    Of pods between which the decision sees no difference, one is decided."""
    if policy.failback_per_minute is None:
        return None
    tiers = {it.name: position for position, it in enumerate(policy.tiers)}
    candidates = []
    for pod in pods:
        record = placed_pod.read_full_record(pod)
        if record is None or record["policy"] != policy.name:
            continue
        present = tiers.get(str(record.get("tier")), 0)
        if present and _may_move(pod, now):
            candidates.append((present, namespace_of(pod), name_of(pod), record["choice"], pod))
    hopeless: set[tuple[int, str]] = set()
    for present, _, _, choice, pod in sorted(candidates, key=lambda it: (-it[0], *it[1:3])):
        free = without_place(pod, choice)
        kind = present, fingerprint(free)
        if kind in hopeless:
            continue
        earlier = replace(policy, tiers=policy.tiers[:present])
        better = decide(free, earlier, room, counts=counts)
        if better.choice is not None:
            return pod, better
        hopeless.add(kind)
    return None


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


def _may_move(pod: Object, now: datetime) -> bool:
    meta, spec, status = metadata(pod), pod.get("spec") or {}, pod.get("status") or {}
    owners = [it for it in meta.get("ownerReferences") or () if it.get("controller")]
    ready = condition_of(pod, "Ready")
    since = ready.get("lastTransitionTime")
    return (
        status.get("phase") == "Running"
        and not is_deleting(pod)
        and spec.get("restartPolicy", "Always") == "Always"
        and bool(owners)
        and owners[0].get("kind") in _REPLACED_BY
        and not any(_CLAIMS & it.keys() for it in spec.get("volumes") or ())
        and (meta.get("annotations") or {}).get(_SAFE_TO_EVICT) != "false"
        and ready.get("status") == "True"
        and isinstance(since, str)
        and (now - parse_time(since)).total_seconds() >= MIN_AGE
    )
