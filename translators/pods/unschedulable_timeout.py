"""The timeout for pods that the remote's scheduler cannot place.

Home's PodScheduled stays True, because home's scheduler bound the pod. The home pod's condition
``cluster-bridge.io/RemoteScheduled`` reports that the remote's scheduler found no node.
``--unschedulable-timeout`` counts from its ``lastTransitionTime``: stored, so that a restart does
not reset it, and by the bridge's clock, so that a wrong clock in the remote cannot fail a pod
early.

Before the remote pod is deleted, the condition's reason becomes ``TimedOut``. Without
it, a remote pod that no longer exists may have run while no bridge did.
"""

from __future__ import annotations

from translators.object_accessors import Object, condition_of, is_deleting
from translators.pods.pod_status import (
    CONDITION_REMOTE_SCHEDULED,
    TIMED_OUT,
    UNSCHEDULABLE,
    is_terminal,
)
from translators.timestamps import parse_time
from translators.translation_options import Policy

#: ``status.reason`` of a home pod that timed out, and the reason of its Event.
REASON_REMOTE_UNSCHEDULABLE = "RemoteUnschedulable"


def is_unschedulable(remote: Object) -> bool:
    """Whether the remote's scheduler has found no node for the pod so far."""
    if not was_never_scheduled(remote) or is_deleting(remote):
        return False
    return _finds_no_node(condition_of(remote, "PodScheduled"))


def was_never_scheduled(remote: Object) -> bool:
    """Whether no kubelet can have seen the pod."""
    return not (remote.get("spec") or {}).get("nodeName") and not is_terminal(remote)


def timeout_remaining(home: Object, policy: Policy, *, now: str) -> float | None:
    """Seconds until the home pod times out, 0 after the timeout; None without a timeout, or if the
    pod is not unschedulable. ``now`` is the time in RFC 3339."""
    condition = condition_of(home, CONDITION_REMOTE_SCHEDULED)
    if policy.unschedulable_timeout is None or not _finds_no_node(condition):
        return None
    since = parse_time(condition.get("lastTransitionTime") or now)
    waited = (parse_time(now) - since).total_seconds()
    return max(0.0, policy.unschedulable_timeout - max(0.0, waited))


def is_timed_out(home: Object, remote: Object | None, policy: Policy, *, now: str) -> bool:
    """Whether the timeout has passed and the remote pod was never scheduled. ``remote`` is the last
    known state of a pod that is being deleted or no longer exists."""
    if remote is None:
        never_placed = condition_of(home, CONDITION_REMOTE_SCHEDULED).get("reason") == TIMED_OUT
    else:
        never_placed = was_never_scheduled(remote)
    return never_placed and timeout_remaining(home, policy, now=now) == 0


def mark_timed_out(status: Object) -> None:
    """Records in a desired status of the home pod that the remote pod is deleted now."""
    status["conditions"] = [
        {**condition, "reason": TIMED_OUT}
        if condition.get("type") == CONDITION_REMOTE_SCHEDULED and _finds_no_node(condition)
        else condition
        for condition in status.get("conditions") or ()
    ]


def timeout_message(home: Object, policy: Policy) -> str:
    """The message for the owner, with the last message of the remote's scheduler."""
    message = condition_of(home, CONDITION_REMOTE_SCHEDULED).get("message") or "no message"
    seconds = policy.unschedulable_timeout
    return f"the remote cluster's scheduler found no node for {seconds:g} s: {message}"


def _finds_no_node(condition: Object) -> bool:
    reason = condition.get("reason")
    return condition.get("status") == "False" and reason in (UNSCHEDULABLE, TIMED_OUT)
