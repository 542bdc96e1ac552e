"""What a benchmark found, as data: figures with their rounds, and counts beside them.

A report in JSON, as every command prints it:

    {"benchmark": "burst", "machine": {...}, "asked": {"pods": 1000, ...},
     "figures": {"bridge.cpu_burst_ms": {"unit": "ms", "median": 2.1, "min": ..., "max": ...,
                                         "rounds": [...]}, ...},
     "targets": [{"what": ..., "wanted": "at most 2.5 ms", "found": 2.1, "met": true, ...}],
     "details": {...}}

A figure's name is WAY.FIGURE where ways are compared, so that a table can set them side by side.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Digits that a figure of a benchmark is worth.
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing that was measured, once a round."""

    unit: str
    """ms, s, MB, pods/s, %, x (a ratio), or empty: a count."""
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the rounds."""
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
    """What one benchmark found."""

    benchmark: str
    parameters: Mapping[str, Any]
    """What it was asked to do; a target names what it is meant for in these words."""
    figures: dict[str, Figure] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Counts by verb and resource, and whatever explains a figure."""

    def add(self, name: str, unit: str, rounds: Iterable[float | None]) -> None:
        """Adds a figure, unless no round has it."""
        if known := tuple(value for value in rounds if value is not None):
            self.figures[name] = Figure(unit, known)

    def as_json(self) -> dict[str, Any]:
        """See the module's docstring; without the targets."""
        return {
            "benchmark": self.benchmark,
            "machine": machine(),
            "asked": dict(self.parameters),
            "figures": {name: figure.as_json() for name, figure in self.figures.items()},
            "details": self.details,
        }


def machine() -> dict[str, Any]:
    """What the figures depend on, and a reader elsewhere does not have."""
    return {
        "cpus": os.cpu_count(),
        "load": rounded(os.getloadavg()[0]),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def rounded(value: float) -> float:
    """To `_DIGITS` digits, whatever its size."""
    return float(f"{value:.{_DIGITS}g}")


def percentile(values: Iterable[float], percent: int) -> float:
    """That percentile, interpolated; of one value, itself."""
    known = list(values)
    if len(known) == 1:
        return known[0]
    return statistics.quantiles(known, n=100, method="inclusive")[percent - 1]
