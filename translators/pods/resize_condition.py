"""A resize that the remote's API server refuses, told as a kubelet would: `PodResizePending`.

An API server before 1.36 takes a resize that the node has no room for, and the kubelet says
``Infeasible`` or ``Deferred`` in that condition, which `translators.pods.status` carries. Since 1.36
one refuses it, and the pod there is as it was: then the home pod has the condition from us, for as
long as its spec asks for what was refused. ``Deferred`` is what a quota refuses, which others can
give back; what else is refused is ``Infeasible``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from translators.objects import Object, condition_of

CONDITION = "PodResizePending"


@dataclass(frozen=True, slots=True)
class ResizeRejection:
    """What was refused, and why."""

    patch: Object
    """Of the remote pod's ``resize``."""
    message: str
    reason: Literal["Deferred", "Infeasible"]


def classify_resize_rejection(
    patch: Object, message: str, *, server_message: str
) -> ResizeRejection:
    """``words`` are the API server's own (resource_quota's: plugin/pkg/admission/resourcequota)."""
    return ResizeRejection(
        patch, message, "Deferred" if "exceeded quota" in server_message else "Infeasible"
    )


def resize_pending_condition(
    home: Object, patch: Object | None, known: ResizeRejection | None, *, now: str
) -> Object | None:
    """The condition of a home pod whose remote pod ``patch`` would resize; None for none. Where it
    is not known yet whether that is refused, what was said last stays."""
    if patch is None:
        return None
    before = condition_of(home, CONDITION)
    if known is None or known.patch != patch:
        return before or None
    same = before.get("status") == "True" and before.get("reason") == known.reason
    return {
        "type": CONDITION,
        "status": "True",
        "reason": known.reason,
        "message": known.message,
        "lastTransitionTime": (before.get("lastTransitionTime") if same else None) or now,
    }
