"""Whether the virtual node is Ready, and under pressure: in words that help a person.

Ready means that pods which are here run and can be managed. So a remote whose nodes are all
cordoned or tainted is Ready: it takes no new pods, since its capacity counts none of these nodes,
and what runs there goes on; home must not evict it. Each other state has a reason of its own, and
the message says what to do. Since when is the condition's ``lastTransitionTime``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sync.kube.errors import (
    ApiServerCertificateError,
    ClientConfigError,
    Forbidden,
    KubeError,
    Unauthorized,
)
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES, is_counted
from translators.identity import LABEL_VIRTUAL
from translators.objects import Object, metadata

#: Conditions of kubelets that are the virtual node's where all Ready nodes of the remote have them.
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """One condition of the virtual node: its status, and why, for a person."""

    status: bool
    reason: str
    message: str


def ready_condition(nodes: Iterable[Object]) -> NodeCondition:
    """The health of a remote that answers. ``nodes``: those that --node-selector selects."""
    found = Counter(map(_state, nodes))
    every, usable = found.total(), found.pop("", 0)
    rest = ", ".join(f"{count} {state}" for state, count in sorted(found.items()))
    if usable:
        said = f"usable nodes of the remote cluster: {usable} of {every}"
        return NodeCondition(True, "RemoteReady", f"{said} ({rest})" if rest else said)
    if every == 0:
        return NodeCondition(
            False,
            "NoUsableNodes",
            "the remote cluster has no nodes, or none that --node-selector selects",
        )
    if every == found["NotReady"]:
        return NodeCondition(
            False, "NoUsableNodes", f"no node of the remote cluster is Ready ({rest})"
        )
    said = f"no node of the remote cluster takes new pods ({rest}); those that run there go on"
    return NodeCondition(True, NO_SCHEDULABLE_NODES, said)


def unreachable_condition(error: KubeError) -> NodeCondition:
    """The health of a remote that cannot be watched."""
    if isinstance(error, Unauthorized):
        return NodeCondition(
            False,
            "RemoteCredentialRefused",
            f"the remote cluster does not accept the credential (401: {error.message}): it "
            "has expired or was revoked; a new one in the kubeconfig is taken up by itself",
        )
    if isinstance(error, Forbidden):
        return NodeCondition(
            False,
            "RemoteForbidden",
            "the remote cluster knows the credential, but does not allow what the bridge "
            f"does (403: {error.message}); give it its rights back",
        )
    if isinstance(error, ClientConfigError):
        return NodeCondition(
            False,
            "RemoteKubeconfigUnusable",
            f"the remote's kubeconfig cannot be used: {error.message}",
        )
    if isinstance(error, ApiServerCertificateError):
        return NodeCondition(
            False,
            "RemoteNotTrusted",
            f"the remote cluster is not the one that the kubeconfig trusts: {error.message}",
        )
    return NodeCondition(
        False,
        "RemoteUnreachable",
        f"the remote cluster cannot be reached: {error.message}; pods there go on, and what "
        "is asked of them waits",
    )


def pressure_condition(kind: str, nodes: Iterable[Object]) -> NodeCondition:
    """A condition of `PRESSURES`. Part of the nodes is no pressure: the remote's scheduler passes
    them over."""
    running = [node for node in nodes if _is_true(node, "Ready")]
    pressed = sum(_is_true(node, kind) for node in running)
    if not pressed:
        return NodeCondition(
            False, "RemoteHasNone", "no Ready node of the remote cluster reports it"
        )
    said = f"{pressed} of {len(running)} Ready nodes of the remote cluster report it"
    return NodeCondition(pressed == len(running), "RemoteNodesReport", said)


def relevant_conditions(node: Object) -> object:
    """What the health is computed from: two nodes that are equal in it count alike."""
    return _state(node), [_is_true(node, kind) for kind in ("Ready", *PRESSURES)]


def _state(node: Object) -> str:
    """Why no pods of ours can be placed on the node; "" where they can."""
    if is_counted(node):
        return ""
    if not _is_true(node, "Ready"):
        return "NotReady"
    if LABEL_VIRTUAL in (metadata(node).get("labels") or {}):
        return "virtual"
    return "cordoned" if (node.get("spec") or {}).get("unschedulable") else "tainted"


def _is_true(node: Object, kind: str) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == kind and c.get("status") == "True" for c in conditions)
