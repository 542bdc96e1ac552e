"""One pod of home as a row of the page's table. Pure.

The status is the one that ``kubectl get pods`` prints (pkg/printers/internalversion/printers.go of
Kubernetes, `printPod`), or the reason for which the bridge does not create the pod.
"""

from __future__ import annotations

from bridge.status.node_pod_summary import PodSummary
from bridge.status.status_tree import Tone, printable
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of

#: Longest message of a row, in characters.
MAX_MESSAGE = 300
_ENDED = ("Succeeded", "Completed")
_STARTING = ("Pending", "ContainerCreating", "PodInitializing", "Terminating", "Unknown")
#: Fields of a pod that are kept; volumes, environments and annotations are not.
_SPEC = ("nodeName", "overhead", "resources")
_CONTAINER = ("name", "resources", "restartPolicy")
_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")


def slim_pod(pod: Object) -> Object:
    """The part of a pod that is stored."""
    spec = pod.get("spec") or {}
    kept: Object = {key: spec[key] for key in _SPEC if key in spec}
    for kind in ("initContainers", "containers"):
        kept[kind] = [
            {key: it[key] for key in _CONTAINER if key in it} for it in spec.get(kind) or ()
        ]
    meta = {key: metadata(pod)[key] for key in _META if key in metadata(pod)}
    return {"metadata": meta, "spec": kept, "status": pod.get("status") or {}}


def pod_row(pod: Object, summary: PodSummary) -> Object:
    """The row of a pod. Amounts are cores and bytes."""
    status, spec = pod.get("status") or {}, pod.get("spec") or {}
    containers = status.get("containerStatuses") or ()
    text, message = _status(pod, summary)
    return {
        "uid": uid_of(pod),
        "namespace": namespace_of(pod),
        "name": name_of(pod),
        "node": str(spec.get("nodeName") or ""),
        "phase": summary.phase,
        "status": printable(text),
        "tone": _tone(text, summary),
        "message": printable(message[:MAX_MESSAGE]),
        "ready": sum(bool(it.get("ready")) for it in containers),
        "containers": len(spec.get("containers") or ()),
        "restarts": sum(int(it.get("restartCount") or 0) for it in containers),
        "created": str(metadata(pod).get("creationTimestamp") or ""),
        "cpu": summary.requested.get("cpu", 0) / 1000,
        "memory": summary.requested.get("memory", 0),
    }


def _status(pod: Object, summary: PodSummary) -> tuple[str, str]:
    """The status, and its cause where one is known."""
    status = pod.get("status") or {}
    if summary.deleting:
        return "Terminating", ""
    if summary.rejection is not None:
        return summary.rejection["reason"] or "Rejected", summary.rejection["message"]
    initializing = _initializing(status, len((pod.get("spec") or {}).get("initContainers") or ()))
    if initializing is not None:
        return initializing
    text, message = str(status.get("reason") or summary.phase), str(status.get("message") or "")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for its in (state.get("waiting"), state.get("terminated")):
            if its:
                return _state_reason(its), str(its.get("message") or "")
    return ("Completed", "") if text == "Succeeded" else (text, message or _not_scheduled(status))


def _initializing(status: Object, total: int) -> tuple[str, str] | None:
    """``Init:1/2`` and the like; None once the init containers have ended."""
    for at, container in enumerate(status.get("initContainerStatuses") or ()):
        state = container.get("state") or {}
        ended, waiting = state.get("terminated"), state.get("waiting")
        if (ended and ended.get("exitCode") == 0) or container.get("started"):
            continue
        for its in (ended, waiting):
            if its and its.get("reason") not in (None, "", "PodInitializing"):
                return f"Init:{_state_reason(its)}", str(its.get("message") or "")
        return f"Init:{at}/{total}", ""
    return None


def _state_reason(state: Object) -> str:
    return str(state.get("reason") or f"ExitCode:{state.get('exitCode', '?')}")


def _not_scheduled(status: Object) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return ""


def _tone(text: str, summary: PodSummary) -> Tone:
    if summary.phase == "Failed" or summary.rejection is not None:
        return "bad"
    if text in _ENDED:
        return "dim"
    if text == "Running":
        return "good" if summary.ready else "warn"
    starting = text in _STARTING or (text.startswith("Init:") and text[5:6].isdigit())
    return "warn" if starting else "bad"
