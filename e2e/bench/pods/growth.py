"""How the bridge's cost a pod grows with what there is: it should not."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

from e2e.bench.pods import burst, ways
from e2e.bench.pods.load import Shape
from e2e.bench.pods.ways import Pair, Say

#: What grows: (small, large).
SHAPES = {
    "pods": (Shape(500), Shape(10_000)),
    "namespaces": (Shape(1000, namespaces=1), Shape(1000, namespaces=100)),
    "references": (Shape(1000, references=10), Shape(2000, references=2000)),
}


async def measure(pair: Pair, *, rounds: int, say: Say) -> dict[str, Any]:
    """Medians of processor time a pod, over a pod's life, and large over small."""
    found: dict[str, Any] = {}
    for what, (small, large) in SHAPES.items():
        costs: dict[str, list[float]] = {"small": [], "large": []}
        for number in range(rounds):
            for size, shape in (("small", small), ("large", large)):
                say(f"{what}, round {number + 1} of {rounds}: {size}")
                run = await burst.once(ways.BRIDGE, pair, shape)
                costs[size].append((run.cpu_burst_ms or 0.0) + (run.cpu_delete_ms or 0.0))
                await asyncio.sleep(ways.REST)
        medians = {size: statistics.median(values) for size, values in costs.items()}
        found[what] = {
            "cpu_ms": medians,
            "ratio": medians["large"] / medians["small"],
            "runs": costs,
        }
    return {"benchmark": "growth", **found}
