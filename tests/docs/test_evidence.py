"""docs/development/evidence.md names existing tests for each claim of the user documentation."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from e2e.docs.generated_pages import DOCS, REPOSITORY

COMPARISON = (DOCS / "explanation/comparison.md").read_text("utf-8")
FAILURES = (DOCS / "explanation/failure-modes.md").read_text("utf-8")
THREATS = (REPOSITORY / "THREAT_MODEL.md").read_text("utf-8")
EVIDENCE = (DOCS / "development/evidence.md").read_text("utf-8")


def rows(page: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in page.splitlines()
        if line.startswith("| **")
    ]


@functools.cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((REPOSITORY / file).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {it.name for it in tree.body if isinstance(it, functions)}


def test_claims_and_evidence_have_the_same_rows() -> None:
    claims = [row[0] for row in [*rows(COMPARISON), *rows(FAILURES), *rows(THREATS)]]

    assert sorted(claims) == sorted(row[0] for row in rows(EVIDENCE))


@pytest.mark.parametrize("row", rows(EVIDENCE), ids=lambda row: row[0])
def test_tests_named_as_evidence_exist(row: list[str]) -> None:
    named = re.findall(r"`((?:e2e|tests)/[\w/]*test_\w+\.py)(?:::(test_\w+))?`", row[1])

    assert len(named) == row[1].count("`") // 2 > 0
    for file, name in named:
        tests = {it for it in names_in(file) if it.startswith("test_")}
        assert name in tests if name else tests, f"{file}::{name}"


def test_only_threats_name_whole_files_as_evidence() -> None:
    by_file = {row[0] for row in rows(EVIDENCE) if ".py`" in row[1]}

    assert by_file <= {row[0] for row in rows(THREATS)}


def test_each_threat_has_an_id() -> None:
    tables = re.findall(r"(?m)^\| (?:id \| )?threat .*\n\|-.*\n((?:\|.*\n)+)", THREATS)
    threats = "".join(tables).splitlines()
    ids = [row[0] for row in rows(THREATS)]

    assert len(ids) == len(threats) == len({*ids}) > 50
    assert all(re.fullmatch(r"\*\*[A-Z]\d+\*\*", it) for it in ids)


USER_PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "THREAT_MODEL.md",
    *(it for it in DOCS.rglob("*.md") if "development" not in it.parts),
]


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda it: it.stem)
def test_user_documentation_names_no_tests(page: Path) -> None:
    assert re.findall(r"\btest_\w+", page.read_text("utf-8")) == []


def test_guaranteed_times_equal_the_asserted_ones() -> None:
    tree = ast.parse((REPOSITORY / "e2e" / "test_failure_modes.py").read_text("utf-8"))
    assigned = next(
        it
        for it in tree.body
        if isinstance(it, ast.Assign) and ast.unparse(it.targets[0]).endswith(", STOPPED)")
    )
    reported, healed, stopped = ast.literal_eval(assigned.value)
    assert f"within {reported:.0f} s (guaranteed)" in FAILURES
    assert f"within {healed:.0f} s (guaranteed)" in FAILURES
    assert f"at most {stopped:.0f} s, whatever hangs (guaranteed)" in FAILURES
