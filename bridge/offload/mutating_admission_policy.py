"""The MutatingAdmissionPolicy that mutates new pods of offloaded namespaces in home. Pure.

With this policy the API server itself mutates the pods, in CEL. Where it does not serve the API, a
webhook does (`bridge.offload.webhook_configuration`); only one of them is installed at a time. Both
are equivalent to `translators.offload_admission_patch.admission_patch`, and match only the creation
of pods in namespaces with the offload label. Neither can block a cluster: on failure the pod is
created unmodified.
"""

from __future__ import annotations

from sync.kube.api_resources import Resource
from translators.object_accessors import Object
from translators.offload_admission_patch import (
    ANNOTATION_NODE_SELECTOR,
    ANNOTATION_POD_SELECTOR,
    ANNOTATION_TIERS,
    LABEL_OFFLOAD,
    MAX_TIERS,
    POLICIES,
    PREFERENCE_WEIGHT,
)
from translators.ownership_labels import DOMAIN, LABEL_VIRTUAL, LABEL_VOLUME_COPY

GROUP = "admissionregistration.k8s.io"
#: The name of all objects.
NAME = "cluster-bridge-offload"
#: Marks the objects as created by a bridge.
LABEL_PART = f"{DOMAIN}/part-of"
#: Versions of the policy API, the preferred first.
VERSIONS = ("v1", "v1beta1", "v1alpha1")


def policy_resources(version: str) -> tuple[Resource, Resource]:
    """The resources of the policy and of its binding in a version of the API."""
    kind = "MutatingAdmissionPolicy"
    return (
        Resource(GROUP, version, "mutatingadmissionpolicies", kind, namespaced=False),
        Resource(
            GROUP, version, "mutatingadmissionpolicybindings", f"{kind}Binding", namespaced=False
        ),
    )


NAMESPACE_SELECTOR: Object = {
    "matchExpressions": [{"key": LABEL_OFFLOAD, "operator": "In", "values": list(POLICIES)}]
}
POD_CREATION: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "Namespaced",
}
MATCH_CONDITIONS: list[Object] = [
    {
        "name": "not-of-a-daemonset",
        "expression": "!object.metadata.?ownerReferences.orValue([]).exists(o, "
        "o.kind == 'DaemonSet' && has(o.controller) && o.controller)",
    },
    {
        "name": "not-of-a-volume-copy",
        "expression": f"!('{LABEL_VOLUME_COPY}' in object.metadata.?labels.orValue({{}}))",
    },
    {"name": "names-no-node", "expression": "object.spec.?nodeName.orValue('') == ''"},
]


def object_metadata() -> Object:
    return {"name": NAME, "labels": {LABEL_PART: "offload"}}


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_LOCAL = f"{{'key': dyn('{LABEL_VIRTUAL}'), 'operator': dyn('DoesNotExist')}}"
_REMOTE = f"{{'key': dyn('{LABEL_VIRTUAL}'), 'operator': dyn('Exists')}}"
_NODES = "object.spec.?affinity.?nodeAffinity"


def _extend_terms(more: str, *, drop_virtual: bool) -> str:
    """CEL: all node selector terms with ``more`` expressions added, and if ``drop_virtual`` without
    their own expressions about virtual nodes."""
    expressions = "t.?matchExpressions.orValue([])"
    if drop_virtual:
        expressions += f".filter(e, e.key != '{LABEL_VIRTUAL}')"
    return (
        f"variables.terms.map(t, {{'matchExpressions': dyn({expressions} + {more}), "
        "'matchFields': dyn(t.?matchFields.orValue([]))})"
    )


def _add_operation(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: '{path}', value: {value}}}"


def _annotation(key: str) -> str:
    return f"namespaceObject.metadata.?annotations[?'{key}'].orValue('')"


def _pairs(text: str) -> str:
    """CEL: the list of KEY=VALUE in ``text``."""
    return f"{text}.split(',').filter(p, p.contains('='))"


def _expressions(text: str) -> str:
    """CEL: the expressions of a node selector term for the labels in ``text``."""
    return (
        f"{_pairs(text)}.map(p, {{'key': dyn(p.split('=')[0]), 'operator': dyn('In'), "
        "'values': dyn([p.split('=')[1]])})"
    )


def _preference(weight: str, expressions: str) -> str:
    """CEL: a preferred scheduling term."""
    return (
        f"{{'weight': dyn({weight}), "
        f"'preference': dyn({{'matchExpressions': dyn({expressions})}})}}"
    )


#: CEL: the weight of the tier ``t`` (`offload_admission_patch.preference_weights`).
_WEIGHT = (
    f"{PREFERENCE_WEIGHT} - {PREFERENCE_WEIGHT} * "
    "(variables.tiers.indexOf(t) + size(variables.home)) / "
    "(size(variables.tiers) + size(variables.home))"
)

