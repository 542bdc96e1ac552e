"""Tests replace no private name of the product by its text; ruff's SLF001 finds the other uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Functions and methods whose first or second argument is the name of an attribute.
BY_NAME = {"getattr", "setattr", "delattr", "hasattr", "patch", "object"}


def private_names(source: str) -> Iterator[str]:
    """The private attributes that calls such as ``monkeypatch.setattr(module, "_name", ...)``
    name, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
        for argument in node.args[:2] if called in BY_NAME else ():
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                name = argument.value.rpartition(".")[2]
                if name.startswith("_") and not name.startswith("__"):
                    yield f"{node.lineno}: {argument.value}"


def test_tests_name_no_private_attribute() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{place}"
        for path in sorted(TESTS.rglob("*.py"))
        for place in private_names(path.read_text(encoding="utf-8"))
    ]
    assert found == []
