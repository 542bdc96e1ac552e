"""The bridge's targets as data, and their verdicts on a report. Pure.

A target applies to one figure of one benchmark of one size. A run of another size gets a verdict
with a note: a ratio is comparable, a total may not be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One bound of a figure."""

    benchmark: str
    figure: str
    what: str
    """The description in tables."""
    bound: float
    unit: str = ""
    at_least: bool = False
    """The bound is a minimum instead of a maximum."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of the benchmark for which the bound is meant."""
    worst: bool = False
    """Every round must meet the bound, not only the median."""

    def reached(self, figure: Mapping[str, Any]) -> tuple[float, bool]:
        """The value of a figure in JSON, and whether it meets the bound."""
        if self.at_least:
            found = figure["min" if self.worst else "median"]
            return found, found >= self.bound
        found = figure["max" if self.worst else "median"]
        return found, found <= self.bound


def _burst(
    figure: str,
    what: str,
    bound: float,
    unit: str = "",
    *,
    at_least: bool = False,
    pods: int = 1000,
    kilobytes: int = 0,
) -> Target:
    shape = {"pods": pods, **({"kilobytes": kilobytes} if kilobytes else {})}
    return Target("burst", f"bridge.{figure}", what, bound, unit, at_least, shape)


def _exists(percent: int, bound: float) -> Iterator[Target]:
    figure, what = f"exists_p{percent}_ms", "one pod: home's answer to its existence in the remote"
    yield Target("latency", f"bridge.{figure}", f"{what}, p{percent}", bound, "ms")
    copying = f"{what}, with its ConfigMap and Secret, p{percent}"
    yield Target("latency", f"bridge_copying.{figure}", copying, bound, "ms")


def _latency(figure: str, what: str, bound: float) -> Target:
    return Target("latency", f"bridge.{figure}_ms", f"one pod: {what}", bound, "ms")


def _latency_of_least(step: str, what: str, bound: float, least: float) -> Target:
    figure, what = (
        f"bridge.{step}_p50_of_least",
        f"one pod: {what}, p50, in times the least bridge's",
    )
    return Target("latency", figure, what, round(bound / least, 2), "x")


def _at_rest(
    benchmark: str, figure: str, what: str, bound: float, unit: str = "", *, worst: bool = False
) -> Target:
    what = f"{benchmark} with 5,000 pods: {what}"
    shape = {"pods": 5000}
    return Target(benchmark, f"bridge.{figure}", what, bound, unit, shape=shape, worst=worst)


#: CPU time per pod of the minimal bridge on the reference machine, burst and deletion: a bound in
#: milliseconds becomes a multiple of the minimal bridge's time on other machines.
_LEAST_BURST_MS, _LEAST_DELETE_MS = 1.3, 1.1
#: Its time for one pod: until the pod exists there, until home has it Running, and for its deletion
#: beyond the 16 ms that the remote needs.
_LEAST_EXISTS_MS, _LEAST_RUNNING_MS, _LEAST_GONE_MS = 4.0, 5.0, 23.0 - 16.0

#: Targets of the pod benchmarks.
TARGETS: tuple[Target, ...] = (
    _burst("of_least", "1,000 pods at once: rate, of the least bridge's", 0.9, "x", at_least=True),
    _burst("of_direct", "1,000 pods at once: rate, of direct", 0.55, "x", at_least=True),
    _burst("cpu_burst_ms", "CPU a pod, until Running", 2.5, "ms"),
    _burst("cpu_delete_ms", "CPU a pod, deletion", 2.0, "ms"),
    _burst(
        "cpu_burst_of_least",
        "CPU a pod, until Running, in times the least bridge's",
        round(2.5 / _LEAST_BURST_MS, 2),
        "x",
    ),
    _burst(
        "cpu_delete_of_least",
        "CPU a pod, deletion, in times the least bridge's",
        round(2.0 / _LEAST_DELETE_MS, 2),
        "x",
    ),
    _burst("writes", "API writes a pod over its life, Events aside", 5.0),
    _burst("start_mb", "resident memory, no pods", 110.0, "MB"),
    _burst("resident_mb", "resident memory, 1,000 running pods", 130.0, "MB"),
    _burst(
        "resident_mb",
        "resident memory, 10,000 running pods of 10 kB",
        300.0,
        "MB",
        pods=10_000,
        kilobytes=10,
    ),
    *_exists(50, 6.0),
    *_exists(99, 15.0),
    _latency("running_p50", "remote Running to home Running, p50", 7.0),
    _latency("running_p99", "remote Running to home Running, p99", 20.0),
    _latency("gone_added_p50", "deletion, beyond what the remote itself needs, p50", 10.0),
    _latency_of_least("exists", "home's answer to its existence there", 6.0, _LEAST_EXISTS_MS),
    _latency_of_least("running", "remote Running to home Running", 7.0, _LEAST_RUNNING_MS),
    _latency_of_least("gone_added", "deletion, beyond the remote's", 10.0, _LEAST_GONE_MS),
    _at_rest("idle", "cpu_percent", "of a core", 0.3, "%"),
    _at_rest("idle", "writes", "writes but Lease and node status", 0, worst=True),
    _at_rest("restart", "in_sync_seconds", "in sync after", 8.0, "s"),
    _at_rest("restart", "pod_writes", "writes of pods", 0, worst=True),
)

