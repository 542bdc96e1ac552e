"""Admission policies that a test creates in one of the clusters.

    with mutating(remote, namespace, patch("/spec/hostUsers", None, op="remove")):
        ...

API servers apply a policy some time after its creation or deletion: `mutating` and `validating`
wait until a dry run shows it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from e2e.bench.pods.audit_log import TEST_POLICIES
from e2e.clusters.cluster import Cluster
from e2e.kubectl import Json, wait_for
from e2e.workload_manifests import BUSYBOX

_GROUP = "admissionregistration.k8s.io"
#: Annotation of a probe: the name of the policy that it looks for.
_PROBE = "e2e.example.com/probe"
#: Seconds until an API server applies a policy: it watches policies and compiles them.
_KNOWN_SECONDS = 60.0


@contextmanager
def mutating(
    cluster: Cluster,
    namespace: str,
    *patches: str,
    when: str = "true",
    operations: Sequence[str] = ("CREATE",),
) -> Iterator[None]:
    """Pods of the namespace, which must exist, are changed by the JSON patches (CEL expressions of
    ``JSONPatch``) if ``when`` is true."""
    name = f"{TEST_POLICIES}{uuid.uuid4().hex[:8]}"
    mark_probe = (
        f"object.metadata.?annotations[?'{_PROBE}'].orValue('') != '{name}' ? [] : "
        f"[JSONPatch{{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('{_PROBE}'), "
        "value: 'seen'}]"
    )
    expressions = [f"({when}) ? [{patch}] : []" for patch in patches]
    spec = {
        "matchConstraints": _constraints(namespace, "pods", operations),
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
            for expression in (*expressions, mark_probe)
        ],
    }

    def works() -> bool:
        annotations = _probed(cluster, namespace, name)["metadata"]["annotations"]
        return bool(annotations[_PROBE] == "seen")

    with _policy(cluster, name, spec, kind="Mutating", version="v1beta1", binding={}):
        wait_for(works, "the API server mutates pods", seconds=_KNOWN_SECONDS)
        yield
    wait_for(lambda: not works(), "the API server no longer mutates pods", seconds=_KNOWN_SECONDS)


@contextmanager
def validating(
    cluster: Cluster, namespace: str, resource: str, expression: str, *, violation: str
) -> Iterator[None]:
    """Updates of the resource in the namespace are rejected unless the CEL expression is true, with
    the default reason. ``violation`` is an object that violates it, as a manifest of one that
    exists."""
    name = f"{TEST_POLICIES}{uuid.uuid4().hex[:8]}"
    spec = {
        "matchConstraints": _constraints(namespace, resource, ["UPDATE"]),
        "validations": [{"expression": expression}],
    }

    def denied() -> bool:
        args = ("replace", "-n", namespace, "--dry-run=server", "-f", "-")
        return name in cluster.kubectl(*args, input=violation, check=False).stderr

    binding = {"validationActions": ["Deny"]}
    with _policy(cluster, name, spec, kind="Validating", version="v1", binding=binding):
        wait_for(denied, "the API server applies the policy", seconds=_KNOWN_SECONDS)
        yield
    wait_for(lambda: not denied(), "the API server forgets the policy", seconds=_KNOWN_SECONDS)


@contextmanager
def _policy(
    cluster: Cluster, name: str, spec: Json, *, kind: str, version: str, binding: Json
) -> Iterator[None]:
    kinds = (f"{kind}AdmissionPolicy", f"{kind}AdmissionPolicyBinding")
    items = [
        {
            "apiVersion": f"{_GROUP}/{version}",
            "kind": each,
            "metadata": {"name": name},
            "spec": content,
        }
        for each, content in zip(kinds, (spec, {"policyName": name, **binding}), strict=True)
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(listed))
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", "--ignore-not-found", input=json.dumps(listed))


def _constraints(namespace: str, resource: str, operations: Sequence[str]) -> Json:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceRules": [{**rule, "operations": [*operations]}],
    }


def _probed(cluster: Cluster, namespace: str, name: str) -> Json:
    """The pod that the API server would create from a probe."""
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"probe-{name}", "annotations": {_PROBE: name}},
        "spec": {"containers": [{"name": "main", "image": BUSYBOX}]},
    }
    args = ("create", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-")
    found: Json = json.loads(cluster.kubectl(*args, input=json.dumps(probe)).stdout)
    return found


def patch(path: str, value: object, *, op: str = "add") -> str:
    """A ``JSONPatch`` in CEL."""
    value_field = "" if op == "remove" else f", value: {_cel(value)}"
    return f"JSONPatch{{op: '{op}', path: '{path}'{value_field}}}"


def _cel(value: object) -> str:
    """A JSON value in CEL; maps and lists may have values of several types."""
    if isinstance(value, dict):
        inner = ", ".join(f"{json.dumps(key)}: {_cel(it)}" for key, it in value.items())
        return f"dyn({{{inner}}})"
    if isinstance(value, list):
        return f"dyn([{', '.join(map(_cel, value))}])"
    return f"dyn({json.dumps(value)})"
