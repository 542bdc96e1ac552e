"""Why a pod waits for a place, in one of few words for metrics; the pod's Event has a sentence."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from translators.placement.decision import Decision

#: undecided: the placer has not decided yet, or could not write its decision; no-candidate: no tier
#: selects home or an existing virtual node; room-unknown: a bridge is about to publish its room;
#: refused: remotes refused pods of the same workload, and no other candidate is left; excluded:
#: no candidate is left by the pod's volumes, refusals and `bridge offload`; no-room: the others.
WaitReason = Literal["undecided", "no-candidate", "room-unknown", "refused", "excluded", "no-room"]
WAIT_REASONS: tuple[WaitReason, ...] = (
    "undecided",
    "no-candidate",
    "room-unknown",
    "refused",
    "excluded",
    "no-room",
)


def wait_reason(
    decision: Decision, *, refused: Container[str], blocked: Container[str]
) -> WaitReason:
    """The reason of a decision without a choice. ``blocked``: the candidates that it could not
    choose whatever their room, ``refused`` among them."""
    verdicts = [it for it in decision.verdicts if it.outcome != "excluded"]
    if not verdicts:
        return "no-candidate"
    if any(it.outcome == "unknown" for it in verdicts):
        return "room-unknown"
    if all(it.candidate in refused for it in verdicts):
        return "refused"
    return "excluded" if all(it.candidate in blocked for it in verdicts) else "no-room"
