"""Leftovers of a cycle of cluster creation and deletion."""

from __future__ import annotations

import os

import pytest

from e2e import cluster_leak_check


def test_only_what_is_new_is_left_over() -> None:
    before = {"mount": frozenset({"/", "/gone"}), "rule": frozenset({"-A OUTPUT"})}
    after = {"mount": frozenset({"/", "/b", "/a"}), "rule": frozenset({"-A OUTPUT"})}
    assert cluster_leak_check.left(before, after) == ["mount: /a", "mount: /b"]
    assert cluster_leak_check.left(after, after) == []


def test_the_machine_is_looked_at() -> None:
    found = cluster_leak_check.state()
    assert "/proc" in found["mount"]
    assert not [line for line in found["process"] if f" {os.getpid()} of " in line]


def test_a_machine_without_the_programs_has_nothing_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    found = cluster_leak_check.state()
    assert "/proc" in found["mount"]
    assert not found["rule"]


def test_where_others_work_only_what_has_the_name_of_the_set_or_of_docker_counts() -> None:
    lines = [
        "cgroup: /sys/fs/cgroup/pids/cluster-bridge-cycle-home",
        "process: etcd 7 of 1:pids:/cluster-bridge-docker/theirs/kubelet",
        "process: etcd 8 of 1:pids:/cluster-bridge-docker/ours/kubelet",
        "process: etcd 9 of 1:pids:/cluster-bridge-other-home",
        "engine: docker volume abc",
    ]
    assert cluster_leak_check.of_set(lines, "cycle", ["theirs"]) == [lines[0], lines[2], lines[4]]
