"""The limit of memory follows from the process's cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from sync.base.memory_limit import memory_limit

MIB = 2**20
CGROUPS = "sys/fs/cgroup"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The file systems of a process in the cgroup ``pods/one``, without limits."""
    (tmp_path / "sys/fs/cgroup/pods/one").mkdir(parents=True)
    own = tmp_path / "proc/self/cgroup"
    own.parent.mkdir(parents=True)
    own.write_text("0::/pods/one\n")
    return tmp_path


def test_without_a_limit_it_is_the_memory_of_the_machine(root: Path) -> None:
    (root / CGROUPS / "memory.max").write_text("max\n")
    assert memory_limit(root) > 64 * MIB


@pytest.mark.parametrize("group", ["", "pods", "pods/one"])
def test_each_group_above_counts(root: Path, group: str) -> None:
    (root / CGROUPS / group / "memory.max").write_text(f"{64 * MIB}\n")
    (root / CGROUPS / "pods" / "one" / "memory.high").write_text("1\n")
    assert memory_limit(root) == 64 * MIB


def test_lowest_limit_counts(root: Path) -> None:
    (root / CGROUPS / "pods" / "memory.max").write_text(f"{128 * MIB}\n")
    (root / CGROUPS / "pods" / "one" / "memory.max").write_text(f"{64 * MIB}\n")
    assert memory_limit(root) == 64 * MIB


@pytest.mark.parametrize("group", ["", "pods", "pods/one"])
def test_cgroups_of_version_1(root: Path, group: str) -> None:
    (root / "proc/self/cgroup").write_text("4:cpu,memory:/pods/one\n1:cpuset:/\n0::/\n")
    (root / CGROUPS / "memory/pods/one").mkdir(parents=True)
    (root / CGROUPS / "memory" / group / "memory.limit_in_bytes").write_text(f"{64 * MIB}\n")
    assert memory_limit(root) == 64 * MIB