_VARIABLES = {
    "mode": f"namespaceObject.metadata.labels['{LABEL_OFFLOAD}']",
    "labels": "object.metadata.?labels.orValue({})",
    "selected": f"{_pairs(_annotation(ANNOTATION_POD_SELECTOR))}.all(p, "
    "p.split('=')[0] in variables.labels && "
    "variables.labels[p.split('=')[0]] == p.split('=')[1])",
    "chosen": _expressions(_annotation(ANNOTATION_NODE_SELECTOR)),
    "tolerations": "object.spec.?tolerations.orValue([])",
    "virtualTolerations": "variables.tolerations.filter(t, t.?key.orValue('') == "
    f"'{LABEL_VIRTUAL}')",
    "originalTerms": f"{_NODES}.?{_REQUIRED}.?nodeSelectorTerms.orValue([])",
    "terms": "size(variables.originalTerms) == 0 ? [dyn({})] : variables.originalTerms",
    "required": "variables.mode == 'remote-only' ? "
    + _extend_terms(f"[{_REMOTE}] + variables.chosen", drop_virtual=True)
    + " : variables.mode == 'local-only' ? "
    + _extend_terms(f"[{_LOCAL}]", drop_virtual=True)
    + " : size(variables.chosen) == 0 ? [] : "
    + _extend_terms(f"[{_LOCAL}]", drop_virtual=False)
    + " + "
    + _extend_terms("variables.chosen", drop_virtual=False),
    "home": "variables.mode == 'burst' ? ["
    + _preference(str(PREFERENCE_WEIGHT), f"[{_LOCAL}]")
    + "] : []",
    "allTiers": f"{_annotation(ANNOTATION_TIERS)}.split(';').filter(t, t.contains('='))",
    "tiers": f"variables.allTiers.filter(t, variables.allTiers.indexOf(t) < {MAX_TIERS})",
    "wanted": "variables.mode == 'local-only' ? [] : variables.home + variables.tiers.map(t, "
    + _preference(_WEIGHT, _expressions("t"))
    + ")",
    "preferred": f"size(variables.wanted) == 0 ? [] : {_NODES}.?{_PREFERRED}.orValue([]) + "
    "variables.wanted",
}
#: CEL: lists of JSON patch operations, which are concatenated.
_MUTATION = (
    (
        f"(variables.mode == 'local-only' && '{LABEL_VIRTUAL}' in "
        "object.spec.?nodeSelector.orValue({}) ? [JSONPatch{op: 'remove', "
        f"path: '/spec/nodeSelector/' + jsonpatch.escapeKey('{LABEL_VIRTUAL}')}}] : [])"
    ),
    "(variables.mode == 'local-only' && size(variables.virtualTolerations) > 0 ? ["
    + _add_operation(
        "/spec/tolerations",
        f"dyn(variables.tolerations.filter(t, t.?key.orValue('') != '{LABEL_VIRTUAL}'))",
    )
    + "] : [])",
    "(variables.mode != 'local-only' && "
    "!variables.virtualTolerations.exists(t, t.?operator.orValue('') == "
    "'Exists' && t.?effect.orValue('') == '') ? ["
    + _add_operation("/spec/tolerations", f"dyn(variables.tolerations + [{_REMOTE}])")
    + "] : [])",
    "(!has(object.spec.affinity) ? ["
    + _add_operation("/spec/affinity", "dyn({'nodeAffinity': dyn({})})")
    + "] : !has(object.spec.affinity.nodeAffinity) ? ["
    + _add_operation("/spec/affinity/nodeAffinity", "dyn({})")
    + "] : [])",
    "(size(variables.preferred) > 0 ? ["
    + _add_operation(f"/spec/affinity/nodeAffinity/{_PREFERRED}", "dyn(variables.preferred)")
    + "] : [])",
    "(size(variables.required) > 0 ? ["
    + _add_operation(
        f"/spec/affinity/nodeAffinity/{_REQUIRED}",
        "dyn({'nodeSelectorTerms': dyn(variables.required)})",
    )
    + "] : [])",
)


_EXPRESSION = f"variables.selected ? {' + '.join(_MUTATION)} : []"


def mutating_policy(version: str) -> Object:
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "MutatingAdmissionPolicy",
        "metadata": object_metadata(),
        "spec": {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": NAMESPACE_SELECTOR,
                "resourceRules": [POD_CREATION],
            },
            "matchConditions": MATCH_CONDITIONS,
            "variables": [{"name": k, "expression": v} for k, v in _VARIABLES.items()],
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _EXPRESSION}}],
        },
    }


def policy_binding(version: str) -> Object:
    """The MutatingAdmissionPolicyBinding, which puts the policy into force."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": object_metadata(),
        "spec": {"policyName": NAME},
    }
