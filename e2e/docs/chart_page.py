"""docs/reference/chart-values.md, from the chart's values.yaml and values.schema.json.

The comment above a value in values.yaml is its description; the schema has its type and limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bridge.cli.options.join_options import JOIN

_CHART = Path(__file__).parents[2] / "manifests" / "chart"

#: Value → the option of `bridge join` that it sets.
_JOIN_OPTIONS = {
    "network": "network",
    "serviceAccounts": "service-accounts",
    "servingCertificate": "serving-certificate",
}

_HEAD = """\
# Chart values

<!-- made by `python -m e2e.docs write`: do not edit -->

Values of the Helm chart in [`manifests/chart`](../../manifests/chart)
([install with Helm](../how-to/install-with-helm.md)). The chart's schema validates them; other keys
are rejected.

| value | type | default | meaning |
|---|---|---|---|
"""


def page() -> str:
    """The page."""
    schema = json.loads((_CHART / "values.schema.json").read_text("utf-8"))
    text = (_CHART / "values.yaml").read_text("utf-8")
    defaults: dict[str, Any] = yaml.safe_load(text)
    rows = [
        f"| `{name}` | {_type(schema['properties'][name])} | {_default(name, value, schema)} "
        f"| {_option_help(name) or meaning} |"
        for name, meaning in value_comments(text)
        for value in [defaults[name]]
    ]
    return _HEAD + "\n".join(rows) + "\n\n`allNamespaces` and `bind` exclude each other.\n"


def value_comments(values: str) -> Iterator[tuple[str, str]]:
    """Each top-level value of values.yaml with the comment above it. Values that follow without an
    empty line or a comment share the last comment."""
    comment: list[str] = []
    is_used = False
    for line in values.splitlines():
        if line.startswith("#"):
            comment = [] if is_used else comment
            comment.append(line.removeprefix("#").removeprefix(" "))
            is_used = False
        elif match := re.match(r"(\w+):", line):
            is_used = True
            yield match[1], _markdown(comment)


def _markdown(comment: list[str]) -> str:
    """The lines of a comment as the text of a table's cell; indented lines are commands."""
    words = [f"`{line.strip()}`" if line.startswith("  ") else line.strip() for line in comment]
    return " ".join(words).replace("|", "\\|")


def _option_help(value: str) -> str:
    """The help of the option of `bridge join` that the value sets; "" for other values."""
    option = next((it for it in JOIN if it.name == _JOIN_OPTIONS.get(value)), None)
    return f"`--{option.name}`: {option.help}".replace("|", "\\|") if option else ""


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{it}`" for it in schema["enum"])
    if schema["type"] == "array":
        return "list of strings"
    return str(schema["type"])


def _default(name: str, value: object, schema: dict[str, Any]) -> str:
    if name in schema["required"]:
        return "required"
    return f"`{json.dumps(value)}`" if value != "" else ""
