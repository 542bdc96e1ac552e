"""Decides where a pod may run: its policy's tiers in order, and in a tier the best candidate.

Each candidate gets a verdict with a reason, whether it is chosen or not. A virtual node is possible
if home's scheduler would bind the pod to it, and if one of the remote's real nodes can take the pod
(`translators.fit`). Home is possible if one of home's own nodes can take the pod.

A virtual node whose room is expected within seconds is unknown: unless another candidate of its
tier is possible, the pod waits for that room and does not go to a later tier.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from translators.capacity import pod_requests
from translators.capacity.pod_requests import Amounts
from translators.fit.fit import in_remote, misfits
from translators.fit.node_groups import NodeGroup
from translators.label_selectors import selects
from translators.object_accessors import Object, condition_of, metadata, name_of
from translators.ownership_labels import LABEL_COST, LABEL_VIRTUAL
from translators.placement.placement_policy import PlacementPolicy, Tier
from translators.pods import home_scheduler_filters

#: The name of home as a candidate; no Node can have it.
HOME = "(home)"
TOLERATION: Object = {"key": LABEL_VIRTUAL, "operator": "Exists"}
#: The cost of a node without the label, or with one that is no number.
NO_COST = 0.0
NOT_PUBLISHED = "its bridge publishes no room (bridge join --publish-room)"
NOT_PUBLISHED_YET = "its bridge has not published the remote's room yet, which takes seconds"

#: chosen; possible: the pod could run there, and another candidate is better; impossible: now, for
#: the reason; unknown: its bridge is about to publish the remote's room; excluded: no tier selects
#: the candidate.
Outcome = Literal["chosen", "possible", "impossible", "unknown", "excluded"]


@dataclass(frozen=True, slots=True)
class Remote:
    """A virtual node, as far as the decision depends on it."""

    node: Object
    free: Amounts
    """The part of the Node's allocatable that the pods at home leave, by resource."""
    groups: tuple[NodeGroup, ...] | None = None
    """The remote's room, less what pods need that are on their way there; None if it is not
    published."""
    is_awaited: bool = False
    """Whether the room is not published yet and will be within seconds."""


@dataclass(frozen=True, slots=True)
class Room:
    """The state of both sides by which pods are placed."""

    remotes: Sequence[Remote]
    home: tuple[NodeGroup, ...]
    """Home's own nodes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The finding about one candidate."""

    candidate: str
    """The virtual node, or `HOME`."""
    outcome: Outcome
    reason: str
    tier: str = ""
    """The tier of the policy that selects the candidate."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for one pod, with the verdict for each candidate."""

    policy: str
    choice: str | None
    """The virtual node, `HOME`, or None if the pod has to wait."""
    tier: str
    """The tier of the choice."""
    verdicts: tuple[Verdict, ...] = field(default_factory=tuple)

    @property
    def summary(self) -> str:
        """Why the pod is where it is, or why it waits, in one line."""
        return "; ".join(
            f"{it.candidate}: {it.reason}" for it in self.verdicts if it.outcome != "excluded"
        )


def decide(
    pod: Object,
    policy: PlacementPolicy,
    room: Room,
    *,
    counts: Mapping[str, int],
    blocked: Mapping[str, str] | None = None,
) -> Decision:
    """The decision for a pod. ``counts``: the policy's pods by candidate; ``blocked``: candidates
    that cannot take the pod for a reason of their own, such as an earlier refusal."""
    pod, blocked = as_placed(pod), blocked or {}
    verdicts: dict[str, Verdict] = {}
    choice: str | None = None
    # The first tier that has a candidate, or may have one.
    first_tier = ""
    for tier in policy.tiers:
        ranked: list[tuple[tuple[float, ...], str, str]] = []
        unknown = False
        for candidate, labels in _candidates(tier, room):
            if candidate in verdicts:
                continue
            failure = blocked.get(candidate) or _limit(tier, candidate, counts)
            failure = failure or _failure(pod, policy, candidate, room)
            if failure:
                verdicts[candidate] = Verdict(candidate, "impossible", failure, tier.name)
            elif policy.require_fit and _is_awaited(candidate, room):
                verdicts[candidate] = Verdict(candidate, "unknown", NOT_PUBLISHED_YET, tier.name)
                unknown = True
            else:
                rank, reason = _rank(tier, candidate, labels, counts)
                ranked.append((rank, candidate, reason))
        ranked.sort()
        for position, (_, candidate, fits) in enumerate(ranked):
            outcome: Outcome = "possible" if first_tier or position else "chosen"
            reason = f"tier {first_tier} comes first" if first_tier else fits
            verdicts[candidate] = Verdict(candidate, outcome, reason, tier.name)
        if not first_tier and (ranked or unknown):
            first_tier = tier.name
            choice = ranked[0][1] if ranked else None
    for candidate in (HOME, *(name_of(it.node) for it in room.remotes)):
        if candidate not in verdicts:
            reason = f"no tier of policy {policy.name} selects it"
            verdicts[candidate] = Verdict(candidate, "excluded", reason)
    tier_name = first_tier if choice is not None else ""
    return Decision(policy.name, choice, tier_name, tuple(verdicts.values()))


