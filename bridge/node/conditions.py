"""Computes the conditions of the virtual node from the remote's nodes or from an error. Pure.

Ready means that existing pods run and can be managed. So a remote whose nodes are all cordoned or
tainted is Ready: home must not evict the pods that run there, and new pods stay away because the
capacity excludes such nodes. Every other state has its own reason, and a message with the
remedy. ``lastTransitionTime`` shows since when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from sync.kube.api_errors import (
    ApiServerCertificateError,
    ClientConfigError,
    Forbidden,
    KubeError,
    Unauthorized,
)
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES, is_counted
from translators.object_accessors import Object, metadata
from translators.ownership_labels import LABEL_VIRTUAL

#: Nodes, each of which stands for a number of equal ones.
NodeGroups = Iterable[tuple[Object, int]]
#: Kubelet conditions that the virtual node has if all Ready nodes of the remote have them.
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """One condition of the virtual node."""

    status: bool
    reason: str
    message: str


#: Reason of Ready while the remote responds and its nodes are unknown.
NODES_UNKNOWN = "RemoteNodesUnknown"


#: Reason of Ready while the remote has no node, and adds nodes for pods (``--elastic``).
SCALES_FROM_ZERO = "RemoteScalesFromZero"


def ready_condition(nodes: NodeGroups | None, *, is_elastic: bool = False) -> NodeCondition:
    """The Ready condition while the remote responds. ``nodes``: those that --node-selector
    selects; None if the bridge may not read them. ``is_elastic``: whether the remote adds nodes."""
    if nodes is None:
        text = "the remote cluster responds; the bridge may not read its nodes"
        return NodeCondition(True, NODES_UNKNOWN, text)
    counts: Counter[str] = Counter()
    for node, count in nodes:
        counts[_state(node)] += count
    total, usable = counts.total(), counts.pop("", 0)
    rest = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    if usable:
        text = f"usable nodes of the remote cluster: {usable} of {total}"
        return NodeCondition(True, "RemoteReady", f"{text} ({rest})" if rest else text)
    if total == 0 and is_elastic:
        text = "the remote cluster has no nodes now; its autoscaler adds them for pods (--elastic)"
        return NodeCondition(True, SCALES_FROM_ZERO, text)
    if total == 0:
        return NodeCondition(
            False,
            "NoUsableNodes",
            "the remote cluster has no nodes, or none that --node-selector selects",
        )
    if total == counts["NotReady"]:
        return NodeCondition(
            False, "NoUsableNodes", f"no node of the remote cluster is Ready ({rest})"
        )
    text = f"no node of the remote cluster takes new pods ({rest}); running pods are unaffected"
    return NodeCondition(True, NO_SCHEDULABLE_NODES, text)


def unreachable_condition(error: KubeError) -> NodeCondition:
    match error:
        case Unauthorized():
            reason = "RemoteCredentialRefused"
            message = (
                f"the remote cluster rejects the credential (401: {error.message}): it has expired "
                "or was revoked; put a new one into the kubeconfig, which the bridge reloads"
            )
        case Forbidden():
            reason = "RemoteForbidden"
            message = (
                "the remote cluster accepts the credential, but denies a permission that the "
                f"bridge needs (403: {error.message}); grant it again"
            )
        case ClientConfigError():
            reason = "RemoteKubeconfigUnusable"
            message = f"the remote's kubeconfig cannot be used: {error.message}"
        case ApiServerCertificateError():
            reason = "RemoteNotTrusted"
            message = (
                "the kubeconfig does not trust the certificate of the remote's API server: "
                f"{error.message}"
            )
        case _:
            reason = "RemoteUnreachable"
            message = (
                f"the remote cluster cannot be reached: {error.message}; running pods are "
                "unaffected, and changes to pods wait"
            )
    return NodeCondition(False, reason, message)


def pressure_condition(kind: str, nodes: NodeGroups | None) -> NodeCondition:
    """A condition of `PRESSURES`. It is False while any Ready node has no pressure, because the
    remote's scheduler avoids the others, and where the nodes are unknown (None)."""
    if nodes is None:
        text = "the bridge may not read the nodes of the remote cluster"
        return NodeCondition(False, NODES_UNKNOWN, text)
    groups = [(node, count) for node, count in nodes if _is_true(node, "Ready")]
    running = sum(count for _, count in groups)
    pressed = sum(count for node, count in groups if _is_true(node, kind))
    if not pressed:
        return NodeCondition(
            False, "RemoteHasNone", "no Ready node of the remote cluster reports it"
        )
    text = f"{pressed} of {running} Ready nodes of the remote cluster report it"
    return NodeCondition(pressed == running, "RemoteNodesReport", text)


def relevant_conditions(node: Object) -> Hashable:
    """The input of the conditions: nodes with equal values count alike."""
    return _state(node), tuple(_is_true(node, kind) for kind in ("Ready", *PRESSURES))


def _state(node: Object) -> str:
    """Why the node takes no pods; "" if it does."""
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
