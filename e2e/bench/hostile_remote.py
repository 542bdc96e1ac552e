"""Memory of a process, and latency of pods of another remote in it, while one remote is hostile.

No cluster is needed: the hostile remote is a server that sends one kind of data to every request
(`tests.sync.hostile_cluster`), and the process joins it beside simulated API servers
(`tests.sync.hostile_isolation`). Each attack has a process of its own, which measures without the
hostile remote first.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tests.sync.hostile_cluster import ATTACKS
from tests.sync.hostile_process import BODIES_MIB, KEPT_MIB, Isolation, run_isolation

#: All attacks of one server, at random.
MIXED = "mixed"
#: The attacks to measure.
NAMES = (*ATTACKS, MIXED)
#: Seconds of a measurement without the hostile remote.
QUIET_SECONDS = 3.0


def measure(
    *, seconds: float, seed: int, attacks: Sequence[str] = NAMES, say: Callable[[str], None]
) -> dict[str, Any]:
    """The figures as JSON: MiB resident, and milliseconds from the creation of a pod at home to its
    existence in the other remote."""
    found: dict[str, Any] = {}
    for name in attacks:
        attack = "" if name == MIXED else name
        result = asyncio.run(
            run_isolation(seed, seconds=seconds, quiet_seconds=QUIET_SECONDS, attack=attack)
        )
        found[name] = _figures(name, result)
        say(f"{name}: {found[name]['grown_mib']} MiB, {found[name]['with']['p50_ms']} ms")
    return {
        "benchmark": "hostile",
        "seconds": seconds,
        "seed": seed,
        "limit_mib": {"kept_objects": KEPT_MIB, "bodies": BODIES_MIB},
        "is_within_limit": all(it["grown_mib"] <= KEPT_MIB + BODIES_MIB for it in found.values()),
        "attacks": found,
    }


def _figures(name: str, result: Isolation) -> dict[str, Any]:
    described = ATTACKS[name].__doc__ if name in ATTACKS else "All of these, at random."
    return {
        "what": described,
        "before_mib": round(result.before, 1),
        "peak_mib": round(result.peak, 1),
        "grown_mib": round(result.peak - result.before, 1),
        "without": _latencies(result.quiet),
        "with": _latencies(result.busy),
        "rejected": result.rejected,
    }


def _latencies(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "pods": len(seconds),
        "p50_ms": round(statistics.median(seconds) * 1000, 1),
        "max_ms": round(max(seconds) * 1000, 1),
    }
