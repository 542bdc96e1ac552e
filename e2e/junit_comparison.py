"""Compares the results of several test runs in a table for the documentation.

    python -m e2e.junit_comparison native=native.xml kind=kind.xml

Each argument names a run and its file from pytest's `--junitxml`; `make test-e2e` and
`make test-kind` write one into .results. A run in parts is named several times; the last result of
a test counts. A row is a test file: passed and total tests, and their seconds. Tests that did not
pass are listed below. Exit status 1 if there are any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

#: Child elements of a test that did not pass.
_NOT_PASSED = ("failure", "error", "skipped")


@dataclass(frozen=True, slots=True)
class Result:
    """One test: its module, name, outcome, and seconds including fixtures."""

    module: str
    name: str
    ended: str
    seconds: float


def read(text: str) -> list[Result]:
    """The results in a JUnit file; two entries of a test (call and teardown) are merged."""
    found: dict[tuple[str, str], Result] = {}
    for case in ET.fromstring(text).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        ended = next((it for it in _NOT_PASSED if case.find(it) is not None), "passed")
        before = found.get((module, name))
        seconds = float(case.get("time", "0")) + (before.seconds if before else 0)
        if before is not None and before.ended != "passed":
            ended = before.ended
        found[module, name] = Result(module, name, ended, seconds)
    return list(found.values())


def joined(parts: Iterable[Sequence[Result]]) -> list[Result]:
    """Joins the parts of a run; the last result of a test counts."""
    return list({(it.module, it.name): it for part in parts for it in part}.values())


def table(runs: Mapping[str, Sequence[Result]]) -> str:
    """Markdown: a row per module, a column per run, and a row of sums."""
    modules = sorted({it.module for results in runs.values() for it in results})
    lines = [_row(["tests", *runs]), _row(["---"] * (1 + len(runs)))]
    for module in modules:
        own = [[it for it in results if it.module == module] for results in runs.values()]
        lines.append(_row([f"`{module.rpartition('.')[2]}`", *map(_cell, own)]))
    lines.append(_row(["**all**", *(_cell(results) for results in runs.values())]))
    return "\n".join(lines)


def not_passed(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """One line for each test that did not pass."""
    return [
        f"- {name}: `{it.module.rpartition('.')[2]}::{it.name}`: {it.ended}"
        for name, results in runs.items()
        for it in results
        if it.ended != "passed"
    ]


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return "-"
    passed = sum(it.ended == "passed" for it in results)
    return f"{passed}/{len(results)}, {sum(it.seconds for it in results):.0f} s"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m e2e.junit_comparison", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE")
    parts: dict[str, list[list[Result]]] = {}
    for argument in parser.parse_args().runs:
        name, equals, file = argument.partition("=")
        if not equals:
            parser.error(f"{argument}: must be NAME=FILE")
        parts.setdefault(name, []).append(read(Path(file).read_text()))
    runs = {name: joined(own) for name, own in parts.items()}
    print(table(runs))
    if lines := not_passed(runs):
        print("\n".join(["", *lines]))
        sys.exit(1)


if __name__ == "__main__":
    main()
