"""Starts clusters, runs a test on them and removes them, several times; nothing may be left.

    python -m e2e.cluster_leak_check --backend kind --prefix cycle -n 10

After each cycle the machine is compared with its state before the first: mounts, interfaces,
network namespaces, routes, packet rules, cgroups, containers with volumes and networks, and
processes of the clusters' programs. Exit status 1 at the first cycle that fails or leaves
something. Needs root, and a machine on which no other clusters start or stop meanwhile. With
`--shared` others may be used: then only lines count that have the prefix of this set or Docker's
name, and that do not belong to a running container.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from e2e import clusters
from e2e.clusters import Backend, Settings, docker_engine
from e2e.clusters.cgroups import hierarchies
from e2e.clusters.errors import MissingTool
from e2e.clusters.mounts import MOUNTS
from e2e.clusters.processes import identify
from e2e.clusters.run_command import run

JOB = "e2e/test_main_job.py::test_deployment_with_its_config_bursts_and_follows"
#: Names of the clusters' processes, as known to the kernel.
PROGRAMS = frozenset(
    {
        "containerd",
        "containerd-shim",
        "coredns",
        "docker-proxy",
        "dockerd",
        "etcd",
        "kube-apiserver",
        "kube-controller",
        "kube-proxy",
        "kube-scheduler",
        "kubelet",
        "pause",
        "runc",
        "systemd",
    }
)

#: Seconds between two comparisons on a shared machine.
SETTLE = 5.0

_ROOT = Path(__file__).parent.parent
#: Kind of state → lines of text; after a cycle no line may be new.
_State = Mapping[str, frozenset[str]]


def state() -> _State:
    """The state of the machine, by kind."""
    return {kind: frozenset(look()) for kind, look in _LOOKS.items()}


def left(before: _State, after: _State) -> list[str]:
    """The lines that are new in ``after``."""
    return [
        f"{kind}: {line}"
        for kind in after
        for line in sorted(after[kind] - before.get(kind, set()))
    ]


def _output_lines(*argv: str) -> list[str]:
    try:
        done = run(argv, check=False)
    except MissingTool:  # The first start of clusters installs it: nothing can be left before.
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _mounts() -> list[str]:
    return [line.split()[4] for line in MOUNTS.read_text().splitlines()]


def _links() -> list[str]:
    return [line.split(":")[1].strip() for line in _output_lines("ip", "-oneline", "link", "show")]


def _rules() -> list[str]:
    return [line for line in _output_lines("iptables-save") if line.startswith("-A")]


def _cgroups() -> list[str]:
    return [str(it) for tree in hierarchies() for it in tree.path.glob("cluster-bridge*")]


def _processes() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            name = path.read_text().strip()
            groups = path.with_name("cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # A process that has ended and is not reaped yet does not count.
        if name in PROGRAMS and identify(int(path.parent.name)) is not None:
            found.append(f"{name} {path.parent.name} of {' '.join(sorted(set(groups)))}")
    return found


def _docker(*argv: str) -> list[str]:
    """Output of a command of the running engine, private or not; empty if none runs."""
    found = docker_engine.find()
    return found.docker(*argv).stdout.splitlines() if found else []


def _in_engine() -> list[str]:
    return [
        *_docker("ps", "--all", "--no-trunc", "--format", "container {{.Names}} {{.ID}}"),
        *_docker("volume", "ls", "--format", "docker volume {{.Name}}"),
        *_docker("network", "ls", "--no-trunc", "--format", "docker network {{.Name}} {{.ID}}"),
    ]


_LOOKS: Mapping[str, Callable[[], list[str]]] = {
    "mount": _mounts,
    "interface": _links,
    "namespace": lambda: _output_lines("ip", "netns", "list"),
    "route": lambda: _output_lines("ip", "route", "show"),
    "rule": _rules,
    "cgroup": _cgroups,
    "engine": _in_engine,
    "process": _processes,
}


def of_set(lines: Iterable[str], prefix: str, running: Iterable[str]) -> list[str]:
    """The lines that this set of clusters may have left, on a shared machine.

    `running` are the IDs of running containers; lines of these belong to other users.
    """
    others = set(running)
    return [
        line
        for line in lines
        if (prefix in line or "docker" in line.lower()) and not any(it in line for it in others)
    ]


def cycle(settings: Settings) -> None:
    """Starts clusters, runs the test on them, and removes them.

    :raises ClusterError: they do not start, or cannot be removed.
    :raises subprocess.CalledProcessError: the test failed.
    """
    clusters.up(clusters.specs(), settings, _say)
    environment = {
        **os.environ,
        "CLUSTER_BRIDGE_E2E_PREFIX": settings.prefix,
        "CLUSTER_BRIDGE_E2E_BACKEND": settings.backend,
    }
    try:
        job = [sys.executable, "-m", "pytest", "-q", JOB]
        subprocess.run(job, cwd=_ROOT, env=environment, check=True)
    finally:
        clusters.down(None, settings, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster_leak_check", description=__doc__)
    parser.add_argument("--backend", type=Backend, default=Backend.KIND, choices=list(Backend))
    parser.add_argument("--prefix", default="cycle")
    parser.add_argument("-n", type=int, default=10, metavar="CYCLES")
    parser.add_argument("--shared", action="store_true")
    arguments = parser.parse_args()
    settings = Settings(prefix=arguments.prefix, backend=arguments.backend)
    before = state()
    for number in range(1, arguments.n + 1):
        started = time.monotonic()
        cycle(settings)
        found = left(before, state())
        if arguments.shared and found:
            time.sleep(SETTLE)  # Commands in containers of other users start and end.
            still = left(before, state())
            running = _docker("ps", "--no-trunc", "--quiet")
            found = of_set((line for line in found if line in still), settings.prefix, running)
        print(f"cycle {number}: {time.monotonic() - started:.0f} s, {len(found)} left over")
        if found:
            print("\n".join(found))
            sys.exit(1)


if __name__ == "__main__":
    main()
