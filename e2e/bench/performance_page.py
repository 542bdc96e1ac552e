"""The tables of docs/development/performance.md, generated from reports. Pure.

New measurements replace previous ones; rows without a report stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from e2e.bench.report_tables import cell_of, grid, title
from e2e.bench.targets import RELAY, REMOTES, TARGETS, VOLUME, Target, Verdict, verdict

FILE = Path(__file__).parents[2] / "docs" / "development" / "performance.md"

_MADE = "made by `python -m e2e.bench table --write REPORT...`: do not edit"
TARGETS_BEGIN = f"<!-- targets, {_MADE} -->"
RELAY_BEGIN = f"<!-- targets of the relay, {_MADE} -->"
FIGURES_BEGIN = f"<!-- figures, {_MADE} -->"
END = "<!-- end -->"

#: The targets of the first table.
FIRST = (*TARGETS, *VOLUME, *REMOTES)

Json = Mapping[str, Any]


def renewed(document: str, reports: Sequence[Json]) -> str:
    """The document with re-generated tables; all other text stays.

    :raises ValueError: the marks of the tables are missing.
    """
    for begin, wanted in ((TARGETS_BEGIN, FIRST), (RELAY_BEGIN, RELAY)):
        document = _between(document, begin, partial(targets, reports, wanted))
    return _between(document, FIGURES_BEGIN, partial(figures, reports))


def _between(document: str, begin: str, text: Callable[[str], str]) -> str:
    before, begun, rest = document.partition(begin)
    old, end, after = rest.partition(END)
    if not (begun and end):
        raise ValueError(f"no {begin!r} … {END!r} in {FILE.name}")
    return f"{before}{begin}\n\n{text(old)}\n\n{end}{after}"


def targets(reports: Sequence[Json], wanted: Sequence[Target] = FIRST, old: str = "") -> str:
    """A table with a row for every target, measured or not. ``old`` is the table that it
    replaces."""
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
        parameters = report["asked"] if report else target.shape
        command = f"`{_command(target.benchmark, parameters)}`"
        row = (target.what, found.wanted, cell, found.word, command)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _of(target: Target, reports: Sequence[Json]) -> Json | None:
    """The report for the verdict: the last one of the target's size, else the last one."""
    found = [
        report
        for report in reports
        if report["benchmark"] == target.benchmark and target.figure in report["figures"]
    ]
    meant = [report for report in found if not verdict(target, report).elsewhere]
    return next(reversed(meant or found), None)


def figures(reports: Sequence[Json], old: str = "") -> str:
    """Every figure of every report except those about streams, a section per report. ``old`` are
    the previous sections, which reports of the same benchmark replace."""
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


def _command(benchmark: str, parameters: Json) -> str:
    options = f" -n {parameters['pods']}" if "pods" in parameters else ""
    if parameters.get("kilobytes"):
        options += f" --kilobytes {parameters['kilobytes']} --only bridge"
    if parameters.get("idle"):
        options += f" --idle {parameters['idle']}"
    return f"python -m e2e.bench {benchmark}{options}"
