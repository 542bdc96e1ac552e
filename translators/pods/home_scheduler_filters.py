"""Computes why home's scheduler would not bind a pod to a node.

Evaluates the filters of pkg/scheduler/framework/plugins that depend on one node and its pods:
NodeUnschedulable, NodeName, NodeAffinity, TaintToleration and NodeResourcesFit, and the node's
readiness. Pod affinity, topology spread and host ports are not evaluated. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from translators.capacity import pod_requests
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES
from translators.object_accessors import Object, condition_of, metadata, name_of
from translators.pods.pod_status import is_terminal

#: The taint of a cordoned node (TaintNodeUnschedulable in k8s.io/api/core/v1).
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
#: Prefixes of the pod fields that select nodes.
NODE_SELECTION_FIELDS = ("spec.nodeSelector", "spec.affinity.nodeAffinity")


@dataclass(frozen=True, slots=True)
class PredicateFailure:
    """One reason why the pod does not fit the node."""

    field: str
    """The pod's field that a user could change, or with the prefix ``node.`` the node's."""
    message: str


def predicate_failures(
    pod: Object, node: Object, bound: Iterable[Object] = ()
) -> list[PredicateFailure]:
    """All reasons; [] if the pod fits. ``bound`` are the pods on the node."""
    return [
        *_gate_failures(pod),
        *_selection_failures(pod, node),
        *_readiness_failures(node),
        *_taint_failures(pod, node),
        *_resource_failures(pod, node, bound),
    ]


def label_and_taint_failures(pod: Object, node: Object) -> list[PredicateFailure]:
    """The failures caused by labels and taints of the node, independent of its capacity."""
    return [*_selection_failures(pod, node), *_taint_failures(pod, node)]


def _gate_failures(pod: Object) -> Iterator[PredicateFailure]:
    for gate in (pod.get("spec") or {}).get("schedulingGates") or ():
        message = "the scheduler skips the pod until the gate's controller removes the gate"
        yield PredicateFailure(f"spec.schedulingGates[{gate.get('name')}]", message)


def _readiness_failures(node: Object) -> Iterator[PredicateFailure]:
    """Precedes the failures that follow from it: taints, and no allocatable resources."""
    ready = condition_of(node, "Ready")
    message = ready.get("message") or ready.get("reason") or "no bridge serves it"
    if ready and ready.get("status") != "True":
        yield PredicateFailure("node.status", f"the node is not Ready: {message}")
    elif ready.get("reason") == NO_SCHEDULABLE_NODES:
        yield PredicateFailure("node.status", str(message))


def selects_node(pod: Object, node: Object) -> bool:
    """Whether the pod's node selector and required node affinity match the node."""
    return next(_selection_failures(pod, node), None) is None


def _selection_failures(pod: Object, node: Object) -> Iterator[PredicateFailure]:
    spec, labels = pod.get("spec") or {}, metadata(node).get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            actual = (
                f"the node has {labels[key]!r}" if key in labels else "the node has no such label"
            )
            yield PredicateFailure(f"spec.nodeSelector[{key}]", f"requires {value!r}; {actual}")
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if terms and not any(term_matches_node(term, node) for term in terms):
        terms_text = " or ".join(_format_term(term) for term in terms)
        yield PredicateFailure(
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            f"requires {terms_text}; the node's labels do not match",
        )


def term_matches_node(term: Object, node: Object) -> bool:
    """Whether a node selector term matches the node; an empty term matches none."""
    labels = metadata(node).get("labels") or {}
    fields = {"metadata.name": name_of(node)}
    matches = [
        *(_holds(it, labels) for it in term.get("matchExpressions") or ()),
        *(_holds(it, fields) for it in term.get("matchFields") or ()),
    ]
    return bool(matches) and all(matches)


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    """Whether labels meet one requirement; an unknown operator is met by none."""
    value, values = labels.get(str(expression.get("key"))), expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _is_more(value, values)
        case "Lt":
            return any(_is_more(it, [value]) for it in values)
        case _:
            return False


def _is_more(value: str | None, values: Iterable[str | None]) -> bool:
    try:
        return all(int(value or "") > int(other or "") for other in values)
    except ValueError:
        return False


def _format_term(term: Object) -> str:
    expressions = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return " and ".join(
        " ".join(
            part
            for part in (it.get("key"), it.get("operator"), ", ".join(it.get("values") or ()))
            if part
        )
        for it in expressions
    )


def _taint_failures(pod: Object, node: Object) -> Iterator[PredicateFailure]:
    spec = node.get("spec") or {}
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    taints = [it for it in spec.get("taints") or () if it.get("effect") != "PreferNoSchedule"]
    cordoned = bool(spec.get("unschedulable")) or _CORDONED["key"] in [it["key"] for it in taints]
    for taint in taints:
        if taint["key"] != _CORDONED["key"] and not any(tolerates(it, taint) for it in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            formatted = f"{taint['key']}{value}:{taint.get('effect')}"
            yield PredicateFailure(
                "spec.tolerations", f"does not tolerate the node's taint {formatted}"
            )
    if cordoned and not any(tolerates(it, _CORDONED) for it in tolerations):
        yield PredicateFailure(
            "node.spec.unschedulable",
            "the node is cordoned; `kubectl uncordon` makes it schedulable",
        )


def tolerates(toleration: Object, taint: Object) -> bool:
    """As ToleratesTaint in k8s.io/api/core/v1."""
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not key or key == taint.get("key")
    return key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def _resource_failures(
    pod: Object, node: Object, bound: Iterable[Object]
) -> Iterator[PredicateFailure]:
    allocatable = pod_requests.parse_resource_list((node.get("status") or {}).get("allocatable"))
    requested: pod_requests.Amounts = {}
    own = metadata(pod).get("uid")
    for other in bound:
        if is_terminal(other) or metadata(other).get("uid") == own:
            continue
        for resource, amount in pod_requests.requests_of(other).items():
            requested[resource] = requested.get(resource, 0) + amount
    for resource, amount in sorted(pod_requests.requests_of(pod).items()):
        free = allocatable.get(resource, 0) - requested.get(resource, 0)
        if amount > free:
            of = pod_requests.format_amount(resource, allocatable.get(resource, 0))
            yield PredicateFailure(
                f"resources.requests[{resource}]",
                f"requests {pod_requests.format_amount(resource, amount)}; the node has "
                f"{pod_requests.format_amount(resource, max(free, 0))} left of {of}",
            )