_SPEED = ("exec_output", "exec_input", "port_forward_download", "port_forward_echo", "logs")
_TIME = ("log_first_byte", "exec_round_trip", "exec_keystroke")
#: Targets of the streams benchmark: docs/development/benchmarks.md.
STREAMS: tuple[Target, ...] = (
    *(
        Target("streams", f"ratio_to_direct.{name}", f"{name}, of direct", 0.8, "x", at_least=True)
        for name in _SPEED
    ),
    *(Target("streams", f"added_to_direct.{name}", f"{name}, added", 20.0, "ms") for name in _TIME),
)


def _relayed(benchmark: str, direction: str) -> Iterator[Target]:
    """Targets of connections through the relay."""

    def bound(
        figure: str, what: str, bound: float, unit: str, *, at_least: bool = False, idle: int = 0
    ) -> Target:
        shape = {"idle": idle} if idle else {}
        return Target(benchmark, figure, direction + what, bound, unit, at_least, shape)

    memory = "memory of an idle connection, of 2,000"
    yield bound("relay.idle_kib", memory, 30.0, "KiB", idle=2000)
    request = "an answer on a connection that stands: added"
    yield bound("added_to_flat.request_ms", request, 2.0, "ms")
    for clients, who in ((1, "one client"), (100, "100 clients"), (500, "500 clients")):
        rate = f"connections a second, {who}"
        yield bound(f"relay.connect_{clients}", rate, 100.0, "/s", at_least=True)
    yield bound("relay.download", "download, one connection", 100.0, "MB/s", at_least=True)
    yield bound("relay.cpu_per_megabyte_ms", "the bridge's CPU a megabyte of it", 2.5, "ms")


#: Targets of the relay. A port-forward alone opens in 10 ms and transfers 116 MB/s.
RELAY: tuple[Target, ...] = (
    *_relayed("relay", ""),
    *_relayed("relay-back", "from the remote to home: "),
)

#: Targets of the copy of a volume of 1 GB.
VOLUME: tuple[Target, ...] = tuple(
    Target(
        "volume",
        f"{figure}.of_kubectl_cp",
        f"copy of a volume to a remote, {what}: rate of the command, of kubectl cp to one cluster",
        0.4,
        "x",
        at_least=True,
        shape={"bytes": 10**9},
    )
    for figure, what in (("command", "whose volume exists"), ("new_volume", "with provisioning"))
)

#: Targets of a release of the chart with many remotes: idle bridges.
REMOTES: tuple[Target, ...] = (
    Target(
        "remotes",
        "bridge.memory",
        "each of 20 idle bridges of one release: memory",
        100.0,
        "MB",
        shape={"remotes": 20},
        worst=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target with the figure found; ``found`` is None if the report lacks the figure."""

    target: Target
    found: float | None = None
    met: bool = False
    elsewhere: str = ""
    """Differences between the run's parameters and those of the target."""

    @property
    def wanted(self) -> str:
        """The bound as text."""
        bound = f"{self.target.bound:g}{suffix(self.target.unit)}"
        return f"at {'least' if self.target.at_least else 'most'} {bound}"

    @property
    def word(self) -> str:
        """met, missed, or not measured."""
        if self.found is None:
            return "not measured"
        return ("met" if self.met else "missed") + (f" ({self.elsewhere})" * bool(self.elsewhere))

    def as_json(self) -> dict[str, Any]:
        """An entry of a report."""
        return {
            "what": self.target.what,
            "figure": self.target.figure,
            "wanted": self.wanted,
            "found": self.found,
            "met": self.met,
            "elsewhere": self.elsewhere,
        }


def judge(
    report: Mapping[str, Any],
    targets: Sequence[Target] = (*TARGETS, *STREAMS, *RELAY, *VOLUME, *REMOTES),
) -> list[Verdict]:
    """The verdicts on a report in JSON, for the targets whose figures it has."""
    return [
        verdict(target, report)
        for target in targets
        if target.benchmark == report["benchmark"] and target.figure in report.get("figures", {})
    ]


def verdict(target: Target, report: Mapping[str, Any]) -> Verdict:
    """The verdict on one figure in a report."""
    figure = report["figures"][target.figure]
    found, met = target.reached(figure)
    parameters = report.get("asked", {})
    other = [
        f"{key} {parameters.get(key)}, not {wanted}"
        for key, wanted in target.shape.items()
        if parameters.get(key) != wanted
    ]
    return Verdict(target, found, met, ", ".join(other))


def suffix(unit: str) -> str:
    """The suffix of a number with this unit: `5 ms`, `0.3%`, `1.15x`."""
    return unit if unit in {"", "%", "x"} else f" {unit}"
