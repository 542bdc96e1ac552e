"""Each row of docs/explanation/comparison.md names tests that show it, and these exist."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from e2e.docs.pages import DOCS, REPOSITORY

PAGE = (DOCS / "explanation/comparison.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| **")
]


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {it.name for it in tree.body if isinstance(it, functions)}


def test_it_compares_with_those_that_it_names() -> None:
    for other in ("tensile-kube", "Liqo", "Admiralty", "virtual-kubelet"):
        assert f"**[{other}](" in PAGE, "when to take it instead"
    assert {len(row) for row in ROWS} == {6, 4}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_is_shown_by_tests_that_exist(row: list[str]) -> None:
    named = re.findall(r"`((?:e2e|tests)/[\w/]+\.py)::(test_\w+)`", row[-1])
    assert len(named) == row[-1].count("`") // 2 > 0
    for file, name in named:
        assert name in names_in(file), f"{file}::{name}"
