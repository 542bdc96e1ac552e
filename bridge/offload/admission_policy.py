"""The objects at home that have new pods of offloaded namespaces changed. Pure.

Two ways, and one of them at a time: a MutatingAdmissionPolicy, by which the API server does it
itself, in CEL; or a webhook (`bridge.offload.standalone_webhook`). Both say the same as
`translators.offload_patch.patch`. Neither can lock a cluster out: they see pods alone, when they
are
made, in namespaces that have our label, and where they fail the pod is made as it is.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from sync.kube.resources import MUTATING_WEBHOOKS, Resource
from translators.identity import DOMAIN, LABEL_VIRTUAL
from translators.objects import Object, metadata
from translators.offload_patch import (
    ANNOTATION_NODE_SELECTOR,
    LABEL_OFFLOAD,
    POLICIES,
    PREFERENCE_WEIGHT,
)

GROUP = "admissionregistration.k8s.io"
#: The name of each of these objects.
NAME = "cluster-bridge-offload"
#: Says on each of them that it is ours.
LABEL_PART = f"{DOMAIN}/part-of"
#: Versions of the policy's API, the best first.
VERSIONS = ("v1", "v1beta1", "v1alpha1")
WEBHOOKS = MUTATING_WEBHOOKS
#: Seconds that the API server waits for the webhook before it makes the pod as it is.
WEBHOOK_SECONDS = 2
#: Where the webhook is asked.
PATH = "/mutate"
#: Of the Service before a webhook in home's cluster.
SERVICE_PORT = 443


def policy_resource(version: str) -> Resource:
    """The policy's kind in a version of the API."""
    plural = "mutatingadmissionpolicies"
    return Resource(GROUP, version, plural, "MutatingAdmissionPolicy", namespaced=False)


def binding_resource(version: str) -> Resource:
    """What puts a policy into force."""
    plural = "mutatingadmissionpolicybindings"
    return Resource(GROUP, version, plural, "MutatingAdmissionPolicyBinding", namespaced=False)


_NAMESPACES: Object = {
    "matchExpressions": [{"key": LABEL_OFFLOAD, "operator": "In", "values": list(POLICIES)}]
}
_PODS: Object = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "operations": ["CREATE"],
    "resources": ["pods"],
    "scope": "Namespaced",
}
_CONDITIONS: list[Object] = [
    {
        "name": "not-of-a-daemonset",
        "expression": "!object.metadata.?ownerReferences.orValue([]).exists(o, "
        "o.kind == 'DaemonSet' && has(o.controller) && o.controller)",
    },
    {
        "name": "names-no-node",
        "expression": "object.spec.?nodeName.orValue('') == ''",
    },
]


def _metadata() -> Object:
    return {"name": NAME, "labels": {LABEL_PART: "offload"}}


# -- by the API server itself --------------------------------------------------------------

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_LOCAL = f"{{'key': dyn('{LABEL_VIRTUAL}'), 'operator': dyn('DoesNotExist')}}"
_REMOTE = f"{{'key': dyn('{LABEL_VIRTUAL}'), 'operator': dyn('Exists')}}"
_NODES = "object.spec.?affinity.?nodeAffinity"


def _narrowed(more: str, *, freed: bool) -> str:
    """Every term with ``more``, and, if ``freed``, without what it says of virtual nodes."""
    own = "t.?matchExpressions.orValue([])"
    if freed:
        own += f".filter(e, e.key != '{LABEL_VIRTUAL}')"
    return (
        f"variables.terms.map(t, {{'matchExpressions': dyn({own} + {more}), "
        "'matchFields': dyn(t.?matchFields.orValue([]))})"
    )


def _put(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: '{path}', value: {value}}}"


_VARIABLES = {
    "mode": f"namespaceObject.metadata.labels['{LABEL_OFFLOAD}']",
    "selector": "namespaceObject.metadata.?annotations"
    f"[?'{ANNOTATION_NODE_SELECTOR}'].orValue('').split(',').filter(p, p.contains('='))",
    "chosen": "variables.selector.map(p, {'key': dyn(p.split('=')[0]), 'operator': dyn('In'), "
    "'values': dyn([p.split('=')[1]])})",
    "tolerations": "object.spec.?tolerations.orValue([])",
    "ours": f"variables.tolerations.filter(t, t.?key.orValue('') == '{LABEL_VIRTUAL}')",
    "given": f"{_NODES}.?{_REQUIRED}.?nodeSelectorTerms.orValue([])",
    "terms": "size(variables.given) == 0 ? [dyn({})] : variables.given",
    "required": "variables.mode == 'remote-only' ? "
    + _narrowed(f"[{_REMOTE}] + variables.chosen", freed=True)
    + " : variables.mode == 'local-only' ? "
    + _narrowed(f"[{_LOCAL}]", freed=True)
    + " : size(variables.chosen) == 0 ? [] : "
    + _narrowed(f"[{_LOCAL}]", freed=False)
    + " + "
    + _narrowed("variables.chosen", freed=False),
    "preferred": f"variables.mode != 'burst' ? [] : {_NODES}.?{_PREFERRED}.orValue([]) + "
    f"[{{'weight': dyn({PREFERENCE_WEIGHT}), 'preference': dyn({{'matchExpressions': "
    f"[{_LOCAL}]}})}}]",
}
#: Lists of operations, one behind the other.
_MUTATION = (
    (
        f"(variables.mode == 'local-only' && '{LABEL_VIRTUAL}' in "
        "object.spec.?nodeSelector.orValue({}) ? [JSONPatch{op: 'remove', "
        f"path: '/spec/nodeSelector/' + jsonpatch.escapeKey('{LABEL_VIRTUAL}')}}] : [])"
    ),
    "(variables.mode == 'local-only' && size(variables.ours) > 0 ? ["
    + _put(
        "/spec/tolerations",
        f"dyn(variables.tolerations.filter(t, t.?key.orValue('') != '{LABEL_VIRTUAL}'))",
    )
    + "] : [])",
    "(variables.mode != 'local-only' && !variables.ours.exists(t, t.?operator.orValue('') == "
    "'Exists' && t.?effect.orValue('') == '') ? ["
    + _put("/spec/tolerations", f"dyn(variables.tolerations + [{_REMOTE}])")
    + "] : [])",
    "(!has(object.spec.affinity) ? ["
    + _put("/spec/affinity", "dyn({'nodeAffinity': dyn({})})")
    + "] : !has(object.spec.affinity.nodeAffinity) ? ["
    + _put("/spec/affinity/nodeAffinity", "dyn({})")
    + "] : [])",
    "(size(variables.preferred) > 0 ? ["
    + _put(f"/spec/affinity/nodeAffinity/{_PREFERRED}", "dyn(variables.preferred)")
    + "] : [])",
    "(size(variables.required) > 0 ? ["
    + _put(
        f"/spec/affinity/nodeAffinity/{_REQUIRED}",
        "dyn({'nodeSelectorTerms': dyn(variables.required)})",
    )
    + "] : [])",
)


