"""Remembers which remotes refused the pods of a workload, so that the next pod goes elsewhere.

A remote refuses a pod if its scheduler finds no node (the condition ``RemoteScheduled``), or if its
bridge fails the pod before any of its containers started. The memory is by the pod's controller
(else the pod itself), lasts for `SECONDS`, and survives a restart of the placer as long as the
refused pods exist. Pods that run elsewhere return to such a remote later, and later after each
further refusal (`failback`), because every attempt costs the workload a running pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from translators.object_accessors import (
    Object,
    condition_of,
    controller_of,
    namespaced_name,
    uid_of,
)
from translators.placement import placed_pod
from translators.placement.decision import HOME
from translators.pods.pod_status import CONDITION_REMOTE_SCHEDULED

#: Seconds for which a refusal is remembered.
SECONDS = 600.0
#: The most seconds after a refusal for which no pod of the workload returns to the remote: at first
#: it is `SECONDS`, and it doubles with each refusal after the memory of the last one.
RETURN_SECONDS = 6 * 3600.0
#: Refusals that are remembered; the oldest is forgotten first.
_MAX = 10_000


def refusal_of(pod: Object) -> tuple[str, str] | None:
    """The virtual node that refused this placed pod, and why; None if none did."""
    record = placed_pod.read_record(pod)
    node = str((pod.get("spec") or {}).get("nodeName") or "")
    if record is None or record[1] == HOME or node != record[1]:
        return None
    status = pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason"):
        started = any(
            (it.get("state") or {}).get("terminated", {}).get("startedAt")
            or (it.get("state") or {}).get("running")
            for it in status.get("containerStatuses") or ()
        )
        return None if started else (node, str(status.get("message") or status["reason"]))
    condition = condition_of(pod, CONDITION_REMOTE_SCHEDULED)
    if (condition.get("status"), condition.get("reason")) == ("False", "Unschedulable"):
        return node, str(condition.get("message") or "its scheduler finds no node")
    return None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The last refusal of a workload by a node, at a time of `monotonic`."""

    at: float
    reason: str
    attempts: int
    """Refusals, without those that the memory of an earlier one could have prevented."""

    @property
    def until(self) -> float:
        return self.at + SECONDS

    @property
    def no_return_until(self) -> float:
        return self.at + min(SECONDS * 2.0 ** min(self.attempts - 1, 30), RETURN_SECONDS)


class Refusals:
    """The memory."""

    def __init__(self) -> None:
        # By workload and node.
        self._found: dict[tuple[str, str], _Refusal] = {}
        self._seen: dict[tuple[str, str], None] = {}

    def pod_changed(self, _: Object | None, new: Object | None) -> bool:
        """Remembers a refusal that the pod reports; returns whether it is new."""
        found = refusal_of(new) if new is not None else None
        if new is None or found is None:
            return False
        node, reason = found
        # Each pod counts once: it may report the same for a long time.
        if (uid_of(new), node) in self._seen:
            return False
        self._seen[uid_of(new), node] = None
        now, key = monotonic(), (_workload(new), node)
        last, attempts = self._found.pop(key, None), 1
        if last is not None and now < last.at + 2 * RETURN_SECONDS:
            attempts = last.attempts + (now >= last.until)
        self._found[key] = _Refusal(now, reason, attempts)
        while len(self._found) > _MAX:
            del self._found[next(iter(self._found))]
        while len(self._seen) > _MAX:
            del self._seen[next(iter(self._seen))]
        return True

    def for_pod(self, pod: Object, nodes: list[str]) -> tuple[dict[str, str], float | None]:
        """The nodes that refused the pod's workload with the reason, and the seconds until the
        first of them is forgotten; None without one."""
        now, workload = monotonic(), _workload(pod)
        known = {it: self._found.get((workload, it)) for it in nodes}
        found = {it: refusal for it, refusal in known.items() if refusal and refusal.until > now}
        reasons = {it: _text(refusal) for it, refusal in found.items()}
        return reasons, min((it.until - now for it in found.values()), default=None)

    def for_return(self, pod: Object, nodes: list[str]) -> dict[str, str]:
        """The nodes to which the pod does not return yet, with the reason."""
        now, workload = monotonic(), _workload(pod)
        known = {it: self._found.get((workload, it)) for it in nodes}
        return {
            it: _text(last) for it, last in known.items() if last and last.no_return_until > now
        }


def _text(refusal: _Refusal) -> str:
    return f"refused a pod of the same workload: {refusal.reason}"


def _workload(pod: Object) -> str:
    owner = controller_of(pod)
    return str(owner.get("uid")) if owner else namespaced_name(pod)
