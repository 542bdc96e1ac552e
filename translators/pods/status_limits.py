"""Limits of a remote pod's status, far above any that a kubelet writes.

The status is copied to home, whose API server stores at most 1.5 MiB of an object, and to every
client that watches the pod.
"""

from __future__ import annotations

from translators.object_accessors import Object
from translators.size_limits import cut, fits

#: Bytes of a text: those of a termination message (MaxContainerTerminationMessageLength in
#: pkg/kubelet/container/runtime.go). A kubelet's other texts have some hundred.
TEXT_LIMIT = 4096
#: Bytes of a text in a status that is too large with longer ones.
SHORT_TEXT_LIMIT = 128
#: Bytes of a status, as `translators.size_limits` counts them. A kubelet limits all termination
#: messages of a pod to 12 KiB; a status of one container without any has 1 KiB.
STATUS_LIMIT = 2**17

_CONTAINERS = {
    "containerStatuses": "containers",
    "initContainerStatuses": "initContainers",
    "ephemeralContainerStatuses": "ephemeralContainers",
}
#: The fields of a status that is too large even with short texts.
_ESSENTIAL = frozenset(
    {"phase", "reason", "message", "startTime", "conditions", "podIP", "podIPs", "hostIP"}
    | {"hostIPs", "qosClass", "observedGeneration", *_CONTAINERS}
)
_ESSENTIAL_OF_CONTAINER = frozenset(
    {"name", "state", "ready", "started", "restartCount", "image", "imageID", "containerID"}
)


def within_limits(pod: Object) -> Object:
    """The pod with a status within the limits; the same pod if it is."""
    status = pod.get("status")
    if not status or fits(status, STATUS_LIMIT // 4, TEXT_LIMIT // 4):
        return pod
    short = cut(_of_own_containers(status, pod), TEXT_LIMIT)
    if not fits(short, STATUS_LIMIT, TEXT_LIMIT):
        short = _essential(cut(short, SHORT_TEXT_LIMIT))
    return pod if short == status else {**pod, "status": short}


def _of_own_containers(status: Object, pod: Object) -> Object:
    """The status without containers that the pod's spec does not have, and one of each."""
    made = dict(status)
    for field, listed in _CONTAINERS.items():
        if statuses := status.get(field):
            names = {it["name"] for it in (pod.get("spec") or {}).get(listed) or ()}
            unique = {it["name"]: it for it in statuses if it["name"] in names}
            made[field] = list(unique.values())
    return made


def _essential(status: Object) -> Object:
    made = {key: value for key, value in status.items() if key in _ESSENTIAL}
    for field in _CONTAINERS:
        if statuses := made.get(field):
            made[field] = [
                {key: value for key, value in it.items() if key in _ESSENTIAL_OF_CONTAINER}
                for it in statuses
            ]
    return made
