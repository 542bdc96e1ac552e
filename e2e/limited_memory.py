"""A bridge with the memory limit of an installation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.bridge_process import Bridge
from e2e.clusters.cgroups import hierarchies

#: Bytes that an installation's pod may use.
LIMIT = 2**30


@contextmanager
def limited_memory(bridge: Bridge, name: str) -> Iterator[int]:
    """Runs the bridge in a cgroup ``name`` with `LIMIT`; yields the ID of its process."""
    trees = hierarchies()
    tree = next((tree for tree in trees if "memory" in tree.options), None)
    if tree is None:
        tree = next(tree for tree in trees if tree.unified)
        (tree.path / "cgroup.subtree_control").write_text("+memory")
    group = tree.path / name
    group.mkdir()
    (group / ("memory.max" if tree.unified else "memory.limit_in_bytes")).write_text(f"{LIMIT}")
    bridge.stop()
    bridge.through = ("sh", "-c", 'echo $$ >"$0" && exec "$@"', group / "cgroup.procs")
    bridge.start()
    try:
        assert bridge.process is not None
        yield bridge.process.pid
    finally:
        bridge.stop()
        bridge.through = ()
        group.rmdir()
