"""The relay pod: the one thing of the bridge's own that runs in the remote, and only where asked.

It listens for the remote's pods and hands each connection to the bridge, which fetches it by a
port-forward (`bridge.relay.reverse.agent`). It has no token, no rights and no secret, and fits Pod
Security's `restricted`. There is one in each mapped namespace that needs it; while one is being
replaced, two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from translators.identity import DOMAIN, Identity, owner_labels
from translators.names import short_hash
from translators.objects import (
    HomeNamespace,
    Object,
    condition_of,
    is_deleting,
    is_ready,
    metadata,
    uid_of,
)
from translators.relay.reverse import ANNOTATION_RELAY_FOR, LABEL_RELAY

#: Where the pod is spoken to by port-forwards: of its loopback, which no network reaches.
CONTROL_PORT = 19999
#: What the pod was made from: another hash, another pod.
ANNOTATION_SPEC_HASH = f"{DOMAIN}/relay-spec"
#: Seconds that the pod may take to end: connections go on meanwhile, and its successor begins.
TERMINATION_GRACE_SECONDS = 30
#: Seconds after which a machine that does not answer loses the pod, so that another is made.
UNREACHABLE_TOLERATION_SECONDS = 10
#: Why containers wait for what only people can change (k8s.io/kubernetes/pkg/kubelet).
_OBSTACLES = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        "CrashLoopBackOff",
    }
)
#: Nobody in particular: the image's own user.
_USER = 65532


def agent_pod(
    name: str,
    home: HomeNamespace,
    identity: Identity,
    *,
    image: str,
    node_selector: Mapping[str, str],
) -> Object:
    """The Pod."""
    spec = _spec(image, node_selector)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": identity.remote_namespace(home),
            "labels": {
                **owner_labels(identity),
                LABEL_RELAY: "pod",
                "app.kubernetes.io/name": "cluster-bridge-relay",
            },
            "annotations": {
                ANNOTATION_RELAY_FOR: home,
                ANNOTATION_SPEC_HASH: spec_hash(image, node_selector),
                # No controller would make it anew, but the bridge does.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            },
        },
        "spec": spec,
    }


def spec_hash(image: str, node_selector: Mapping[str, str]) -> str:
    """What tells pods that were made in another way."""
    said = json.dumps(_spec(image, node_selector), sort_keys=True)
    return short_hash(said)


def _spec(image: str, node_selector: Mapping[str, str]) -> Object:
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": TERMINATION_GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{what}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": UNREACHABLE_TOLERATION_SECONDS,
            }
            for what in ("not-ready", "unreachable")
        ],
        "containers": [
            {
                "name": "relay",
                "image": image,
                "args": ["relay-pod"],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "64Mi"},
                    "limits": {"cpu": "1", "memory": "256Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                # What it said last is what `kubectl describe` shows of one that has failed.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    return spec


@dataclass(frozen=True, slots=True)
class AgentState:
    """What a bridge knows of a relay pod by what it says, and by what it does not."""

    listening: frozenset[int] = frozenset()
    """The ports that it listens on, as far as it says so now."""
    unresponsive: bool = False
    """Whether it hangs: it can be spoken to, and does not answer."""
    version_warning: str = ""
    """How its version differs from the bridge's, and what to do, for people."""


UNKNOWN_STATE = AgentState()


@dataclass(frozen=True, slots=True)
class AgentPodPlan:
    """What is to become of a namespace's relay pods."""

    create: bool
    delete: tuple[Object, ...]
    failed: tuple[Object, ...]
    """Of those that are deleted, the ones that have ended by themselves or hang: then their
    successor may, too."""
    serving: tuple[Object, ...]
    """Those that can be spoken to, the best first: what the first one listens on it serves."""
    current: Object | None
    """The one that is to be there."""


def plan_agent_pods(
    pods: Iterable[Object],
    *,
    desired_hash: str | None,
    listening: Callable[[Object], bool],
    unresponsive: Callable[[Object], bool],
) -> AgentPodPlan:
    """Decides. ``wanted`` is the hash of the pod that is to be there, None for none; ``listening``
    says whether the pod does all that it is asked for, ``silent`` whether it hangs.

    A pod that is deleted by somebody, or made in another way, serves until its successor does.
    """
    present = sorted(pods, key=lambda it: (metadata(it).get("creationTimestamp") or "", uid_of(it)))
    ended = [it for it in present if _phase(it) in ("Succeeded", "Failed")]
    going = [it for it in present if is_deleting(it) and it not in ended]
    alive = [it for it in present if it not in ended and it not in going]
    hangs = [it for it in alive if unresponsive(it)]
    right = [it for it in alive if it not in hangs and _hash(it) == desired_hash]
    old = [it for it in alive if it not in hangs and it not in right]
    serves = any(map(listening, right))
    # Of several right ones, which only a race can make, the one that serves stays.
    stays = next(filter(listening, right), right[0] if right else None)
    failed = [*(it for it in ended if not is_deleting(it)), *hangs]
    delete = [*failed, *(it for it in right if it is not stays)]
    if desired_hash is None or serves:
        delete += old
    order: Sequence[Object] = [*right, *reversed(old), *reversed(going), *hangs]
    return AgentPodPlan(
        create=desired_hash is not None and not right,
        delete=tuple(delete),
        failed=tuple(failed),
        serving=tuple(it for it in order if _is_reachable(it)),
        current=stays,
    )


def blocking_reason(pods: Iterable[Object]) -> str:
    """Why a relay pod does not run and will not by itself, in a word of Kubernetes'; "" where
    nothing is known to keep it."""
    for pod in pods:
        if is_deleting(pod):
            continue
        if condition_of(pod, "PodScheduled").get("reason") == "Unschedulable":
            return "Unschedulable"
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            reason = str(((status.get("state") or {}).get("waiting") or {}).get("reason") or "")
            if reason in _OBSTACLES:
                # These two take turns, and are one.
                return reason.replace("ErrImagePull", "ImagePullBackOff")
    return ""


def _hash(pod: Object) -> str:
    return str((metadata(pod).get("annotations") or {}).get(ANNOTATION_SPEC_HASH) or "")


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def _is_reachable(pod: Object) -> bool:
    status = pod.get("status") or {}
    running = _phase(pod) == "Running" and bool(status.get("podIP"))
    return running and (is_ready(pod) or is_deleting(pod))
