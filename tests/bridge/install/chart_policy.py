"""The Helm chart's admission policy: the rendered one, with the chart's values for names.

python -m tests.bridge.install.chart_policy        writes the file
"""

from __future__ import annotations

import yaml

from bridge.install import installation_manifests
from bridge.install.installation import Installation
from bridge.rbac.rbac_manifests import HomePermissions
from sync.kube.api_resources import VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from tests.bridge.install.kustomize_base import MANIFESTS, Plain

FILE = MANIFESTS / "chart" / "templates" / "policy.yaml"
_NODE, _NAMESPACE = "the-node", "the-namespace"
_HEAD = "{{- /* Written by python -m tests.bridge.install.chart_policy; a test compares. */ -}}\n"
#: The chart's expressions for the names, in the order of their replacement.
_VALUES = (
    (f"{_NAMESPACE}.cluster-bridge-{_NODE}", '{{ include "bridge.role" . | replace ":" "." }}'),
    (f"cluster-bridge-{_NODE}", '{{ include "bridge.name" . }}'),
    (_NODE, "{{ .Values.node }}"),
    (_NAMESPACE, "{{ .Release.Namespace }}"),
)


def template() -> str:
    """The content of the file."""
    wanted = Installation(_NODE, "any", HomePermissions([_NODE]), namespace=_NAMESPACE)
    kinds = (VALIDATING_POLICIES.kind, VALIDATING_POLICY_BINDINGS.kind)
    rendered = installation_manifests.render(wanted, "")
    made = [it for it in rendered if it["kind"] in kinds]
    text = yaml.dump_all(made, Dumper=Plain, sort_keys=False, width=100)
    for name, value in _VALUES:
        text = text.replace(name, value)
    return _HEAD + text


if __name__ == "__main__":
    FILE.write_text(template())
