"""A pod that the remote's scheduler cannot place: since when, and for how long it is waited for.

Home's PodScheduled says that home's scheduler bound it, and stays True. That the remote's finds no
node is the condition `CONDITION_REMOTE_SCHEDULED` at home, in the words of the remote's scheduler.
Its ``lastTransitionTime`` is when the bridge told it first; `Policy.unschedulable_timeout` counts
from then. It is written down, so that a restart does not begin anew; and it is of the clock that it
is compared with, so that a remote whose clock is wrong has no pod given up too early.
"""

from __future__ import annotations

from translators.objects import Object, condition_of, is_deleting
from translators.pods.status import CONDITION_REMOTE_SCHEDULED, is_terminal
from translators.timestamps import parse_time
from translators.translation_policy import Policy

#: ``status.reason`` of a home pod that was given up, and the Event's.
REASON_REMOTE_UNSCHEDULABLE = "RemoteUnschedulable"
#: The reason of PodScheduled where the scheduler looked and found no node (PodReasonUnschedulable
#: in k8s.io/api/core/v1). Others, such as SchedulingGated, are no verdict on the remote's nodes.
_UNSCHEDULABLE = "Unschedulable"


def is_unschedulable(remote: Object) -> bool:
    """Whether the remote's scheduler has found no node for the pod so far."""
    if not was_never_scheduled(remote) or is_deleting(remote):
        return False
    return _finds_no_node(condition_of(remote, "PodScheduled"))


def was_never_scheduled(remote: Object) -> bool:
    """Whether no kubelet can have known of the pod."""
    return not (remote.get("spec") or {}).get("nodeName") and not is_terminal(remote)


def timeout_remaining(home: Object, policy: Policy, *, now: str) -> float | None:
    """How long the home pod is to be waited for still, 0 when that is over; None where it is
    waited for without end, or does not wait. ``now`` is the time in RFC 3339."""
    condition = condition_of(home, CONDITION_REMOTE_SCHEDULED)
    if policy.unschedulable_timeout is None or not _finds_no_node(condition):
        return None
    since = parse_time(condition.get("lastTransitionTime") or now)
    waited = (parse_time(now) - since).total_seconds()
    return max(0.0, policy.unschedulable_timeout - max(0.0, waited))


def is_timed_out(home: Object, remote: Object | None, policy: Policy, *, now: str) -> bool:
    """Whether the time is over for a remote pod that goes, or is gone, without having been placed.
    ``remote`` is its last known state; None where nothing of it is known."""
    never_placed = remote is None or was_never_scheduled(remote)
    return never_placed and timeout_remaining(home, policy, now=now) == 0


def timeout_message(home: Object, policy: Policy) -> str:
    """One sentence for people, with the last words of the remote's scheduler."""
    said = condition_of(home, CONDITION_REMOTE_SCHEDULED).get("message") or "it did not say why"
    seconds = policy.unschedulable_timeout
    return f"the remote cluster's scheduler found no node for {seconds:g} s: {said}"


def _finds_no_node(condition: Object) -> bool:
    return (condition.get("status"), condition.get("reason")) == ("False", _UNSCHEDULABLE)
