"""The memory that the process may use, from which the bounds of its caches follow."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

#: Bytes, where the system states no limit: that of the Deployments in ``manifests``.
DEFAULT = 512 * 2**20

_ROOT = Path("/")


@functools.lru_cache(maxsize=1)
def memory_limit(root: Path = _ROOT) -> int:
    """Bytes: the lowest limit of the process's cgroups (version 1 or 2), or the machine's
    memory. ``root`` has the file systems ``proc`` and ``sys``."""
    return min(_limits(root), default=DEFAULT)


def _limits(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _limit_files(root):
        with contextlib.suppress(OSError, ValueError):  # No such cgroup, or "max".
            yield int(file.read_text())


def _limit_files(root: Path) -> Iterator[Path]:
    cgroups = root / "sys/fs/cgroup"
    yield cgroups / "memory" / "memory.limit_in_bytes"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    group = cgroups / own
    while group != cgroups.parent:
        yield group / "memory.max"
        group = group.parent
