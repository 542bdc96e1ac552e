"""Computes the rest of ``activeDeadlineSeconds`` for a pod that has not reached a kubelet.

A kubelet counts from ``startTime``, when it first sees the pod, so the deadline includes waiting
(pkg/kubelet/active_deadline.go). The remote's kubelet enforces the deadline once it has the pod.
Before that, the bridge counts from when it first reported that the pod waits, by its own clock: a
wrong clock in the remote cannot end a pod early.
"""

from __future__ import annotations

from translators.object_accessors import Object, condition_of
from translators.pods.pod_status import CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED
from translators.timestamps import parse_time

#: Reason and message of the kubelet.
REASON = "DeadlineExceeded"
MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_remaining(home: Object, *, now: str) -> float | None:
    """Seconds until the deadline of the home pod: all of it unless the status reports that the pod
    waits, 0 after the deadline, None without one. ``now`` is the time in RFC 3339."""
    deadline: int | None = (home.get("spec") or {}).get("activeDeadlineSeconds")
    # The pod has waited since one of these became False. The times are from the bridge's clock, and
    # sort as text.
    conditions = (condition_of(home, it) for it in (CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED))
    times = (it.get("lastTransitionTime") for it in conditions if it.get("status") == "False")
    since = min(filter(None, times), default=None)
    if deadline is None or since is None:
        return deadline
    waited = (parse_time(now) - parse_time(since)).total_seconds()
    return max(0.0, deadline - max(0.0, waited))
