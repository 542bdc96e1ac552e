"""activeDeadlineSeconds of a pod that waits in the bridge or for a node of the remote.

A kubelet counts from ``startTime``, when it first sees the pod, so that waiting counts too
(pkg/kubelet/active_deadline.go). Here the remote's kubelet does that once it has the pod; before,
the bridge counts from when it first wrote that the pod waits. That time is by the bridge's own
clock, so that a remote whose clock is wrong ends no pod too early.
"""

from __future__ import annotations

from translators.objects import Object, condition_of
from translators.pods.status import CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED
from translators.timestamps import parse_time

#: As the kubelet's.
REASON = "DeadlineExceeded"
MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_remaining(home: Object, *, now: str) -> float | None:
    """How long the pod may wait still: all of its deadline where its status does not show that it
    waits, 0 when the deadline has passed; None where it has none. ``now`` is the time in RFC 3339.
    """
    allowed: int | None = (home.get("spec") or {}).get("activeDeadlineSeconds")
    since = min(filter(None, map(_waiting_since, _conditions(home))), default=None)
    if allowed is None or since is None:
        return allowed
    waited = (parse_time(now) - parse_time(since)).total_seconds()
    return max(0.0, allowed - max(0.0, waited))


def _conditions(home: Object) -> list[Object]:
    return [condition_of(home, kind) for kind in (CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED)]


def _waiting_since(condition: Object) -> str | None:
    """Times of the bridge, which sort as text."""
    waits = condition.get("status") == "False"
    return condition.get("lastTransitionTime") if waits else None
