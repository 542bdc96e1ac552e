"""Suites of benchmarks, and the size of each benchmark in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from e2e.bench.pods import burst, idle_and_restart, latency, load_targets
from e2e.bench.pods.pod_load import Shape
from e2e.bench.report_output import Measure, say


@dataclass(frozen=True, slots=True)
class Streams:
    """The size of the streams benchmark."""

    rounds: int
    megabytes: int
    idle: int


@dataclass(frozen=True, slots=True)
class Suite:
    """Several benchmarks in one run."""

    streams: Streams
    pods: Mapping[str, Measure]
    nodes: int = 20


#: Sizes that detect regressions; no target applies to them.
_SHORT: Mapping[str, Measure] = {
    "burst": lambda pair: burst.measure(pair, Shape(300), rounds=2, say=say),
    "latency": lambda pair: latency.measure(pair, pods=30, rounds=1, say=say),
    "idle": lambda pair: idle_and_restart.idle(pair, Shape(300), rounds=1, seconds=20, say=say),
    "restart": lambda pair: idle_and_restart.restart(pair, Shape(300), rounds=1, say=say),
}
#: The sizes of the targets.
_FULL: Mapping[str, Measure] = {
    "burst": lambda pair: burst.measure(pair, Shape(1000), rounds=5, say=say),
    "latency": lambda pair: latency.measure(pair, pods=200, rounds=3, say=say),
    "idle": lambda pair: idle_and_restart.idle(pair, Shape(5000), rounds=3, seconds=60, say=say),
    "restart": lambda pair: idle_and_restart.restart(pair, Shape(5000), rounds=3, say=say),
    "burst of 10,000": lambda pair: burst.measure(
        pair, Shape(10_000, kilobytes=10), rounds=1, say=say, targets=[load_targets.BRIDGE]
    ),
}
SUITES: Mapping[str, Suite] = {
    "short": Suite(Streams(rounds=1, megabytes=20, idle=50), _SHORT),
    "full": Suite(Streams(rounds=5, megabytes=100, idle=200), _FULL),
}
