"""CPU time and memory of a process, from the kernel: this one, a bridge, or a cluster's."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import API_SERVER, Cluster
from e2e.clusters.native_control_plane import ETCD
from e2e.kubectl import Json

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Account:
    """A process's usage so far."""

    cpu: float
    """Seconds of CPU time, in user and kernel mode, of all its threads."""
    peak: float
    """Maximum resident memory, in MB."""
    resident: float
    """Current resident memory, in MB."""


def account(pid: int) -> Account:
    """The usage of a running process (proc(5): stat fields 14 and 15, VmHWM, VmRSS)."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    peak, resident = (int(status[key].split()[0]) / 1024 for key in ("VmHWM", "VmRSS"))
    return Account(cpu_seconds(pid), peak, resident)


def cpu_seconds(pid: int) -> float:
    """CPU time of a running process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def resident_bytes(pid: int) -> int:
    """Resident memory of a running process, in bytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def own_cpu_seconds() -> float:
    """CPU time of this process: of the load and its watches."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Servers:
    """The API servers and etcds of some clusters.

    Schedulers, controllers and simulated nodes are excluded: their work is the same for every
    target.
    """

    def __init__(self, clusters: Iterable[Cluster]) -> None:
        self._pids = {
            f"{cluster.name} {component}": pid
            for cluster in clusters
            for component in (API_SERVER, ETCD)
            if (pid := cluster.component_pid(component)) is not None
        }

    def cpu(self) -> Mapping[str, float]:
        """``CLUSTER COMPONENT`` → its CPU time so far, in seconds."""
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}


def processes(pod: Json) -> list[int]:
    """The process IDs of a pod's containers on this machine, even of an image without a shell. No
    other pod on this machine may have the pod's name."""
    host = f"HOSTNAME={pod['metadata']['name']}".encode()
    found = []
    for process in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):
            if host in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
