"""Selects the pods of a node that a drain evicts, by the filters of `kubectl drain`. Pure.

DaemonSet pods and mirror pods stay on the node. Pods without a controller require ``force``, pods
with emptyDir volumes ``delete_emptydir_data``. Finished pods require neither.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from bridge.base.command_error import PreflightError
from bridge.base.printable_text import summarize_names
from translators.object_accessors import (
    Object,
    controller_of,
    is_daemonset_pod,
    metadata,
    namespaced_name,
    uid_of,
)

#: The annotation of a mirror pod (a kubelet's static pod), which no API call can delete.
MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class DrainOptions:
    """The options of `kubectl drain` that select pods, with the same names and meanings."""

    force: bool = False
    """Also evict pods that no controller re-creates."""
    delete_emptydir_data: bool = False
    """Also evict pods with emptyDir volumes; their data is lost."""
    ignore_daemonsets: bool = True
    """Leave DaemonSet pods on the node instead of refusing to drain."""
    grace_period: int | None = None
    """Termination grace period in seconds; None for each pod's own."""


#: Evicts every pod: `bridge leave` has the user confirm the removal of all pods beforehand.
EVICT_ALL = DrainOptions(force=True, delete_emptydir_data=True)


@dataclass(slots=True)
class DrainPlan:
    """The pods of a node, by what a drain does with them."""

    evict: list[Object] = field(default_factory=list)
    skipped: list[Object] = field(default_factory=list)
    """DaemonSet pods and mirror pods, which stay."""
    blocking: dict[str, list[Object]] = field(default_factory=dict)
    """Pods that prevent the drain, by the reason, which names the option that allows it."""

    def check_unblocked(self, node: str) -> None:
        """Raises PreflightError if any pod prevents the drain."""
        reasons = [
            f"{reason}: {summarize_names(map(namespaced_name, pods))}"
            for reason, pods in self.blocking.items()
        ]
        if reasons:
            raise PreflightError(
                f"home: node {node} cannot be drained, and no pod was evicted: {'; '.join(reasons)}"
            )


def plan_drain(
    pods: list[Object], options: DrainOptions, *, orphans: Collection[str] = ()
) -> DrainPlan:
    """Applies the filters. ``orphans`` are the UIDs of pods whose DaemonSet no longer exists."""
    plan = DrainPlan()
    for pod in pods:
        if is_daemonset_pod(pod) and not _is_finished(pod) and uid_of(pod) not in orphans:
            if options.ignore_daemonsets:
                plan.skipped.append(pod)
            else:
                reason = "DaemonSets re-create these pods (--ignore-daemonsets leaves them)"
                plan.blocking.setdefault(reason, []).append(pod)
        elif MIRROR in (metadata(pod).get("annotations") or {}):
            plan.skipped.append(pod)
        elif reasons := _blocking_reasons(pod, options, uid_of(pod) in orphans):
            for reason in reasons:
                plan.blocking.setdefault(reason, []).append(pod)
        else:
            plan.evict.append(pod)
    return plan


def _blocking_reasons(pod: Object, options: DrainOptions, is_orphan: bool) -> list[str]:
    """Why the pod prevents the drain; empty if it may be evicted."""
    if _is_finished(pod):
        return []
    reasons = []
    if is_orphan and not options.force:
        reasons.append("the DaemonSet of these pods no longer exists (--force evicts them)")
    if controller_of(pod) is None and not options.force:
        reasons.append("no controller re-creates these pods (--force evicts them)")
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    if any("emptyDir" in it for it in volumes) and not options.delete_emptydir_data:
        reasons.append(
            "these pods have emptyDir volumes, whose data would be lost (--delete-emptydir-data "
            "evicts them)"
        )
    return reasons


def _is_finished(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
