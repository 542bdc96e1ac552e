"""The Helm chart's placement by policy: the rendered objects, with the chart's values.

python -m tests.bridge.install.chart_placement        writes the file
"""

from __future__ import annotations

import yaml

from bridge.placement.manifests import PlacementInstallation, placement_objects
from tests.bridge.install.kustomize_base import MANIFESTS, Plain

FILE = MANIFESTS / "chart" / "templates" / "placement.yaml"
_IMAGE, _NAMESPACE, _ADMISSION = "the-image", "the-namespace", "the-version"
_HEAD = (
    "{{- /* Written by python -m tests.bridge.install.chart_placement; a test compares. */ -}}\n"
    "{{- if .Values.placement.enabled }}\n"
)
_VALUES = (
    (_IMAGE, '{{ .Values.image | default (printf "cluster-bridge:%s" .Chart.AppVersion) }}'),
    (_NAMESPACE, "{{ .Release.Namespace }}"),
    (_ADMISSION, "{{ .Values.placement.admission }}"),
)
#: Uninstalling one release keeps the definition, and with it the policies.
_KEEP = {"helm.sh/resource-policy": "keep"}


def template() -> str:
    """The content of the file."""
    options = PlacementInstallation(_IMAGE, _NAMESPACE, admission=_ADMISSION)
    made = [it for it in placement_objects(options) if it["kind"] != "Namespace"]
    for it in made:
        if it["kind"] == "CustomResourceDefinition":
            it["metadata"]["annotations"] = _KEEP
    text = yaml.dump_all(made, Dumper=Plain, sort_keys=False, width=100)
    for name, value in _VALUES:
        text = text.replace(name, value)
    return _HEAD + text + "{{- end }}\n"


if __name__ == "__main__":
    FILE.write_text(template())
