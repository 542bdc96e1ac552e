"""The options of `bridge join` in the schema of the Helm chart's values.

python -m tests.bridge.install.chart_schema        writes the file
"""

from __future__ import annotations

import json

from bridge.cli.options.join_options import JOIN, PROCESS
from tests.bridge.install.kustomize_base import MANIFESTS

FILE = MANIFESTS / "chart" / "values.schema.json"
#: Options that follow from other values of the chart.
_OTHER_VALUES = frozenset(
    {"kubeconfig", "context", "home-kubeconfig", "home-context", "name", "port"}
)


def content() -> str:
    """The content of the file."""
    schema = json.loads(FILE.read_text())
    schema["definitions"]["options"] = {
        "description": "Options of bridge join by their names",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            option.name: option.schema()
            for option in (*JOIN, *PROCESS)
            if not option.is_rejected_in_cluster and option.name not in _OTHER_VALUES
        },
    }
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(content())
