"""docs/reference/chart-values.md, from the chart's values.yaml and values.schema.json.

The comment above a value in values.yaml is its description; the schema has types and limits, and
describes what an entry of `remotes` has beside the values of `defaults`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_CHART = Path(__file__).parents[2] / "manifests" / "chart"

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
    rows = []
    for path, meaning in value_comments(text):
        default: Any = yaml.safe_load(text)
        kind: Any = schema
        for name in path.split("."):
            default, kind = default[name], kind["properties"][name]
        if "$ref" in kind:
            kind = {"type": "object"}
        shown = "" if path == "defaults" or default == "" else f"`{json.dumps(default)}`"
        rows.append(f"| `{path}` | {_type(kind)} | {shown} | {meaning} |")
        if path == "remotes":
            rows += _entry_rows(kind["items"], schema["properties"]["defaults"]["properties"])
    return _HEAD + "\n".join(rows) + "\n\n`allNamespaces` and `bind` exclude each other.\n"


def _entry_rows(entry: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    """The rows for what only an entry of the list has."""
    for name, kind in entry["properties"].items():
        if name not in defaults:
            shown = "required" if name in entry["required"] else ""
            yield f"| `remotes[].{name}` | {_type(kind)} | {shown} | {kind['description']}. |"


def value_comments(values: str) -> Iterator[tuple[str, str]]:
    """The path of each value of values.yaml, and below `defaults`, with the comment above it."""
    comment: list[str] = []
    parent = ""
    for line in values.splitlines():
        if match := re.match(r" *# ?(.*)", line):
            comment.append(match[1])
        elif match := re.match(r"(\w+):", line):
            parent = "defaults." if match[1] == "defaults" else ""
            yield match[1], _markdown(comment)
            comment = []
        elif parent and (match := re.match(r"  (\w+):", line)):
            yield f"{parent}{match[1]}", _markdown(comment)
            comment = []


def _markdown(comment: list[str]) -> str:
    """The lines of a comment as the text of a table's cell; indented lines are commands."""
    words = [f"`{line.strip()}`" if line.startswith("  ") else line.strip() for line in comment]
    return " ".join(words).replace("|", "\\|")


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{it}`" for it in schema["enum"])
    if schema["type"] == "array":
        return f"list of {schema['items']['type']}s"
    return str(schema["type"])
