"""Reads the counters of a bridge's ``/metrics`` that the history needs, and their rates. Pure.

Only lines of known names are parsed; anything else, also what is malformed, is skipped.
docs/reference/metrics.md describes the metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FAILURES = ('result="failure"', 'result="defect"')


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters since a bridge's start."""

    started: float = 0.0
    errors: float = 0.0
    relayed: float = 0.0


def read_counters(text: str) -> Counters:
    """The counters in an exposition: pods that started, failed reconciles and watches, and bytes
    relayed in both directions."""
    started = errors = relayed = 0.0
    for line in text.splitlines():
        if not line.startswith("bridge_"):
            continue
        name, labels = line.partition(" ")[0], ""
        if "{" in name or "{" in line:
            name, _, labels = line.partition("{")
        value = _value(line)
        if name == "bridge_pod_start_duration_seconds_count":
            started += value
        elif name == "bridge_watch_failures_total":
            errors += value
        elif name == "bridge_reconciles_total":
            errors += value * any(it in labels for it in _FAILURES)
        elif name in ("bridge_relay_bytes_total", "bridge_relay_back_bytes_total"):
            relayed += value
    return Counters(started, errors, relayed)


def rate(before: float, now: float, seconds: float) -> float | None:
    """The increase per second; None if the counter began again."""
    return (now - before) / seconds if now >= before and seconds > 0 else None


def _value(line: str) -> float:
    try:
        found = float(line.rpartition(" ")[2])
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0
