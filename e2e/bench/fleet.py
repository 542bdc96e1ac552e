"""Many remotes in one process of `bridge run`: cost of each, and isolation between them.

All API servers are simulated (`e2e.bench.fleet_clusters`), in one process beside the bridge; the
bridge is a real process, with TLS to every API server but that of the remote that has the faults.
Each figure has its baseline in the same run: a fleet of one remote, or the time before the fault.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.bench.fleet_clusters import FAULTY
from e2e.bench.pods.process_usage import account
from e2e.faulty_remote import REFUSING, FaultyRemote

#: Seconds after the joins until a fleet counts as idle, and of the measurement of an idle fleet.
SETTLE_SECONDS, IDLE_SECONDS = 10.0, 30.0
#: The faults of one remote that others could notice, and the attacks of a hostile one
#: (`tests.sync.hostile_cluster`).
FAULTS = ("slow", "dead", "refusing")
ATTACKS = ("bomb", "dense", "values", "large", "malformed", "empty")
#: Rounds of pods on the other remotes, one pod each, and seconds between two rounds.
ROUNDS, PAUSE = 10, 0.25
#: Pods of the burst beside which the loss of a remote is to be noticed.
BURST = 300
#: Seconds of each response of a slow remote.
SLOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Clusters:
    """The process with the API servers."""

    process: subprocess.Popen[str]

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of a command of `fleet_clusters.Simulation`."""
        self.send(do, **arguments)
        return self.result()

    def send(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def result(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the simulated clusters have failed")
        return json.loads(line)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running bridge with all remotes joined."""

    clusters: Clusters
    faulty: FaultyRemote
    pid: int
    names: Sequence[str]
    join_seconds: float

    @contextmanager
    def fault(self, fault: str) -> Iterator[None]:
        """One remote fails in this way while the block runs; then all are Ready again."""
        with ExitStack() as stack:
            kind, _, attack = fault.partition(": ")
            if kind == "slow":
                self.clusters.ask("slow", seconds=SLOW_SECONDS)
            self.faulty.cut(is_cut=kind == "dead")
            if kind == "refusing":
                self.faulty.lead_to(REFUSING)
            if attack:
                self.faulty.lead_to(stack.enter_context(_hostile_server(attack)))
            yield
            self.clusters.ask("slow", seconds=0)
            self.faulty.cut(is_cut=False)
            self.faulty.lead_to(self.faulty.target)
            self.clusters.ask("until_ready", count=len(self.names))


@contextmanager
def running_fleet(count: int) -> Iterator[Fleet]:
    """`bridge run` with so many remotes, once all nodes are Ready."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        faulty = FaultyRemote()
        stack.callback(faulty.close)
        module = "e2e.bench.fleet_clusters"
        command = [sys.executable, "-m", module, str(count), str(folder), str(faulty.port)]
        process = stack.enter_context(_process(command, stdin=subprocess.PIPE, text=True))
        clusters = Clusters(process)
        assert process.stdout is not None
        faulty.target = int(process.stdout.readline())
        faulty.lead_to(faulty.target)
        began = time.time()
        with (folder / "bridge.log").open("w") as log:
            environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
            run = [str(Path(sys.executable).with_name("bridge")), "run", "--config", "bridge.yaml"]
            bridge = stack.enter_context(_process(run, stderr=log, env=environment, cwd=folder))
        ready = clusters.ask("until_ready", count=count)
        names = [f"remote-{number}" for number in range(count)]
        yield Fleet(clusters, faulty, bridge.pid, names, ready - began)


@contextmanager
def _process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, **options)
    with process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(*, remotes: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """All figures as JSON: seconds, MB, milliseconds."""
    with running_fleet(1) as fleet:
        one = _idle(fleet, seconds)
    say(f"1 remote: {one}")
    with running_fleet(remotes) as fleet:
        many = _idle(fleet, seconds)
        say(f"{remotes} remotes: {many}")
        isolation = _isolation(fleet, say)
        loss = _loss(fleet)
        say(f"loss: {loss}")
    added = max(remotes - 1, 1)
    return {
        "benchmark": "fleet",
        "simulated": "home, all remotes and their nodes: API servers in one process of Python",
        "remotes": remotes,
        "one": one,
        "many": many,
        "per_remote": {
            "memory_mb": round((many["memory_mb"] - one["memory_mb"]) / added, 2),
            "cpu_percent": round((many["cpu_percent"] - one["cpu_percent"]) / added, 3),
            "requests_per_minute": round(
                (many["requests_per_minute"] - one["requests_per_minute"]) / added, 1
            ),
            "join_seconds": round((many["join_seconds"] - one["join_seconds"]) / added, 3),
        },
        "isolation": isolation,
        "loss": loss,
    }


def measure_loss(*, remotes: int) -> dict[str, float]:
    """The time to notice the loss of a remote alone."""
    with running_fleet(remotes) as fleet:
        return _loss(fleet)


def measure_idle(*, remotes: int, seconds: float) -> dict[str, Any]:
    """The figures of an idle fleet alone."""
    with running_fleet(remotes) as fleet:
        return _idle(fleet, seconds)


def _idle(fleet: Fleet, seconds: float) -> dict[str, Any]:
    time.sleep(SETTLE_SECONDS)
    fleet.clusters.ask("requests")
    before = account(fleet.pid)
    time.sleep(seconds)
    after, requests = account(fleet.pid), fleet.clusters.ask("requests")
    return {
        "join_seconds": round(fleet.join_seconds, 2),
        "memory_mb": round(after.resident, 1),
        "peak_mb": round(after.peak, 1),
        "cpu_percent": round(100 * (after.cpu - before.cpu) / seconds, 2),
        "requests_per_minute": round(60 * sum(requests.values()) / seconds, 1),
        "open_files": len(list(Path(f"/proc/{fleet.pid}/fd").iterdir())),
    }


def _isolation(fleet: Fleet, say: Callable[[str], None]) -> dict[str, Any]:
    """Latencies of pods of the other remotes, before and during each fault of one."""
    others = [it for it in fleet.names if it != FAULTY]
    found: dict[str, Any] = {}
    for fault in (*FAULTS, *(f"hostile: {it}" for it in ATTACKS)):
        quiet = _latencies(fleet, others)
        with fleet.fault(fault):
            before = account(fleet.pid)
            during = _latencies(fleet, others)
            after = account(fleet.pid)
        found[fault] = {
            "without": quiet,
            "with": during,
            "ratio_p50": round(during["p50_ms"] / quiet["p50_ms"], 2),
            "cpu_percent": round(100 * (after.cpu - before.cpu) / during["seconds"]),
        }
        say(f"{fault}: {found[fault]}")
    return found


def _latencies(fleet: Fleet, remotes: Sequence[str]) -> dict[str, float]:
    began = time.monotonic()
    latencies = fleet.clusters.ask("pods", remotes=remotes, rounds=ROUNDS, burst=1, pause=PAUSE)
    milliseconds = sorted(1000 * it for it in latencies)
    return {
        "pods": len(milliseconds),
        "p50_ms": round(statistics.median(milliseconds), 1),
        "p95_ms": round(milliseconds[int(0.95 * (len(milliseconds) - 1))], 1),
        "max_ms": round(milliseconds[-1], 1),
        "seconds": round(time.monotonic() - began, 2),
    }


@contextmanager
def _hostile_server(attack: str) -> Iterator[int]:
    """The port of a hostile API server."""
    command = [sys.executable, "-m", "tests.sync.hostile_cluster", "1", attack]
    with _process(command, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _loss(fleet: Fleet) -> dict[str, float]:
    """Seconds until the Node of a remote is not Ready whose API server has ended: without and with
    a burst elsewhere."""
    found = {}
    for name, burst in (("idle_seconds", 0), ("burst_seconds", BURST)):
        with fleet.fault("refusing"):
            began = time.time()
            if burst:
                busy = list(fleet.names[1:2])
                fleet.clusters.ask("pods", remotes=busy, rounds=1, burst=burst, pause=0)
            ended = fleet.clusters.ask("until_not_ready", name=FAULTY)
        found[name] = round(ended - began, 2)
    return found
