"""Builds the relay agent's Pod, and plans its creation, replacement and deletion.

The relay agent is the only workload of the bridge in the remote, and exists only for reverse
forwarding. It listens for connections of pods in the remote, and the bridge fetches each connection
through a port-forward (`bridge.relay.reverse.relay_agent`). The Pod has no token, no RBAC
permissions and no Secret, and conforms to Pod Security's `restricted` level. Each mapped namespace
that needs an agent has one Pod, and two during a replacement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from translators.derived_names import short_hash
from translators.object_accessors import (
    HomeNamespace,
    Object,
    condition_of,
    is_deleting,
    is_ready,
    metadata,
    uid_of,
)
from translators.ownership_labels import DOMAIN, owner_labels
from translators.relay.reverse_plan import ANNOTATION_RELAY_FOR, LABEL_RELAY
from translators.virtual_node_identity import Identity

#: The loopback port for control connections, which only port-forwards reach.
CONTROL_PORT = 19999
#: Hash of the Pod's spec; a Pod with another hash is replaced.
ANNOTATION_SPEC_HASH = f"{DOMAIN}/relay-spec"
#: Existing connections continue during the grace period, while the next agent starts.
TERMINATION_GRACE_SECONDS = 30
#: Seconds until a Pod on an unreachable node is evicted and replaced.
UNREACHABLE_TOLERATION_SECONDS = 10
#: Reasons of waiting containers that only a user can resolve (k8s.io/kubernetes/pkg/kubelet).
_BLOCKING_REASONS = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError"),
        "CrashLoopBackOff",
    }
)
#: The user of the image.
_USER = 65532


def agent_pod(
    name: str,
    home: HomeNamespace,
    identity: Identity,
    *,
    image: str,
    node_selector: Mapping[str, str],
) -> Object:
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
                # The Pod has no controller, but the bridge re-creates it.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            },
        },
        "spec": spec,
    }


def spec_hash(image: str, node_selector: Mapping[str, str]) -> str:
    text = json.dumps(_spec(image, node_selector), sort_keys=True)
    return short_hash(text)


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
                "key": f"node.kubernetes.io/{condition}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": UNREACHABLE_TOLERATION_SECONDS,
            }
            for condition in ("not-ready", "unreachable")
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
                # `kubectl describe` then shows the last log lines of a failed agent.
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
    }
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    return spec


@dataclass(frozen=True, slots=True)
class AgentState:
    """The state of a relay agent, as seen by the bridge."""

    listening: frozenset[int] = frozenset()
    """The ports that the agent reports as open."""
    unsupported: frozenset[int] = frozenset()
    """The ports that the agent cannot open: those of UDP if its release does not forward UDP."""
    unresponsive: bool = False
    """Whether the agent accepts control connections but does not respond."""
    version_warning: str = ""
    """How the agent's version differs from the bridge's, and what to do; "" if it does not."""


UNKNOWN_STATE = AgentState()


@dataclass(frozen=True, slots=True)
class AgentPodPlan:
    """The Pods to create, delete and use for the relay agents of a namespace."""

    create: bool
    delete: tuple[Object, ...]
    failed: tuple[Object, ...]
    """The deleted Pods that have ended or are unresponsive; their successors may fail as well."""
    serving: tuple[Object, ...]
    """The reachable Pods, the best first; the ports of the first one are used."""
    current: Object | None
    """The Pod to keep."""


def plan_agent_pods(
    pods: Iterable[Object],
    *,
    desired_hash: str | None,
    listening: Callable[[Object], bool],
    unresponsive: Callable[[Object], bool],
) -> AgentPodPlan:
    """Decides which Pods to create and delete.

    ``desired_hash`` is the spec hash of the Pod that should exist, None for no Pod. ``listening``
    returns whether a Pod listens on all required ports. A Pod that is being deleted or has another
    hash serves until its successor does.
    """
    present = sorted(pods, key=lambda it: (metadata(it).get("creationTimestamp") or "", uid_of(it)))
    ended = [it for it in present if _phase(it) in ("Succeeded", "Failed")]
    terminating = [it for it in present if is_deleting(it) and it not in ended]
    alive = [it for it in present if it not in ended and it not in terminating]
    hung = [it for it in alive if unresponsive(it)]
    matching = [it for it in alive if it not in hung and _hash(it) == desired_hash]
    outdated = [it for it in alive if it not in hung and it not in matching]
    serves = any(map(listening, matching))
    # After a race several Pods can match; the one that serves is kept.
    current = next(filter(listening, matching), matching[0] if matching else None)
    failed = [*(it for it in ended if not is_deleting(it)), *hung]
    delete = [*failed, *(it for it in matching if it is not current)]
    if desired_hash is None or serves:
        delete += outdated
    order: Sequence[Object] = [*matching, *reversed(outdated), *reversed(terminating), *hung]
    return AgentPodPlan(
        create=desired_hash is not None and not matching,
        delete=tuple(delete),
        failed=tuple(failed),
        serving=tuple(it for it in order if _is_reachable(it)),
        current=current,
    )


def blocking_reason(pods: Iterable[Object]) -> str:
    """Why a relay agent does not start until a user intervenes, as a Kubernetes reason; "" if
    unknown."""
    for pod in pods:
        if is_deleting(pod):
            continue
        if condition_of(pod, "PodScheduled").get("reason") == "Unschedulable":
            return "Unschedulable"
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            reason = str(((status.get("state") or {}).get("waiting") or {}).get("reason") or "")
            if reason in _BLOCKING_REASONS:
                # The kubelet alternates between these two.
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
