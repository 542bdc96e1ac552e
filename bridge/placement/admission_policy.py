"""The MutatingAdmissionPolicy that holds new pods for the placer. Pure.

The API server itself evaluates it, in CEL, with each PlacementPolicy as a parameter: a pod that a
policy is for gets the gate and the label of `translators.placement.placed_pod.gated`. The CEL is
equivalent to `translators.placement.placement_policy.PlacementPolicy.matches`; a test on a real API
server compares the two. On failure the pod is created unchanged, so that neither the policy nor a
missing CustomResourceDefinition can block a cluster.
"""

from __future__ import annotations

from bridge.offload.mutating_admission_policy import (
    LABEL_PART,
    MATCH_CONDITIONS,
    POD_CREATION,
    policy_resources,
)
from translators.object_accessors import Object
from translators.ownership_labels import LABEL_PLACEMENT
from translators.placement.placement_policy import (
    API_VERSION,
    GATE,
    KIND,
    PENDING,
    SYSTEM_NAMESPACES,
)

NAME = "cluster-bridge-placement"

_SPEC = "params.spec"


def _selects(selector: str, labels: str) -> str:
    """CEL: whether the selector at this path selects ``labels``, a variable with a map."""
    expression = f"{selector}.?matchExpressions.orValue([])"
    by_label = f"{selector}.?matchLabels.orValue({{}})"
    holds = (
        f"e.operator == 'In' ? (e.key in {labels} && {labels}[e.key] in e.?values.orValue([])) : "
        f"e.operator == 'NotIn' ? !(e.key in {labels} && {labels}[e.key] in e.?values.orValue([])) "
        f": e.operator == 'Exists' ? e.key in {labels} : !(e.key in {labels})"
    )
    return (
        f"{by_label}.all(k, k in {labels} && {labels}[k] == {by_label}[k]) && "
        f"{expression}.all(e, {holds})"
    )


_LABELS = "object.metadata.?labels.orValue({})"
_NAMESPACE_LABELS = "namespaceObject.metadata.?labels.orValue({})"
_NAMESPACES = f"{_SPEC}.?namespaces.orValue([])"
#: Not a match condition, which cannot read the namespace.
_IN_NAMESPACE = (
    f"(size({_NAMESPACES}) == 0 && !has({_SPEC}.namespaceSelector)) || "
    f"request.namespace in {_NAMESPACES} || (has({_SPEC}.namespaceSelector) && "
    f"{_selects(f'{_SPEC}.namespaceSelector', _NAMESPACE_LABELS)})"
)
_MATCHES: dict[str, str] = {
    "with-labels-of-the-policy": (
        f"!has({_SPEC}.podSelector) || ({_selects(f'{_SPEC}.podSelector', _LABELS)})"
    ),
    "with-a-priority-class-of-the-policy": (
        f"size({_SPEC}.?priorityClasses.orValue([])) == 0 || "
        f"object.spec.?priorityClassName.orValue('') in {_SPEC}.priorityClasses"
    ),
    "not-held-yet": (f"!object.spec.?schedulingGates.orValue([]).exists(g, g.name == '{GATE}')"),
}
_MUTATION = " + ".join(
    (
        (
            "(has(object.spec.schedulingGates) ? [] : [JSONPatch{op: 'add', "
            "path: '/spec/schedulingGates', value: dyn([])}])"
        ),
        (
            "[JSONPatch{op: 'add', path: '/spec/schedulingGates/-', "
            f"value: dyn({{'name': '{GATE}'}})}}]"
        ),
        (
            "(has(object.metadata.labels) ? [] : [JSONPatch{op: 'add', "
            "path: '/metadata/labels', value: dyn({})}])"
        ),
        (
            f"[JSONPatch{{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey("
            f"'{LABEL_PLACEMENT}'), value: '{PENDING}'}}]"
        ),
    )
)


def admission_objects(version: str = "v1") -> list[Object]:
    """The policy and its binding, in a version of the API."""
    meta: Object = {"name": NAME, "labels": {LABEL_PART: "placement"}}
    policy, binding = policy_resources(version)
    outside = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": list(SYSTEM_NAMESPACES),
    }
    expressions = [{"name": name, "expression": it} for name, it in _MATCHES.items()]
    return [
        policy.manifest(
            meta,
            spec={
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "Never",
                "paramKind": {"apiVersion": API_VERSION, "kind": KIND},
                "matchConstraints": {
                    "namespaceSelector": {"matchExpressions": [outside]},
                    "resourceRules": [POD_CREATION],
                },
                "matchConditions": [*MATCH_CONDITIONS, *expressions],
                "variables": [{"name": "inNamespace", "expression": _IN_NAMESPACE}],
                "mutations": [
                    {
                        "patchType": "JSONPatch",
                        "jsonPatch": {"expression": f"variables.inNamespace ? {_MUTATION} : []"},
                    }
                ],
            },
        ),
        binding.manifest(
            meta,
            spec={
                "policyName": NAME,
                "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
            },
        ),
    ]
