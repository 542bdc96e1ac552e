"""The bridge's cost per pod with large and small loads, which should be equal.

Each round runs the small and the large load of a kind in sequence. Both loads of ``references``
have the same pods; every distinct ConfigMap is one more object to copy, so the cost per created
object (pod or copy) is reported beside the cost per pod.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from e2e.bench.pods import burst, load_targets
from e2e.bench.pods.burst import Run
from e2e.bench.pods.load_targets import ClusterPair, Say
from e2e.bench.pods.pod_load import Shape
from e2e.bench.report import Report

#: Kind → (small, large).
SHAPES = {
    "pods": (Shape(500), Shape(10_000)),
    # One ConfigMap and Secret in each of many namespaces: only the namespaces increase.
    "namespaces": (Shape(1000), Shape(1000, namespaces=100, references=1, secrets=1)),
    "references": (Shape(2000, references=10), Shape(2000, references=2000)),
}
Runs = Mapping[str, Sequence[Run]]


async def measure(
    pair: ClusterPair, *, only: Sequence[str], scale: float, rounds: int, say: Say
) -> Report:
    """CPU time per pod over its life, of small and large loads, and their ratio."""
    made = Report("growth", {"scale": scale})
    for kind in only:
        shapes = dict(zip(("small", "large"), map(scaler(scale), SHAPES[kind]), strict=True))
        runs: dict[str, list[Run]] = {"small": [], "large": []}
        for number in range(rounds):
            for size, shape in shapes.items():
                say(f"{kind}, round {number + 1} of {rounds}: {size}, {shape.pods} pods")
                runs[size].append(await burst.once(load_targets.BRIDGE, pair, shape))
                await asyncio.sleep(load_targets.REST)
        add(made, kind, shapes, runs)
    return made


def scaler(scale: float) -> Callable[[Shape], Shape]:
    """Returns a function that scales a load."""

    def scaled(shape: Shape) -> Shape:
        def times(number: int) -> int:
            # Small numbers stay: they are minimums.
            return max(1, round(number * scale)) if number > 10 else number

        return replace(
            shape,
            pods=times(shape.pods),
            namespaces=times(shape.namespaces),
            references=times(shape.references),
        )

    return scaled


def add(made: Report, kind: str, shapes: Mapping[str, Shape], runs: Runs) -> None:
    """Adds the figures of one kind."""
    costs = {size: [_cost(run) for run in found] for size, found in runs.items()}
    each = {
        size: [cost * shapes[size].pods / _objects(shapes[size]) for cost in found]
        for size, found in costs.items()
    }
    # Ratio of medians: rounds of one size vary more than the sizes differ.
    made.add(f"{kind}.ratio", "x", [_ratio(costs)])
    if kind == "references":
        made.add(f"{kind}.ratio_an_object", "x", [_ratio(each)])
    for size, found in runs.items():
        name = f"{kind}.{size}"
        made.add(f"{name}_cpu_ms", "ms", costs[size])
        made.add(f"{name}_writes", "", [run.writes for run in found])
        made.add(f"{name}_resident_mb", "MB", [run.resident_mb for run in found])
        made.add(f"{name}_peak_mb", "MB", [run.peak_mb for run in found])
        made.add(f"{name}_running_seconds", "s", [run.running_seconds for run in found])
        made.add(f"{name}_gone_seconds", "s", [run.gone_seconds for run in found])
        # A run that loses, duplicates or leaves a pod is an error, so there are none.
        made.add(f"{name}_lost", "", [0.0 for _ in found])


def _cost(run: Run) -> float:
    return (run.cpu_burst_ms or 0.0) + (run.cpu_delete_ms or 0.0)


def _objects(shape: Shape) -> int:
    """Number of objects that a bridge creates in the remote for such a load."""
    copies = min(shape.references, shape.pods) + min(shape.secrets, shape.pods)
    return shape.pods + shape.namespaces * copies


def _ratio(values: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(values["large"]) / statistics.median(values["small"])
