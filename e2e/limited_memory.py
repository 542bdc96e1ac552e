"""A bridge with the memory limit of an installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.bridge_process import Bridge
from e2e.clusters.cgroups import Hierarchy, hierarchies

#: Bytes that an installation's pod may use.
LIMIT = 2**30


@dataclass(frozen=True, slots=True)
class LimitedBridge:
    """The running process and its cgroup."""

    pid: int
    _group: Path
    _tree: Hierarchy

    def socket_bytes(self) -> int:
        """Bytes of the kernel's buffers of all its sockets."""
        if not self._tree.unified:
            return int((self._group / "memory.kmem.tcp.usage_in_bytes").read_text())
        stat = dict(line.split() for line in (self._group / "memory.stat").read_text().splitlines())
        return int(stat["sock"])


@contextmanager
def limited_memory(bridge: Bridge, name: str) -> Iterator[LimitedBridge]:
    """Runs the bridge in a cgroup ``name`` with `LIMIT`, which includes sockets on version 2 of
    cgroups; on version 1 these have a limit of their own, as much again."""
    trees = hierarchies()
    tree = next((tree for tree in trees if "memory" in tree.options), None)
    if tree is None:
        tree = next(tree for tree in trees if tree.unified)
        (tree.path / "cgroup.subtree_control").write_text("+memory")
    group = tree.path / name
    group.mkdir()
    files = ("memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes")
    for file in ("memory.max",) if tree.unified else files:
        (group / file).write_text(f"{LIMIT}")
    bridge.stop()
    bridge.through = ("sh", "-c", 'echo $$ >"$0" && exec "$@"', group / "cgroup.procs")
    bridge.start()
    try:
        assert bridge.process is not None
        yield LimitedBridge(bridge.process.pid, group, tree)
    finally:
        bridge.stop()
        bridge.through = ()
        group.rmdir()
