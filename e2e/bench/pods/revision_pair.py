"""The burst on the present bridge and on that of another revision, in turn on the same clusters.

Figures of two moments of one machine differ by more than what a change costs, so each round runs
the least bridge, the revision and the present tree one after the other, and only ratios within a
round count. The least bridge is the unit of both: its source is frozen by `LEAST_SHA256`.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from e2e.bench.pods import burst, load_targets
from e2e.bench.pods.burst import Run
from e2e.bench.pods.load_targets import BRIDGE, LEAST, ClusterPair, Say
from e2e.bench.pods.pod_load import Shape
from e2e.bench.report import Report
from e2e.bridge_process import INSTALLED
from e2e.revisions import REPOSITORY, bridge_program

#: The target of the revision. `BRIDGE` is the present tree.
BEFORE = "before"
#: The sources of the least bridge, and the hash of their content.
LEAST_SOURCES = ("minimal_bridge.py", "benchmark_client.py")
LEAST_SHA256 = "11b49573969d1a7057bcc896a05a320714f3ffb844604711416f27c82dfe2fee"
#: Load average above which other processes distort the figures.
IDLE_LOAD = 1.5
#: Attributes of a run that are reported, with their units.
_FIGURES = (
    ("cpu_burst_ms", "ms"),
    ("cpu_delete_ms", "ms"),
    ("peak_mb", "MB"),
)


class LeastBridgeChanged(Exception):
    """The source of the least bridge is not the frozen one."""


def check_least_bridge(folder: Path = Path(__file__).parent) -> None:
    """Raises LeastBridgeChanged if the sources in the folder are not the frozen ones."""
    found = hashlib.sha256()
    for name in LEAST_SOURCES:
        found.update((folder / name).read_bytes())
    if found.hexdigest() != LEAST_SHA256:
        raise LeastBridgeChanged(
            f"{', '.join(LEAST_SOURCES)}: the least bridge has changed (sha256 "
            f"{found.hexdigest()}); undo that, because its figures are the unit of all pairs"
        )


async def measure(
    pair: ClusterPair, shape: Shape, *, revision: str, tree: Path, rounds: int, say: Say
) -> Report:
    """The report of all rounds. ``tree`` has the sources of the revision. Raises PodsLost."""
    programs = {BEFORE: bridge_program(tree), BRIDGE: bridge_program(REPOSITORY)}
    if (load := os.getloadavg()[0]) > IDLE_LOAD:
        say(
            f"warning: the machine is busy (load {load:.1f}): the ratios are noise until it is idle"
        )
    say("a first run, which does not count: new clusters are slower")
    await burst.once(LEAST, pair, shape)
    runs: list[Run] = []
    for number in range(rounds):
        # The order alternates, so that a drift of the clusters favors neither.
        order = (BEFORE, BRIDGE) if number % 2 == 0 else (BRIDGE, BEFORE)
        for target in (LEAST, *order):
            say(f"round {number + 1} of {rounds}: {target}, {shape.pods} pods")
            way = LEAST if target == LEAST else BRIDGE
            found = await burst.once(way, pair, shape, programs.get(target, INSTALLED))
            run = replace(found, target=target)
            say(f"  {_summary(run, shape)}")
            runs.append(run)
            await asyncio.sleep(load_targets.REST)
    return report(shape, runs, revision=revision)


def report(shape: Shape, runs: Sequence[Run], *, revision: str) -> Report:
    """The figures of each target, and the ratios of targets within the same round."""
    made = Report("pair", {**asdict(shape), "revision": revision})
    of = {
        target: [run for run in runs if run.target == target] for target in (LEAST, BEFORE, BRIDGE)
    }
    for target, mine in of.items():
        made.add(f"{target}.pods_per_second", "pods/s", (_rate(run, shape) for run in mine))
        for name, unit in _FIGURES:
            made.add(f"{target}.{name}", unit, (getattr(run, name) for run in mine))
    for target, base in ((BEFORE, LEAST), (BRIDGE, LEAST), (BRIDGE, BEFORE)):
        rounds = list(zip(of[target], of[base], strict=True))
        rates = ((_rate(one, shape), _rate(other, shape)) for one, other in rounds)
        made.add(f"{target}.pods_per_second_of_{base}", "x", _ratios(rates))
        for name, _ in _FIGURES:
            values = ((getattr(one, name), getattr(other, name)) for one, other in rounds)
            made.add(f"{target}.{name}_of_{base}", "x", _ratios(values))
    return made


def _rate(run: Run, shape: Shape) -> float:
    return shape.pods / run.running_seconds


def _ratios(pairs: Iterable[tuple[float | None, float | None]]) -> Iterable[float | None]:
    return [one / other if one and other else None for one, other in pairs]


def _summary(run: Run, shape: Shape) -> str:
    values = [f"{_rate(run, shape):.1f} pods/s"]
    for name, unit in _FIGURES:
        if (value := getattr(run, name)) is not None:
            values.append(f"{name.rpartition('_')[0]} {value:.2f} {unit}")
    return ", ".join(values)
