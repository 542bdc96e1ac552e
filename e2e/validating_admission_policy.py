"""Validating admission policies that a test creates in one of the clusters."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.bench.pods.audit_log import TEST_POLICIES
from e2e.clusters.cluster import Cluster
from e2e.kubectl import wait_for

_GROUP = "admissionregistration.k8s.io"
#: Seconds until an API server applies a policy.
_KNOWN_SECONDS = 60.0


@contextmanager
def validating(
    cluster: Cluster, namespace: str, resource: str, expression: str, *, violation: str
) -> Iterator[None]:
    """Updates of the resource in the namespace are rejected unless the CEL expression is true, with
    the default reason. ``violation`` is an object that violates it, as a manifest of one that
    exists."""
    name = f"{TEST_POLICIES}{uuid.uuid4().hex[:8]}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}
    constraints = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceRules": [{**rule, "operations": ["UPDATE"]}],
    }
    spec = {"matchConstraints": constraints, "validations": [{"expression": expression}]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    items = [
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": f"ValidatingAdmissionPolicy{suffix}",
            "metadata": {"name": name},
            "spec": content,
        }
        for suffix, content in (("", spec), ("Binding", binding))
    ]
    listed = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.kubectl("apply", "-f", "-", input=json.dumps(listed))

    def denied() -> bool:
        args = ("replace", "-n", namespace, "--dry-run=server", "-f", "-")
        return name in cluster.kubectl(*args, input=violation, check=False).stderr

    try:
        wait_for(denied, "the API server applies the policy", seconds=_KNOWN_SECONDS)
        yield
    finally:
        for which in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            cluster.kubectl("delete", f"{which}.{_GROUP}", name, "--ignore-not-found")
    wait_for(lambda: not denied(), "the API server forgets the policy", seconds=_KNOWN_SECONDS)
