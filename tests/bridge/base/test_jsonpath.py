"""JSONPath templates, with the semantics of kubectl."""

from __future__ import annotations

import pytest

from bridge.base.join_settings import SettingsError
from bridge.base.jsonpath import fill_template, parse_template

DATA = {
    "nodes": [
        {"name": "a", "pods": {"total": 3}, "labels": {"x.y/z": "1"}, "ready": True},
        {"name": "b", "pods": None, "labels": {}, "ready": None},
    ]
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.nodes[*].name}", "a b"),
        ("{$.nodes[0].name}", "a"),
        ("{.nodes[-1].name}{.nodes[7].name}", "b"),
        ("{.nodes.*.pods.total}", "3"),
        ("{.nodes[0].labels['x.y/z']}", "1"),
        ("{.nodes[*].ready}", "true null"),
        ("{.nodes[0].pods}", '{"total": 3}'),
        ("{.missing.name}", ""),
        ('{range .nodes[*]}{.name}={.pods.total}{"\\n"}{end}', "a=3\nb=\n"),
        ("names: {range .nodes[*]}{@.name};{end}", "names: a;b;"),
        ("{.nodes[0]['name']} and {.nodes[1].name}", "a and b"),
    ],
)
def test_template_is_evaluated(template: str, text: str) -> None:
    assert fill_template(parse_template(template), DATA) == text


@pytest.mark.parametrize(
    "template",
    ["", "name", "{.a", "a}", "{.nodes[?(@.ready)]}", "{range .a}", "{..name}", "{.a[b]}", "{end}"],
)
def test_invalid_template_is_rejected(template: str) -> None:
    with pytest.raises(SettingsError, match="is not a JSONPath template; use a path in braces"):
        parse_template(template)