def as_placed(pod: Object) -> Object:
    """The pod without gates and with the toleration of virtual nodes, as home's scheduler sees it
    once it is placed."""
    spec = dict(pod.get("spec") or {})
    spec.pop("schedulingGates", None)
    spec["tolerations"] = [*(spec.get("tolerations") or ()), TOLERATION]
    return {**pod, "spec": spec}


def fingerprint(pod: Object) -> str:
    """Equal for pods between which `decide` sees no difference except by ``blocked``."""
    spec = pod.get("spec") or {}
    nodes = (spec.get("affinity") or {}).get("nodeAffinity")
    parts = (
        sorted(pod_requests.requests_of(pod).items()),
        spec.get("nodeSelector"),
        spec.get("tolerations"),
        nodes,
    )
    return json.dumps(parts, sort_keys=True)


def cost_of(labels: Mapping[str, str]) -> float:
    """The cost of a virtual node by its label."""
    try:
        cost = float(labels.get(LABEL_COST, ""))
    except ValueError:
        return NO_COST
    return cost if abs(cost) < 1e18 else NO_COST  # Also not a number.


def _candidates(tier: Tier, room: Room) -> Iterable[tuple[str, Mapping[str, str]]]:
    if tier.home:
        yield HOME, {}
        return
    for remote in room.remotes:
        labels = metadata(remote.node).get("labels") or {}
        if selects(tier.remotes, labels):
            yield name_of(remote.node), labels


def _limit(tier: Tier, candidate: str, counts: Mapping[str, int]) -> str:
    """The policy's own limit that the candidate has reached; "" if there is none."""
    count = counts.get(candidate, 0)
    if tier.weights.get(candidate) == 0:
        return f"its weight in tier {tier.name} is 0"
    if tier.max_pods is not None and count >= tier.max_pods:
        return f"has {count} pods of the policy, at most {tier.max_pods} (maxPods)"
    if tier.max_share is not None:
        total = sum(counts.values()) + 1
        if count >= max(1, total * tier.max_share // 100):
            return (
                f"has {count} of {total} pods of the policy, at most {tier.max_share}% (maxShare)"
            )
    return ""


def _failure(pod: Object, policy: PlacementPolicy, candidate: str, room: Room) -> str:
    """Why the pod cannot run there; "" if it can."""
    if candidate == HOME:
        return _first(misfits(pod, room.home), "no node of home fits")
    remote = next(it for it in room.remotes if name_of(it.node) == candidate)
    ready = condition_of(remote.node, "Ready")
    if ready.get("status") != "True":
        return f"the node is not Ready: {ready.get('reason') or 'no bridge serves it'}"
    failures = home_scheduler_filters.label_and_taint_failures(pod, remote.node)
    if failures:
        return f"{failures[0].field}: {failures[0].message}"
    for resource, amount in sorted(pod_requests.requests_of(pod).items()):
        free = remote.free.get(resource, 0)
        if amount > free:
            wanted, left = (
                pod_requests.format_amount(resource, it) for it in (amount, max(0, free))
            )
            return f"requests {resource} {wanted}; the virtual node has {left} left"
    if not policy.require_fit:
        return ""
    if remote.groups is None:
        return "" if remote.is_awaited else NOT_PUBLISHED
    return _first(misfits(in_remote(pod), remote.groups), "no node of the remote fits")


def _is_awaited(candidate: str, room: Room) -> bool:
    return any(
        it.is_awaited and it.groups is None for it in room.remotes if name_of(it.node) == candidate
    )


def _first(reasons: Sequence[str], text: str) -> str:
    return f"{text}: {reasons[0]}" if reasons else ""


def _rank(
    tier: Tier, candidate: str, labels: Mapping[str, str], counts: Mapping[str, int]
) -> tuple[tuple[float, ...], str]:
    """The sort key of a possible candidate, the best first, and its reason."""
    if candidate == HOME:
        return (0.0,), f"a node of home fits (tier {tier.name})"
    cost, weight = cost_of(labels), tier.weights.get(candidate, 1)
    load = (counts.get(candidate, 0) + 1) / weight
    if tier.spread:
        order = "lowest share by weight"
        return (load, cost), f"fits (tier {tier.name}, {order}, weight {weight})"
    shares = load if tier.weights else 0.0
    return (cost, shares), f"fits (tier {tier.name}, cost {cost:g})"
