"""The Helm chart's admission policy: the rendered one, with the chart's values for names.

python -m tests.bridge.install.chart_policy        writes the file
"""

from __future__ import annotations

import re

import yaml

from bridge.install import installation_manifests
from bridge.install.installation import Installation
from bridge.rbac.rbac_manifests import HomePermissions
from sync.kube.api_resources import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from tests.bridge.install.kustomize_base import MANIFESTS, Plain

FILE = MANIFESTS / "chart" / "templates" / "policy.yaml"
_NODE, _NAMESPACE = "the-node", "the-namespace"
_HEAD = """\
{{- /* Written by python -m tests.bridge.install.chart_policy; a test compares. One policy confines
all accounts of the release's namespace: the name of an account ends with that of its node. */ -}}
"""
_PREFIX = f"system:serviceaccount:{_NAMESPACE}:cluster-bridge-"
_ACCOUNT = f"{_NAMESPACE}/cluster-bridge-{_NODE}"


def template() -> str:
    """The content of the file."""
    wanted = Installation(_NODE, "any", HomePermissions([_NODE]), namespace=_NAMESPACE)
    kinds = (VALIDATING_POLICIES.kind, VALIDATING_POLICY_BINDINGS.kind)
    policy, binding = (
        obj for obj in installation_manifests.render(wanted, "") if obj["kind"] in kinds
    )
    spec = policy["spec"]
    (of_account,) = spec["matchConditions"]
    of_account["name"] = "is-of-an-account-of-the-release"
    of_account["expression"] = f"request.userInfo.username.startsWith('{_PREFIX}')"
    length = f"{len(_PREFIX) - len(_NAMESPACE)} + size('{_NAMESPACE}')"
    node = f"request.userInfo.username.substring({length})"
    spec["variables"] = [
        {"name": "node", "expression": node},
        *(
            {**variable, "expression": _of_any_node(variable["expression"])}
            for variable in spec["variables"]
        ),
    ]
    for rule in spec["validations"]:
        rule["message"] = (
            rule["message"]
            .replace(
                f"ServiceAccount {_ACCOUNT}", f"a ServiceAccount of Cluster Bridge in {_NAMESPACE}"
            )
            .replace(_ACCOUNT, f"{_NAMESPACE}/ACCOUNT")
        )
    name = '{{ include "bridge.release" . }}.home'
    for obj in (policy, binding):
        obj["metadata"]["name"] = name
        obj["metadata"]["labels"]["app.kubernetes.io/instance"] = '{{ include "bridge.release" . }}'
    binding["spec"]["policyName"] = name
    text = yaml.dump_all([policy, binding], Dumper=Plain, sort_keys=False, width=100)
    assert _NODE not in text
    return _HEAD + text.replace(_NAMESPACE, "{{ .Release.Namespace }}")


def _of_any_node(expression: str) -> str:
    """The CEL expression with the variable `node` in place of the node's name in its texts."""

    def replace(match: re.Match[str]) -> str:
        before, after = match[1], match[2]
        parts = [f'"{before}"' if before else "", "variables.node", f'"{after}"' if after else ""]
        return " + ".join(filter(None, parts))

    return re.sub(rf'"([^"]*){_NODE}([^"]*)"', replace, expression)


if __name__ == "__main__":
    FILE.write_text(template())
