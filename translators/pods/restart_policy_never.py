"""Prevents pods with ``restartPolicy: Never`` (of the pod or of a container) from running twice.

The remote pod is created with a scheduling gate, so that no kubelet starts it. When the remote pod
is known to exist, the bridge marks the home pod as possibly started, then removes the gate. This
order holds through every failure:

- The bridge can repeat a creation with an unknown outcome, because it ungates only a pod that it
  has seen, by its UID.
- If the remote pod disappears before the home pod is marked, it has never run, and the bridge
  re-creates it.
- If the remote pod disappears after the mark, it may have run, and the bridge does not re-create
  it.

A gate can only be set at creation and removed at any time (KEP-3521). An API server before 1.27
ignores the gate and creates the pod without it; the mark then follows shortly after the creation.
"""

from __future__ import annotations

from translators.object_accessors import Object
from translators.ownership_labels import DOMAIN

GATE = f"{DOMAIN}/once"

#: The reason of a PodScheduled condition that is False because of gates (PodReasonSchedulingGated
#: in k8s.io/api/core/v1).
_REASON_GATED = "SchedulingGated"


def runs_once(pod: Object) -> bool:
    """Whether the pod must not run twice."""
    return restart_policy(pod.get("spec") or {}) == "Never"


def restart_policy(spec: Object) -> str:
    """The restart policy of the pod as a whole: ``Never`` if any container has it.

    A kubelet starts such a container once in the life of the pod (ShouldContainerBeRestarted in
    pkg/kubelet/container). Init containers do not count, because a kubelet may repeat them.
    """
    containers = spec.get("containers") or ()
    if any(container.get("restartPolicy") == "Never" for container in containers):
        return "Never"
    return str(spec.get("restartPolicy") or "Always")


def add_gate(spec: Object) -> None:
    """Adds the gate to the ``spec`` of a new remote pod that must not run twice."""
    if restart_policy(spec) == "Never":
        spec["schedulingGates"] = [{"name": GATE}]


def is_gated(remote: Object) -> bool:
    """Whether the gate is set, so that the pod has not run."""
    return {"name": GATE} in _gates(remote)


def ungate_patch() -> Object:
    """The strategic merge patch that removes the bridge's gate and no other."""
    return {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}


def is_only_own_gate(condition: Object, remote: Object) -> bool:
    """Whether a PodScheduled condition is False only because of the bridge's gate. It is not
    reported at home."""
    others = any(gate != {"name": GATE} for gate in _gates(remote))
    return condition.get("reason") == _REASON_GATED and not others


def _gates(pod: Object) -> list[Object]:
    return (pod.get("spec") or {}).get("schedulingGates") or []


def started_status(*, now: str) -> Object:
    """The status patch that marks the home pod as possibly started, before the remote pod is
    ungated: ``startTime``, "when the object was acknowledged by the kubelet"
    (k8s.io/api/core/v1)."""
    return {"startTime": now}


def may_have_started(home: Object) -> bool:
    """Whether the pod may have run in the remote."""
    return bool((home.get("status") or {}).get("startTime"))
