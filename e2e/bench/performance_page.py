"""docs/development/performance.md: its tables are made from reports. Pure.

What is measured again replaces what was there; what no report is of stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from e2e.bench.report_tables import cell_of, grid, title
from e2e.bench.targets import RELAY, TARGETS, Target, Verdict, verdict

FILE = Path(__file__).parents[2] / "docs" / "development" / "performance.md"

_MADE = "made by `python -m e2e.bench table --write REPORT...`: do not edit"
TARGETS_BEGIN = f"<!-- targets, {_MADE} -->"
RELAY_BEGIN = f"<!-- targets of the relay, {_MADE} -->"
FIGURES_BEGIN = f"<!-- figures, {_MADE} -->"
END = "<!-- end -->"

Json = Mapping[str, Any]


def renewed(document: str, reports: Sequence[Json]) -> str:
    """The document with its tables made anew; what is around them stays.

    :raises ValueError: the marks between which they belong are not there.
    """
    for begin, wanted in ((TARGETS_BEGIN, TARGETS), (RELAY_BEGIN, RELAY)):
        document = _between(document, begin, partial(targets, reports, wanted))
    return _between(document, FIGURES_BEGIN, partial(figures, reports))


def _between(document: str, begin: str, text: Callable[[str], str]) -> str:
    before, begun, rest = document.partition(begin)
    old, end, after = rest.partition(END)
    if not (begun and end):
        raise ValueError(f"no {begin!r} … {END!r} in {FILE.name}")
    return f"{before}{begin}\n\n{text(old)}\n\n{end}{after}"


def targets(reports: Sequence[Json], wanted: Sequence[Target] = TARGETS, old: str = "") -> str:
    """A table with a row for every target, whether it was measured or not. ``old`` is the table
    that it replaces."""
    lines = ["| what | target | found | | printed by |", "|---|---|---:|---|---|"]
    for target in wanted:
        report = _of(target, reports)
        begin = f"| {target.what} | {Verdict(target).wanted} |"
        before = [line for line in old.splitlines() if line.startswith(begin)]
        if report is None and before:
            lines.append(before[0])
            continue
        found = verdict(target, report) if report else Verdict(target)
        cell = cell_of(report["figures"][target.figure]) if report else "-"
        asked = report["asked"] if report else target.shape
        command = f"`{_command(target.benchmark, asked)}`"
        row = (target.what, found.wanted, cell, found.word, command)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _of(target: Target, reports: Sequence[Json]) -> Json | None:
    """The report to judge by: the last one of the size that is meant, or else the last one."""
    found = [
        report
        for report in reports
        if report["benchmark"] == target.benchmark and target.figure in report["figures"]
    ]
    meant = [report for report in found if not verdict(target, report).elsewhere]
    return next(reversed(meant or found), None)


def figures(reports: Sequence[Json], old: str = "") -> str:
    """Every figure of every report but those about streams, a section a report. ``old`` are the
    sections that these replace, where they are of the same benchmark."""
    found = {report["benchmark"]: "" for report in reports if report["benchmark"] != "streams"}
    kept = {_benchmark(it): it.strip() for it in re.split(r"(?m)^(?=### )", old) if it.strip()}
    kept.pop("", None)
    for report in reports:
        name = report["benchmark"]
        if name in found:
            found[name] = f"{found[name]}\n\n{_figures(report)}".strip()
    return "\n\n".join({**kept, **found}.values()) or "None yet."


def _benchmark(section: str) -> str:
    return section.removeprefix("### ").partition(":")[0] if section.startswith("### ") else ""


def _figures(report: Json) -> str:
    head, *rows = grid(report)
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    machine = report["machine"]
    where = f"{machine['cpus']} CPUs, {machine['system']}, Python {machine['python']}"
    command = _command(report["benchmark"], report["asked"])
    return f"### {title(report)}\n\n`{command}`, on {where}\n\n{table}"


def _command(benchmark: str, asked: Json) -> str:
    given = f" -n {asked['pods']}" if "pods" in asked else ""
    if asked.get("idle"):
        given += f" --idle {asked['idle']}"
    if asked.get("scale", 1) != 1:
        given += f" --scale {asked['scale']:g}"
    return f"python -m e2e.bench {benchmark}{given}"