def mutating_policy(version: str) -> Object:
    """The MutatingAdmissionPolicy."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "MutatingAdmissionPolicy",
        "metadata": _metadata(),
        "spec": {
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"namespaceSelector": _NAMESPACES, "resourceRules": [_PODS]},
            "matchConditions": _CONDITIONS,
            "variables": [{"name": k, "expression": v} for k, v in _VARIABLES.items()],
            "mutations": [
                {"patchType": "JSONPatch", "jsonPatch": {"expression": " + ".join(_MUTATION)}}
            ],
        },
    }


def policy_binding(version: str) -> Object:
    """What puts it into force."""
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": _metadata(),
        "spec": {"policyName": NAME},
    }


# -- by a webhook --------------------------------------------------------------------------


#: On a configuration: which `bridge webhook` process registered it.
ANNOTATION_PROCESS = f"{DOMAIN}/webhook-process"


def url_configuration(url: str, authority: bytes, process: str = "") -> Object:
    """The MutatingWebhookConfiguration of a webhook at ``url``, trusted by this PEM; ``process``
    identifies the process that registers it."""
    client = {"url": url + PATH, "caBundle": b64encode(authority).decode()}
    meta = _metadata()
    if process:
        meta["annotations"] = {ANNOTATION_PROCESS: process}
    return _configuration(meta, client)


def registered_process(configuration: Object) -> str:
    """Which process registered it; "" where that is not recorded."""
    annotations = metadata(configuration).get("annotations") or {}
    return str(annotations.get(ANNOTATION_PROCESS) or "")


def has_url(configuration: Object, url: str) -> bool:
    """Whether home's API server asks a webhook at ``url`` by it."""
    return any(
        (it.get("clientConfig") or {}).get("url") == url + PATH
        for it in configuration.get("webhooks") or ()
    )


def is_up_to_date(current: Object, wanted: Object) -> bool:
    """Whether ``current`` has all that ``wanted`` has. The API server adds defaults, also within
    the list of webhooks."""
    return all(_has(current.get(key), value) for key, value in wanted.items())


def _has(current: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(current, dict) and all(_has(current.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        return (
            isinstance(current, list)
            and len(current) == len(wanted)
            and all(map(_has, current, wanted))
        )
    return bool(current == wanted)


def service_configuration(meta: Object, namespace: str, service: str) -> Object:
    """The one of a webhook behind a Service of home's, which has the bundle put in itself."""
    client = {"namespace": namespace, "name": service, "path": PATH, "port": SERVICE_PORT}
    ours = {**meta["labels"], LABEL_PART: "offload"}
    own = {"name": meta["name"], "labels": ours}  # it is in no namespace
    return _configuration(own, {"service": client})


def ca_bundle_patch(authority: bytes) -> Object:
    """The strategic merge patch by which a configuration of ours trusts this PEM."""
    bundle = {"caBundle": b64encode(authority).decode()}
    return {"webhooks": [{"name": _WEBHOOK, "clientConfig": bundle}]}


def ca_bundle(configuration: Object) -> bytes:
    """The PEM that it trusts; b"" where it trusts none."""
    for it in configuration.get("webhooks") or ():
        if it.get("name") == _WEBHOOK:
            return b64decode((it.get("clientConfig") or {}).get("caBundle") or "")
    return b""


#: Its name within a configuration.
_WEBHOOK = f"offload.{DOMAIN}"


def _configuration(meta: Object, client: Object) -> Object:
    return {
        "apiVersion": WEBHOOKS.api_version,
        "kind": WEBHOOKS.kind,
        "metadata": meta,
        "webhooks": [
            {
                "name": _WEBHOOK,
                "clientConfig": client,
                "rules": [_PODS],
                "namespaceSelector": _NAMESPACES,
                "matchConditions": _CONDITIONS,
                "failurePolicy": "Ignore",
                "timeoutSeconds": WEBHOOK_SECONDS,
                "sideEffects": "None",
                "reinvocationPolicy": "Never",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
