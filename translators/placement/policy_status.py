"""The status of a PlacementPolicy, for kstatus (sigs.k8s.io/cli-utils), and with it for GitOps.

- ``Ready`` is True while the placer decides by the policy and a tier has a candidate.
- ``Stalled`` is only present while the spec is invalid, which only a person can change.
- ``placedPods`` and ``waitingPods`` count the policy's pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from translators.object_accessors import Object, condition_of, metadata

#: Reasons of the conditions.
ACTIVE, NO_CANDIDATE, INVALID = "Active", "NoCandidate", "InvalidSpec"
#: The fields that change with every pod.
COUNTS = ("placedPods", "waitingPods")
#: Longest message of a condition, in characters.
_MAX_MESSAGE = 1024
#: Tiers that a message names.
_MAX_TIERS = 5


@dataclass(frozen=True, slots=True)
class PolicyState:
    """The placer's knowledge of a policy."""

    problem: str = ""
    """The problem of its spec; "" if it is valid."""
    tiers: int = 0
    """The number of its tiers."""
    without_candidate: Sequence[str] = ()
    """The tiers that select neither home nor an existing virtual node."""
    placed: int = 0
    waiting: int = 0


def policy_status(policy: Object, state: PolicyState, now: str) -> Object:
    """The status; times of conditions that keep their value are kept. ``now`` is RFC 3339."""
    generation = metadata(policy).get("generation") or 0
    ready, reason, message = _ready(state)
    conditions = [("Ready", ready, reason, message)]
    if state.problem:
        conditions.append(("Stalled", "True", reason, message))
    return {
        "observedGeneration": generation,
        "placedPods": state.placed,
        "waitingPods": state.waiting,
        "conditions": [
            {
                "type": kind,
                "status": value,
                "observedGeneration": generation,
                "reason": its_reason,
                "message": its_message[:_MAX_MESSAGE],
                "lastTransitionTime": _since(policy, kind, value, now),
            }
            for kind, value, its_reason, its_message in conditions
        ],
    }


def _ready(state: PolicyState) -> tuple[str, str, str]:
    if state.problem:
        message = f"{state.problem}; correct it: until then, the policy is for no pod"
        return "False", INVALID, message
    missing = ", ".join(state.without_candidate[:_MAX_TIERS])
    if len(state.without_candidate) > _MAX_TIERS:
        missing += f" and {len(state.without_candidate) - _MAX_TIERS} more"
    if len(state.without_candidate) == state.tiers:
        message = (
            f"no virtual node has the labels of a tier ({missing}): pods wait; join a remote with "
            "bridge join --labels, or correct spec.tiers[].remotes"
        )
        return "False", NO_CANDIDATE, message
    if missing:
        return (
            "True",
            ACTIVE,
            f"the placer places pods; no virtual node has the labels of {missing}",
        )
    return "True", ACTIVE, "the placer places pods"


def _since(policy: Object, kind: str, value: str, now: str) -> str:
    before = condition_of(policy, kind)
    since = before.get("lastTransitionTime") if before.get("status") == value else None
    return str(since or now)
