"""Streams through the bridge, compared with the same calls without it in one run.

Three paths are measured in turn in each round: ``bridge`` (home's API server, the bridge, the
remote's API server, its kubelet), ``direct`` (the remote's API server and kubelet: the baseline),
and ``home`` (home's own API server and kubelet: home without a bridge). So other load of the
machine affects all of them. Ratios and differences are computed in each round; their median counts.

No time is asserted: the figures are for people and documents.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench.pods.process_usage import cpu_seconds, resident_bytes
from e2e.bench.report import Report
from e2e.bench.stream_measurements import MEASURES, SCRIPT, Measure
from e2e.bench.stream_paths import StreamPath
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster
from e2e.kubectl import wait_for
from e2e.workload_manifests import pod, shell

BRIDGE, DIRECT, HOME = "bridge", "direct", "home"
NODE, NAMESPACE, POD = "bench", "bench", "bench"
REMOTE_NAMESPACE = f"{NAMESPACE}-{NODE}"

Progress = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """The parameters of a run."""

    rounds: int
    size: int
    """Bytes per throughput measurement."""
    idle: int
    """Number of idle streams, for their memory; 0 for none."""


@dataclass
class Taken:
    """The figures of one measurement by path, one per round; and the bridge's CPU time."""

    measure: Measure
    figures: dict[str, list[float]]
    cpu: list[float]
    """The bridge's CPU seconds per round."""


def run(home: Cluster, remote: Cluster, settings: Settings, progress: Progress, log: Path) -> Json:
    """Joins, measures, and leaves; returns the report."""
    with joined(home, remote, log) as bridge, _pods(home) as own:
        paths = [
            StreamPath(BRIDGE, home, NAMESPACE, POD),
            StreamPath(DIRECT, remote, REMOTE_NAMESPACE, POD),
            StreamPath(HOME, home, NAMESPACE, own),
        ]
        assert bridge.process is not None
        pid = bridge.process.pid
        # First, while memory is minimal: a process keeps freed memory.
        idle = _idle(paths[0], settings.idle, pid, progress) if settings.idle else None
        taken = [_measured(m, paths, settings, pid, progress) for m in MEASURES]
    return report(taken, settings, idle)


def _measured(
    measure: Measure, paths: Sequence[StreamPath], settings: Settings, pid: int, progress: Progress
) -> Taken:
    taken = Taken(measure, {way.name: [] for way in paths}, [])
    for number in range(settings.rounds):
        # The first path has cold caches: each is first in turn.
        for way in [*paths[number % len(paths) :], *paths[: number % len(paths)]]:
            before = cpu_seconds(pid)
            tries = [measure.take(way, settings.size) for _ in range(measure.tries)]
            taken.figures[way.name].append(statistics.median(tries))
            if way.name == BRIDGE:
                taken.cpu.append((cpu_seconds(pid) - before) / measure.tries)
        latest = ", ".join(f"{name} {found[-1]:.1f}" for name, found in taken.figures.items())
        progress(f"{measure.name}, round {number + 1}: {latest} {measure.unit}")
    return taken


def report(taken: Sequence[Taken], settings: Settings, idle: Json | None) -> Json:
    """The figures as JSON: medians, and the bridge compared with the other paths."""
    return {
        "rounds": settings.rounds,
        "bytes": settings.size,
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "measures": {one.measure.name: _compared(one, settings) for one in taken},
        "idle": idle,
    }


def _compared(taken: Taken, settings: Settings) -> Json:
    figures, unit = taken.figures, taken.measure.unit
    median = {name: round(statistics.median(found), 2) for name, found in figures.items()}
    compared: Json = {"unit": unit, "median": median}
    for other in (DIRECT, HOME):
        pairs = list(zip(figures[BRIDGE], figures[other], strict=True))
        if unit == "ms":
            added = statistics.median(ours - theirs for ours, theirs in pairs)
            compared[f"added_to_{other}"] = round(added, 2)
        else:
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            compared[f"ratio_to_{other}"] = round(ratio, 3)
    if unit == "MB/s":
        compared["bridge_cpu_seconds"] = round(statistics.median(taken.cpu), 3)
    compared["rounds"] = {name: [round(x, 2) for x in found] for name, found in figures.items()}
    return compared


def _idle(way: StreamPath, count: int, pid: int, progress: Progress) -> Json:
    """The bridge's memory for this many idle streams."""
    before = resident_bytes(pid)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(way.websocket("portforward", [], "SPDY/3.1+portforward.k8s.io"))
        each = (resident_bytes(pid) - before) / count
        spent = cpu_seconds(pid)
        time.sleep(5)
        spent = cpu_seconds(pid) - spent
    progress(f"{count} idle streams: {each / 1024:.0f} KiB each, {spent:.2f} s of CPU in 5 s")
    return {"streams": count, "bytes_each": round(each), "cpu_seconds_in_5": round(spent, 3)}


# -- environment -----------------------------------------------------------------------------------


@contextlib.contextmanager
def joined(home: Cluster, remote: Cluster, log: Path) -> Iterator[Bridge]:
    args = ("--name", NODE, "--home-name", NODE, "--port", "0")
    bridge = Bridge(home, remote, log, args)
    bridge.start()
    try:
        yield bridge
    finally:
        bridge.stop()
        leave = [*bridge.command[:1], "leave", NODE, "--yes", "--force"]
        subprocess.run(
            [*leave, "--kubeconfig", remote.kubeconfig],
            env={**os.environ, "KUBECONFIG": str(home.kubeconfig)},
            capture_output=True,
            check=True,
        )


@contextlib.contextmanager
def _pods(home: Cluster) -> Iterator[str]:
    """A pod on the virtual node, and an equal one on home's own node; returns the latter's name."""
    home.kubectl("create", "namespace", NAMESPACE)
    names = {NODE: POD, home.node_names[0]: f"{POD}-home"}
    try:
        for node, name in names.items():
            manifest = pod(node, name, containers=[shell("main", SCRIPT)])
            home.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=manifest)
        ready = ("wait", "-n", NAMESPACE, "--for=condition=Ready", "pod", "--all")
        home.kubectl(*ready, "--timeout=60s")
        time.sleep(2)  # until their logs are written
        yield names[home.node_names[0]]
    finally:
        home.kubectl("delete", "namespace", NAMESPACE, timeout=120)
        gone = ("get", "pods", "-n", NAMESPACE, "-o", "name")
        wait_for(lambda: not home.kubectl(*gone).stdout, "the pods were deleted")


def as_report(found: Json) -> Json:
    """The report in the form of `e2e.bench.report`."""
    made = Report("streams", {"rounds": found["rounds"], "bytes": found["bytes"]})
    for name, measure in found["measures"].items():
        for way, rounds in measure["rounds"].items():
            made.add(f"{way}.{name}", measure["unit"], rounds)
        for compared, value in measure.items():
            if compared.startswith(("ratio_to_", "added_to_")):
                unit = "x" if compared.startswith("ratio") else "ms"
                made.add(f"{compared}.{name}", unit, [value])
        made.add(f"bridge_cpu_seconds.{name}", "s", [measure.get("bridge_cpu_seconds")])
    made.details["idle"] = found["idle"]
    return made.as_json()
