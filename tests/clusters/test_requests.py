"""Valid requests for clusters, and their recorded parameters."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from e2e import clusters
from e2e.clusters import Backend, ClusterSpec, InvalidRequest, Nodes, Settings, choose
from e2e.clusters.cgroups import parse_hierarchies
from e2e.clusters.cluster import MAX_REAL_NODES, parse_nodes
from e2e.clusters.cluster_record import Record, read_all


@pytest.fixture
def settings() -> Iterator[Settings]:
    """Settings whose state is in a temporary folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Settings(prefix="t", state_root=Path(folder), cache=Path(folder, "cache"))


@pytest.mark.parametrize("name", ["", "Home", "a b", "-a", "a-", "1a", "a" * 21, "../x"])
def test_a_name_that_cannot_be_part_of_a_path_or_host_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="not a valid cluster name"):
        ClusterSpec(name)


def test_only_simulated_nodes_come_in_any_number() -> None:
    assert ClusterSpec("a", Nodes.SIMULATED, 500).node_count == 500
    assert ClusterSpec("a", Nodes.REAL, MAX_REAL_NODES).several_real
    assert not ClusterSpec("a", Nodes.REAL).several_real
    with pytest.raises(InvalidRequest, match="up to 16 real nodes"):
        ClusterSpec("a", Nodes.REAL, MAX_REAL_NODES + 1)


def test_several_real_nodes_are_kinds(settings: Settings) -> None:
    several = [ClusterSpec("home"), ClusterSpec("remote", Nodes.REAL, 3)]
    assert choose(replace(settings, backend=Backend.KIND), several) is Backend.KIND
    with pytest.raises(InvalidRequest, match="one real node") as error:
        choose(replace(settings, backend=Backend.NATIVE), several)
    assert "--backend kind" in str(error.value)


@pytest.mark.parametrize("prefix", ["", "A", "with-dash", "waytoolongforit"])
def test_a_prefix_fits_into_interface_names(prefix: str) -> None:
    with pytest.raises(InvalidRequest, match="not a valid prefix"):
        Settings(prefix=prefix)


def test_a_state_folder_leaves_room_for_sockets() -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        Settings(state_root=Path("/" + "x" * 60))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("real", (Nodes.REAL, 3)),
        ("simulated", (Nodes.SIMULATED, 3)),
        ("simulated=500", (Nodes.SIMULATED, 500)),
    ],
)
def test_nodes_are_read_with_or_without_a_number(text: str, expected: tuple[Nodes, int]) -> None:
    assert parse_nodes(text, 3) == expected


@pytest.mark.parametrize("text", ["", "fake", "simulated=", "simulated=-1", "real=x"])
def test_other_nodes_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no such nodes"):
        parse_nodes(text, 1)


def test_a_record_is_read_as_it_was_written(settings: Settings) -> None:
    spec = ClusterSpec("big", Nodes.SIMULATED, 5)
    record = Record.new(settings, spec, Backend.NATIVE, 3)
    assert record.this_boot
    record.write(settings)
    assert read_all(settings) == {"big": record}
    assert record.spec == spec
    record.require_same(settings, spec)
    with pytest.raises(InvalidRequest, match="big is up with 5 simulated"):
        record.require_same(settings, ClusterSpec("big"))


def test_only_clusters_that_came_up_in_this_boot_are_found(settings: Settings) -> None:
    record = Record.new(settings, ClusterSpec("a"), Backend.NATIVE, 0)
    record.write(settings)
    assert clusters.find(settings) == {}
    replace(record, ready=True, boot="earlier").write(settings)
    assert clusters.find(settings) == {}


def test_a_set_keeps_the_backend_it_has(settings: Settings) -> None:
    Record.new(settings, ClusterSpec("a"), Backend.NATIVE, 0).write(settings)
    assert clusters.choose(settings, clusters.specs()) is Backend.NATIVE
    with pytest.raises(InvalidRequest, match="on the backend native"):
        clusters.choose(replace(settings, backend=Backend.KIND), clusters.specs())


def test_simulated_nodes_are_native(settings: Settings) -> None:
    wanted = clusters.specs(nodes=Nodes.SIMULATED, node_count=9)
    assert clusters.choose(settings, wanted) is Backend.NATIVE
    with pytest.raises(InvalidRequest, match="kind has no simulated nodes"):
        clusters.choose(replace(settings, backend=Backend.KIND), wanted)


def test_taking_down_what_was_never_up_is_no_error(settings: Settings) -> None:
    clusters.down(["home"], settings)


def test_cgroup_trees_of_both_versions_are_found() -> None:
    text = (
        "23 27 0:22 / /sys rw,relatime - sysfs sysfs rw\n"
        "31 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "32 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    first, second = parse_hierarchies(text)
    assert (str(first.path), first.unified) == ("/sys/fs/cgroup/cpu,cpuacct", False)
    assert {"cpu", "cpuacct"} <= first.options
    assert second.unified
