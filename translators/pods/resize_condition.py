"""Computes the ``PodResizePending`` condition for a resize that the remote's API server rejects.

Before 1.36, an API server accepts a resize that exceeds the node, and the kubelet reports
``Infeasible`` or ``Deferred`` in this condition, which `translators.pods.pod_status` copies. Since
1.36 the API server rejects the resize, and the bridge sets the condition on the home pod while its
spec requests that resize: ``Deferred`` if a quota was exceeded, else ``Infeasible``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from translators.object_accessors import Object, condition_of

CONDITION = "PodResizePending"


@dataclass(frozen=True, slots=True)
class ResizeRejection:
    """A rejected resize."""

    patch: Object
    """The patch of the remote pod's ``resize`` subresource."""
    message: str
    reason: Literal["Deferred", "Infeasible"]


def classify_resize_rejection(
    patch: Object, message: str, *, server_message: str
) -> ResizeRejection:
    """Classifies a rejection by ``server_message``, the API server's: the admission plugin of
    quotas (plugin/pkg/admission/resourcequota) reports "exceeded quota"."""
    return ResizeRejection(
        patch, message, "Deferred" if "exceeded quota" in server_message else "Infeasible"
    )


def resize_pending_condition(
    home: Object, patch: Object | None, known: ResizeRejection | None, *, now: str
) -> Object | None:
    """The condition of a home pod for which ``patch`` resizes the remote pod; None for no
    condition. Until the outcome of the patch is known, the previous condition is kept."""
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
