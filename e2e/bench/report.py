"""The report of a benchmark: figures with their rounds, and details.

A report in JSON, as printed by every command:

    {"benchmark": "burst", "machine": {...}, "asked": {"pods": 1000, ...},
     "figures": {"bridge.cpu_burst_ms": {"unit": "ms", "median": 2.1, "min": ..., "max": ...,
                                         "rounds": [...]}, ...},
     "targets": [{"what": ..., "wanted": "at most 2.5 ms", "found": 2.1, "met": true, ...}],
     "details": {...}}

A figure's name is PATH.FIGURE if paths are compared, so that a table can show them side by side.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Significant digits of a figure.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity, with a value per round."""

    unit: str
    """ms, s, MB, pods/s, %, x (a ratio), or empty for a count."""
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    def as_json(self) -> dict[str, Any]:
        """With the spread of the rounds."""
        return {
            "unit": self.unit,
            "median": rounded(self.median),
            "min": rounded(min(self.rounds)),
            "max": rounded(max(self.rounds)),
            "rounds": [rounded(value) for value in self.rounds],
        }


@dataclass(slots=True)
class Report:
    """The results of one benchmark."""

    benchmark: str
    parameters: Mapping[str, Any]
    """The benchmark's parameters (``asked`` in JSON); a target refers to them."""
    figures: dict[str, Figure] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Counts by verb and resource, and other explanations of figures."""

    def add(self, name: str, unit: str, rounds: Iterable[float | None]) -> None:
        """Adds a figure unless no round has a value."""
        if known := tuple(value for value in rounds if value is not None):
            self.figures[name] = Figure(unit, known)

    def as_json(self) -> dict[str, Any]:
        """The report without targets, as described in the module."""
        return {
            "benchmark": self.benchmark,
            "machine": machine(),
            "asked": dict(self.parameters),
            "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            "details": self.details,
        }


def machine() -> dict[str, Any]:
    """Properties of the machine on which the figures depend."""
    return {
        "cpus": os.cpu_count(),
        "load": rounded(os.getloadavg()[0]),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def rounded(value: float) -> float:
    """Rounds to `_DIGITS` significant digits."""
    return float(f"{value:.{_DIGITS}g}")


def percentile(values: Iterable[float], percent: int) -> float:
    """The interpolated percentile; of one value, that value."""
    known = list(values)
    if len(known) == 1:
        return known[0]
    return statistics.quantiles(known, n=100, method="inclusive")[percent - 1]
