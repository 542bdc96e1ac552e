"""docs/explanation/failure-modes.md: every row names tests, and all that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (REPOSITORY / "docs" / "explanation" / "failure-modes.md")
    .read_text("utf-8")
    .splitlines()
    if line.startswith("| **")
]


def test_all_that_can_fail_has_a_row() -> None:
    heads = " ".join(row[0] for row in ROWS)
    for what in ("Cut to the remote", "Cut to home", "Crash", "Upgrade", "Slow API server"):
        assert f"**{what}" in heads
    assert heads.count("**Lost credential of") == 2


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_is_shown_by_tests_that_exist(row: list[str]) -> None:
    assert len(row) == 5
    named = re.findall(r"`(e2e/\w+\.py)::(\w+)`", row[-1])
    assert len(named) == row[-1].count("`") // 2 > 0
    for file, name in named:
        tree = ast.parse((REPOSITORY / file).read_text("utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {it.name for it in tree.body if isinstance(it, functions)}, name


def test_what_is_promised_is_what_is_asserted() -> None:
    text = (REPOSITORY / "docs" / "explanation" / "failure-modes.md").read_text("utf-8")
    tree = ast.parse((REPOSITORY / "e2e" / "test_failure_modes.py").read_text("utf-8"))
    assigned = next(
        it
        for it in tree.body
        if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]) == "(TOLD, HEALED, STOPPED)"
    )
    told, healed, stopped = ast.literal_eval(assigned.value)
    assert f"within {told:.0f} s (promised)" in text
    assert f"within {healed:.0f} s (promised)" in text
    assert f"at most {stopped:.0f} s, whatever hangs (promised)" in text
