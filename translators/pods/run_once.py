"""Pods that must not run twice (``restartPolicy: Never``, of the pod or of one of its containers):
held in the remote until home says that they may have run.

The remote pod is made with a scheduling gate, so that no kubelet has it. Once it is known to be
there, home's pod gets a mark, and then the gate goes. So, whatever breaks in between:

- a pod whose making has an unknown outcome can be made again: only one that is there, by its UID,
  is ever let go;
- a pod that is gone before its home pod was marked has never run, and is made again;
- one that is gone after that may have run, and is not.

A gate can be set only when a pod is made, and removed at any time (KEP-3521). A remote that does
not know gates (before 1.27) makes the pod without one, and the mark comes a moment too late.
"""

from __future__ import annotations

from translators.identity import DOMAIN
from translators.objects import Object

GATE = f"{DOMAIN}/once"

#: The reason of a PodScheduled that is False for gates (PodReasonSchedulingGated in
#: k8s.io/api/core/v1): its API server says so of a new pod, its scheduler when they are gone.
_REASON_GATED = "SchedulingGated"


def runs_once(pod: Object) -> bool:
    """Whether the pod must not run twice."""
    return restart_policy(pod.get("spec") or {}) == "Never"


def restart_policy(spec: Object) -> str:
    """The restartPolicy that counts for the pod as a whole: "Never" as soon as one container has
    it. A kubelet starts that container once in the life of the pod (ShouldContainerBeRestarted in
    pkg/kubelet/container), and a pod is created again only as a whole. Init containers do not
    count: a kubelet may run them again."""
    containers = spec.get("containers") or ()
    if any(container.get("restartPolicy") == "Never" for container in containers):
        return "Never"
    return str(spec.get("restartPolicy") or "Always")


def add_gate(spec: Object) -> None:
    """Adds the gate to the ``spec`` of a remote pod that is to be made, where it runs once."""
    if restart_policy(spec) == "Never":
        spec["schedulingGates"] = [{"name": GATE}]


def is_gated(remote: Object) -> bool:
    """Whether the gate is there, so that the pod has not run."""
    return {"name": GATE} in _gates(remote)


def ungate_patch() -> Object:
    """The strategic merge patch that removes the gate and no other."""
    return {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}


def is_only_own_gate(condition: Object, remote: Object) -> bool:
    """Whether a PodScheduled of the remote tells of our gate alone: that is between us."""
    others = any(gate != {"name": GATE} for gate in _gates(remote))
    return condition.get("reason") == _REASON_GATED and not others


def _gates(pod: Object) -> list[Object]:
    return (pod.get("spec") or {}).get("schedulingGates") or []


def started_status(*, now: str) -> Object:
    """The mark, written before the remote pod is let go, that the pod may have run from now on.

    ``now`` is the time in RFC 3339. It is ``startTime``: "when the object was acknowledged by the
    kubelet" (k8s.io/api/core/v1 PodStatus).
    """
    return {"startTime": now}


def may_have_started(home: Object) -> bool:
    """Whether the pod may have run in the remote before."""
    return bool((home.get("status") or {}).get("startTime"))
