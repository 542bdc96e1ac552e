"""``activeDeadlineSeconds`` of a pod that has not reached a kubelet.

A kubelet counts from ``startTime``, when it first sees the pod, so the deadline includes waiting
(pkg/kubelet/active_deadline.go). The remote's kubelet enforces the deadline once it has the pod.
Before that, the bridge counts from when it first reported that the pod waits, by its own clock: a
wrong clock in the remote cannot end a pod early.
"""

from __future__ import annotations

from translators.objects import Object, condition_of
from translators.pods.pod_status import CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED
from translators.timestamps import parse_time

#: Reason and message of the kubelet.
REASON = "DeadlineExceeded"
MESSAGE = "Pod was active on the node longer than the specified deadline"


def deadline_remaining(home: Object, *, now: str) -> float | None:
    """Seconds until the deadline of the home pod: all of it unless the status reports that the pod
    waits, 0 after the deadline, None without one. ``now`` is the time in RFC 3339."""
    deadline: int | None = (home.get("spec") or {}).get("activeDeadlineSeconds")
    since = min(filter(None, map(_waiting_since, _conditions(home))), default=None)
    if deadline is None or since is None:
        return deadline
    waited = (parse_time(now) - parse_time(since)).total_seconds()
    return max(0.0, deadline - max(0.0, waited))


def _conditions(home: Object) -> list[Object]:
    return [condition_of(home, kind) for kind in (CONDITION_ACCEPTED, CONDITION_REMOTE_SCHEDULED)]


def _waiting_since(condition: Object) -> str | None:
    """The transition time of a False condition. Both times are from the bridge's clock and sort as
    text."""
    is_waiting = condition.get("status") == "False"
    return condition.get("lastTransitionTime") if is_waiting else None
