"""The cgroups of one cluster: created before its kubelet starts, emptied and removed at the end.

Works on version 1 (one tree per controller, however mounted) and version 2. The cluster's own
processes join `daemons`, on version 1 with the pids controller only: enough to find them and
their children again, without moving accounting. The kubelet places containers below the same
name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from e2e.clusters.errors import StartFailed
from e2e.clusters.processes import POLL

_MOUNTS = Path("/proc/self/mountinfo")

# A killed process that waits for a disk needs a moment before its cgroup is empty.
EMPTY_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted cgroup tree. `options` has the controllers of a version 1 tree."""

    path: Path
    unified: bool
    options: frozenset[str]


def parse_hierarchies(mountinfo: str) -> list[Hierarchy]:
    """The cgroup trees in the text of a mountinfo file (proc(5))."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            path = Path(left.split()[4])
            found.append(Hierarchy(path, kind == "cgroup2", frozenset(options.split(","))))
    return found


def hierarchies() -> list[Hierarchy]:
    """The cgroup trees of this machine."""
    return parse_hierarchies(_MOUNTS.read_text())


@dataclass(frozen=True, slots=True)
class Cgroups:
    """All cgroups below one name, in every mounted tree."""

    name: str
    hierarchies: tuple[Hierarchy, ...]

    @classmethod
    def named(cls, name: str) -> Cgroups:
        """The cgroups of that name on this machine."""
        return cls(name, tuple(hierarchies()))

    @property
    def join(self) -> Path:
        """The cgroup.procs file through which a process joins the cluster's cgroup."""
        for hierarchy in self.hierarchies:
            if "pids" in hierarchy.options:
                return hierarchy.path / self.name / "daemons" / "cgroup.procs"
        unified = next((h.path for h in self.hierarchies if h.unified), None)
        if unified is None:
            raise StartFailed("no cgroup tree is mounted", next_step="mount /sys/fs/cgroup")
        return unified / self.name / "daemons" / "cgroup.procs"

    def create(self) -> None:
        """Creates them, so that the kubelet finds its root under every controller."""
        version_1 = any("pids" in hierarchy.options for hierarchy in self.hierarchies)
        for hierarchy in self.hierarchies:
            if hierarchy.unified and version_1:
                continue
            own = hierarchy.path / self.name
            own.mkdir(exist_ok=True)
            if hierarchy.unified:
                _delegate(hierarchy.path)
                _delegate(own)
            elif "cpuset" in hierarchy.options:
                # A version 1 cpuset starts empty and then takes no process.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (own / file).write_text((hierarchy.path / file).read_text())
        self.join.parent.mkdir(exist_ok=True)

    def pids(self) -> set[int]:
        """Every process in them."""
        found: set[int] = set()
        for folder in self._folders():
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (folder / "cgroup.procs").read_text().split()}
        return found

    def kill(self) -> None:
        """Kills every process in them and waits until they are empty.

        :raises StartFailed: a process does not end.
        """
        deadline = time.monotonic() + EMPTY_TIMEOUT
        while pids := self.pids():
            if time.monotonic() > deadline:
                raise StartFailed(
                    f"processes {sorted(pids)} do not end",
                    where=self.name,
                    next_step="inspect their state in /proc/PID/stack, then run `down` again",
                )
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(POLL / 5)

    def remove(self) -> None:
        """Kills their processes, then removes the cgroups, the deepest first."""
        self.kill()
        for folder in self._folders():
            with contextlib.suppress(FileNotFoundError):
                folder.rmdir()

    def _folders(self) -> list[Path]:
        """All cgroup folders, the deepest first."""
        folders = []
        for hierarchy in self.hierarchies:
            for folder, _, _ in os.walk(hierarchy.path / self.name, topdown=False):
                folders.append(Path(folder))
        return folders


def _delegate(folder: Path) -> None:
    """Enables every controller for the children of a version 2 cgroup."""
    for controller in (folder / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
