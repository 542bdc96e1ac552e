"""The options of `bridge join` in the schema of the Helm chart's values.

python -m tests.bridge.install.chart_schema        writes the file
"""

from __future__ import annotations

import json
from typing import Any

from bridge.cli.options.join_options import JOIN, PROCESS
from bridge.cli.options.option_declaration import ABSENT, Option
from bridge.cli.options.value_parsing import Duration
from tests.bridge.install.kustomize_base import MANIFESTS

FILE = MANIFESTS / "chart" / "values.schema.json"
#: Options that follow from other values of the chart.
_OTHER_VALUES = frozenset(
    {"kubeconfig", "context", "home-kubeconfig", "home-context", "name", "port"}
)
_SCALAR = ["string", "number"]


def content() -> str:
    """The content of the file."""
    schema = json.loads(FILE.read_text())
    schema["definitions"]["options"] = {
        "description": "Options of bridge join by their names",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            option.name: _schema(option)
            for option in (*JOIN, *PROCESS)
            if option.in_cluster != ABSENT and option.name not in _OTHER_VALUES
        },
    }
    return json.dumps(schema, indent=2) + "\n"


def _schema(option: Option) -> dict[str, Any]:
    """The JSON Schema of the option's values, in the forms of the file of `bridge join --file`."""
    schema: dict[str, Any] = {"description": option.help}
    if option.choices:
        schema["enum"] = list(option.choices)
    elif option.form == "map":
        values = {"type": [*_SCALAR, "boolean"]}
        schema["anyOf"] = [{"type": "string"}, {"type": "object", "additionalProperties": values}]
    elif option.form == "list":
        schema["anyOf"] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    elif isinstance(option.kind, Duration):
        schema |= {"type": _SCALAR, "minimum": option.kind.minimum}
    else:
        names = {bool: "boolean", int: "integer", float: "number"}
        schema["type"] = names.get(option.kind, _SCALAR)
    limits = {"minimum": option.minimum, "maximum": option.maximum, "default": option.default}
    return schema | {name: value for name, value in limits.items() if value is not None}


if __name__ == "__main__":
    FILE.write_text(content())
