"""Why home's scheduler would not bind a pod to a node: the predicates that the node decides.

These are, beside the node's own health, the filters of pkg/scheduler/framework/plugins that look at
one node and its pods alone: NodeUnschedulable, NodeName, NodeAffinity, TaintToleration and
NodeResourcesFit (volumes are `translators.explain.persistent_volume_claims`). Affinity to pods, spread and ports are not
looked at. Pure: what is known of node and pods is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from translators.capacity import pod_requests
from translators.capacity.node_capacity import NO_SCHEDULABLE_NODES
from translators.objects import Object, condition_of, metadata, name_of

#: The taint of a cordoned node (k8s.io/api/core/v1 TaintNodeUnschedulable).
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
#: How the fields begin by which a pod names the nodes that it wants.
NODE_SELECTION_FIELDS = ("spec.nodeSelector", "spec.affinity.nodeAffinity")
_TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PredicateFailure:
    """One thing that keeps the pod off the node."""

    field: str
    """Of the pod, which a person could change; of the node where it begins with ``node.``."""
    message: str


def predicate_failures(
    pod: Object, node: Object, bound: Iterable[Object] = ()
) -> list[PredicateFailure]:
    """All of them; none where the node would do. ``bound`` are the pods that are on it."""
    return [
        *_gates(pod),
        *_selected(pod, node),
        *_unready(node),
        *_tainted(pod, node),
        *_too_much(pod, node, bound),
    ]


def label_and_taint_failures(pod: Object, node: Object) -> list[PredicateFailure]:
    """The obstacles that are labels and taints of the node, whatever room it has."""
    return [*_selected(pod, node), *_tainted(pod, node)]


def _gates(pod: Object) -> Iterator[PredicateFailure]:
    for gate in (pod.get("spec") or {}).get("schedulingGates") or ():
        why = "no scheduler looks at the pod until whoever set this gate removes it"
        yield PredicateFailure(f"spec.schedulingGates[{gate.get('name')}]", why)


def _unready(node: Object) -> Iterator[PredicateFailure]:
    """The cause comes before what follows from it: taints, and nothing left."""
    ready = condition_of(node, "Ready")
    said = ready.get("message") or ready.get("reason") or "no bridge serves it"
    if ready and ready.get("status") != "True":
        yield PredicateFailure("node.status", f"the node is not Ready: {said}")
    elif ready.get("reason") == NO_SCHEDULABLE_NODES:
        yield PredicateFailure("node.status", str(said))


# -- labels ---------------------------------------------------------------------------------


def selects_node(pod: Object, node: Object) -> bool:
    """Whether the pod's node selector and required node affinity select the node."""
    return next(_selected(pod, node), None) is None


def _selected(pod: Object, node: Object) -> Iterator[PredicateFailure]:
    spec, labels = pod.get("spec") or {}, metadata(node).get("labels") or {}
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            has = f"it is {labels[key]!r} there" if key in labels else "the node has no such label"
            yield PredicateFailure(f"spec.nodeSelector[{key}]", f"wants {value!r}; {has}")
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or ()
    if terms and not any(term_matches_node(term, node) for term in terms):
        wanted = " or ".join(_words(term) for term in terms)
        yield PredicateFailure(
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            f"wants {wanted}; the node's labels are otherwise",
        )


def term_matches_node(term: Object, node: Object) -> bool:
    """Whether a node selector's term selects the node; an empty one selects none."""
    labels = metadata(node).get("labels") or {}
    fields = {"metadata.name": name_of(node)}
    found = [
        *(_holds(it, labels) for it in term.get("matchExpressions") or ()),
        *(_holds(it, fields) for it in term.get("matchFields") or ()),
    ]
    return bool(found) and all(found)


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
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


def _words(term: Object) -> str:
    expressions = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
    return " and ".join(
        " ".join(
            part
            for part in (it.get("key"), it.get("operator"), ", ".join(it.get("values") or ()))
            if part
        )
        for it in expressions
    )


# -- taints ---------------------------------------------------------------------------------


def _tainted(pod: Object, node: Object) -> Iterator[PredicateFailure]:
    spec = node.get("spec") or {}
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    taints = [it for it in spec.get("taints") or () if it.get("effect") != "PreferNoSchedule"]
    cordoned = bool(spec.get("unschedulable")) or _CORDONED["key"] in [it["key"] for it in taints]
    for taint in taints:
        if taint["key"] != _CORDONED["key"] and not any(tolerates(it, taint) for it in tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            named = f"{taint['key']}{value}:{taint.get('effect')}"
            yield PredicateFailure("spec.tolerations", f"tolerates not the node's taint {named}")
    if cordoned and not any(tolerates(it, _CORDONED) for it in tolerations):
        yield PredicateFailure(
            "node.spec.unschedulable", "the node is cordoned; kubectl uncordon opens it"
        )


def tolerates(toleration: Object, taint: Object) -> bool:
    """As ToleratesTaint of k8s.io/api/core/v1."""
    effect, key = toleration.get("effect"), toleration.get("key")
    if effect and effect != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not key or key == taint.get("key")
    return key == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


# -- resources ------------------------------------------------------------------------------


def _too_much(pod: Object, node: Object, bound: Iterable[Object]) -> Iterator[PredicateFailure]:
    has = pod_requests.parse_resource_list((node.get("status") or {}).get("allocatable"))
    taken: pod_requests.Amounts = {}
    own = metadata(pod).get("uid")
    for other in bound:
        if metadata(other).get("uid") == own or _has_ended(other):
            continue
        for resource, amount in pod_requests.requests_of(other).items():
            taken[resource] = taken.get(resource, 0) + amount
    for resource, amount in sorted(pod_requests.requests_of(pod).items()):
        free = has.get(resource, 0) - taken.get(resource, 0)
        if amount > free:
            of = pod_requests.format_amount(resource, has.get(resource, 0))
            yield PredicateFailure(
                f"resources.requests[{resource}]",
                f"asks for {pod_requests.format_amount(resource, amount)}; the node has "
                f"{pod_requests.format_amount(resource, max(free, 0))} left of {of}",
            )


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in _TERMINAL
