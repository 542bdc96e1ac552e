"""Tables of reports: figures by path, and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from e2e.bench.targets import Verdict, judge, suffix

#: Width of output that is not a terminal.
_PLAIN_WIDTH = 140

Json = Mapping[str, Any]


def show(report: Json) -> None:
    """Prints a report on standard error: figures by path, and targets."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console = Console(stderr=True, width=_PLAIN_WIDTH, no_color=True)
    for one in parts(report):
        if failed := one.get("failed"):
            console.print(f"{one['benchmark']} failed: {failed}", markup=False)
        if one.get("figures"):
            console.print(_figures(one))
        if verdicts := judge(one):
            console.print(_verdicts(verdicts))


def parts(report: Json) -> Sequence[Json]:
    """The reports of a suite; of a single report, that report."""
    found: Sequence[Json] = report.get("reports", [report])
    return found


def _figures(report: Json) -> Table:
    head, *rows = grid(report)
    table = Table(title=title(report), title_justify="left")
    table.add_column(head[0])
    for way in head[1:]:
        table.add_column(way, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def title(report: Json) -> str:
    """The benchmark and its parameters."""
    parameters = ", ".join(f"{key} {value}" for key, value in report.get("asked", {}).items())
    return f"{report['benchmark']}: {parameters}"


def grid(report: Json) -> list[list[str]]:
    """The figures as cells, the header first: a column per path, a row per figure."""
    ways = list(dict.fromkeys(name.partition(".")[0] for name in report["figures"]))
    # In the order of the path with most figures, which is the bridge.
    names = [
        [name.partition(".")[2] for name in report["figures"] if name.startswith(f"{way}.")]
        for way in ways
    ]
    rows = dict.fromkeys(name for one in sorted(names, key=len, reverse=True) for name in one)
    found = [["median (min-max)", *ways]]
    for row in rows:
        cells = [report["figures"].get(f"{way}.{row}") for way in ways]
        found.append([row, *(cell_of(cell) if cell else "" for cell in cells)])
    return found


def cell_of(figure: Json) -> str:
    """A figure with its spread."""
    spread = ""
    if len(figure["rounds"]) > 1:
        spread = f" ({number(figure['min'])}-{number(figure['max'])})"
    return f"{number(figure['median'])}{suffix(figure['unit'])}{spread}"


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="targets", title_justify="left")
    for column in ("what", "target", "found", ""):
        table.add_column(column)
    for one in verdicts:
        style = "green" if one.met else "red"
        table.add_row(one.target.what, one.wanted, _found(one), one.word, style=style)
    return table


def _found(one: Verdict) -> str:
    return "-" if one.found is None else f"{number(one.found)}{suffix(one.target.unit)}"


def number(value: float) -> str:
    """Three significant digits, and no more than are known."""
    if value != 0 and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
