"""The tables of docs/development/conformance.md, from selection and exceptions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.conformance.selection import GROUPS, SKIPS, STORAGE_GROUPS, Rule

FILE = Path(__file__).parents[2] / "docs" / "development" / "conformance.md"

_BEGIN = "<!-- made by `python -m e2e.conformance document`: do not edit -->"
_END = "<!-- end -->"


def renewed(document: str, exceptions: Mapping[str, str]) -> str:
    """The document with re-generated tables; all other text stays.

    :raises ValueError: the marks of the tables are missing.
    """
    before, begin, rest = document.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"no {_BEGIN!r} … {_END!r} in {FILE.name}")
    return f"{before}{begin}\n\n{_tables(exceptions)}\n{end}{after}"


def _tables(exceptions: Mapping[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in exceptions.items():
        by_reason.setdefault(reason, []).append(name)
    excused = [(f"`{name}`", reason) for reason, names in by_reason.items() for name in names]
    none = "None."
    parts = [
        "## What is run",
        _table(("tests", "which are"), _rows(GROUPS)),
        "## What is run on volumes, and alone with `--storage`",
        _table(("tests", "which are"), _rows(STORAGE_GROUPS)),
        "## What is left out, on both nodes",
        _table(("tests", "because a test"), _rows(SKIPS)),
        "## Exceptions: what the real node passes and the virtual node need not",
        _table(("test", "reason"), excused) if excused else none,
    ]
    return "\n\n".join(parts) + "\n"


def _rows(rules: Sequence[Rule]) -> list[tuple[str, str]]:
    return [(f"`{rule.pattern}`", rule.reason) for rule in rules]


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {left} | {right} |" for left, right in map(_escaped, lines))


def _escaped(row: tuple[str, str]) -> tuple[str, str]:
    left, right = (cell.replace("|", r"\|") for cell in row)
    return left, right
