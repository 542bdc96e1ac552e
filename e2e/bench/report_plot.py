"""A plot of a report: bars of its figures with the spread of the rounds, and the targets.

Uses matplotlib, which nothing else here needs: it is imported only if a plot is requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from e2e.bench.report_tables import parts
from e2e.bench.targets import judge

Json = Mapping[str, Any]
#: Height of a bar in inches.
_BAR = 0.18


class PlotFailed(Exception):
    """No plot can be drawn; with the remedy."""


def require(file: Path) -> None:
    """Verifies before any measurement that a plot can be drawn into this file.

    :raises PlotFailed: matplotlib is missing, or the file name or folder is unsuitable.
    """
    if file.suffix not in {".svg", ".png"}:
        raise PlotFailed(f"{file}: a plot's name must end with .svg or .png")
    if not file.absolute().parent.is_dir():
        raise PlotFailed(f"{file}: there is no such folder")
    try:
        import matplotlib as mpl
    except ImportError:
        raise PlotFailed(
            "a plot needs matplotlib: .venv/bin/pip install --editable '.[plot]'"
        ) from None
    mpl.use("Agg")  # a backend for files, without a display


def draw(report: Json, file: Path) -> None:
    """Draws one row per benchmark, with one part per unit."""
    from matplotlib import pyplot as plt

    rows = [(one, _by_unit(one)) for one in parts(report) if one.get("figures")]
    columns = max((len(units) for _, units in rows), default=1)
    heights = [1 + _BAR * max(map(len, units.values())) for _, units in rows] or [1.0]
    figure, axes = plt.subplots(
        len(heights),
        columns,
        figsize=(5 * columns, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat:
        axis.axis("off")
    for row, (one, units) in enumerate(rows):
        bounds = {verdict.target.figure: verdict.target.bound for verdict in judge(one)}
        for axis, (unit, names) in zip(axes[row], units.items(), strict=False):
            axis.axis("on")
            axis.set_title(f"{one['benchmark']}: {unit or 'count'}", fontsize=9)
            _bars(axis, one, names, bounds)
    figure.savefig(file)
    plt.close(figure)


def _by_unit(report: Json) -> dict[str, list[str]]:
    """Unit → names of its figures, with those of the same quantity adjacent."""
    found: dict[str, list[str]] = {}
    for name, figure in report["figures"].items():
        found.setdefault(figure["unit"], []).append(name)
    for names in found.values():
        things = list(dict.fromkeys(name.partition(".")[2] for name in names))
        names.sort(key=lambda name: things.index(name.partition(".")[2]))
    return found


def _bars(axis: Any, report: Json, names: list[str], bounds: Mapping[str, float]) -> None:
    """One bar per figure, coloured by path, with a line at its target."""
    ways = list(dict.fromkeys(name.partition(".")[0] for name in report["figures"]))
    figures = [report["figures"][name] for name in names]
    axis.barh(
        names,
        [one["median"] for one in figures],
        xerr=[
            [one["median"] - one["min"] for one in figures],
            [one["max"] - one["median"] for one in figures],
        ],
        color=[f"C{ways.index(name.partition('.')[0])}" for name in names],
        ecolor="#333333",
        capsize=2,
    )
    for place, name in enumerate(names):
        if name in bounds:
            axis.vlines(bounds[name], place - 0.5, place + 0.5, color="black", linewidth=2)
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
