"""The memory that the process may use, from which the bounds of its caches follow.

`FIXED` bytes of it are for the process itself and for limits that are constants. Limits that grow
with the memory are shares of the rest (`memory_share`), which are 64 in all. The sum is computed by
tests/bridge/test_memory_bounds.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

#: Bytes, where the system states no limit: that of the Deployments in ``manifests``.
DEFAULT = 2**30
#: Bytes that do not depend on the limit.
FIXED = 288 * 2**20

_ROOT = Path("/")


@functools.lru_cache(maxsize=1)
def memory_limit(root: Path = _ROOT) -> int:
    """Bytes: the lowest limit of the process's cgroups (version 1 or 2), or the machine's
    memory. ``root`` has the file systems ``proc`` and ``sys``."""
    return min(_limits(root), default=DEFAULT)


def memory_share(parts: float) -> int:
    """Bytes: so many 64ths of the memory beyond `FIXED`. That is a quarter of the memory at least;
    the sum of all limits then exceeds a memory of less than 384 MiB."""
    memory = memory_limit()
    return int(max(memory - FIXED, memory // 4) * parts / 64)


def _limits(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _limit_files(root):
        with contextlib.suppress(OSError, ValueError):  # No such cgroup, or "max".
            yield int(file.read_text())


def _limit_files(root: Path) -> Iterator[Path]:
    cgroups = root / "sys/fs/cgroup"
    # A mounted tree may begin at the process's own group.
    lines = ["0::/", "0:memory:/"]
    with contextlib.suppress(OSError):
        lines += (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        while group != mount.parent:
            yield group / name
            group = group.parent
