"""What a process costs, from the kernel's own accounts; this one, a bridge, or a cluster's."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.cluster import Cluster
from e2e.clusters.native_control_plane import API_SERVER, ETCD

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Account:
    """A process's account so far."""

    cpu: float
    """Seconds of processor time, in user and kernel mode, of all its threads."""
    peak: float
    """Its largest resident memory, in MB."""
    resident: float
    """Its resident memory now, in MB."""


def account(pid: int) -> Account:
    """The account of a process that runs (proc(5): stat fields 14 and 15, VmHWM, VmRSS)."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    peak, resident = (int(status[key].split()[0]) / 1024 for key in ("VmHWM", "VmRSS"))
    return Account(cpu_seconds(pid), peak, resident)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process that runs, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def own_cpu_seconds() -> float:
    """Processor time of this process: of the load, and of watching what becomes of it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Servers:
    """The API servers of some clusters, with their stores: what a bridge keeps busy.

    Schedulers, controllers and simulated nodes are left out: they do the same for every way.
    """

    def __init__(self, clusters: Iterable[Cluster]) -> None:
        self._pids = {
            f"{cluster.name} {component}": pid
            for cluster in clusters
            for component in (API_SERVER, ETCD)
            if (pid := cluster.component_pid(component)) is not None
        }

    def cpu(self) -> Mapping[str, float]:
        """``CLUSTER COMPONENT`` → its processor time so far, in seconds."""
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}
