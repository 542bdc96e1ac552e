"""Limits per namespace, and what fits into a process's open files."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator

import pytest

from bridge.base.join_settings import RelaySettings
from bridge.net.open_file_budget import (
    NamespaceLimit,
    fit_to_memory,
    fit_to_open_files,
    max_connections,
    max_listeners,
    required_files,
)


def fill(limit: NamespaceLimit, namespace: str) -> int:
    """Acquires for the namespace until a limit is exceeded; returns how many."""
    count = 0
    while limit.exceeded(namespace) is None:
        limit.acquire(namespace)
        count += 1
    return count


@pytest.mark.parametrize(("maximum", "half"), [(1, 1), (2, 1), (3, 2), (5, 3), (1000, 500)])
def test_single_namespace_gets_half(maximum: int, half: int) -> None:
    limit = NamespaceLimit(maximum)
    assert fill(limit, "a") == half
    assert (limit.used, limit.largest, limit.used_by("a")) == (half, half, half)


def test_each_namespace_leaves_as_many_free_as_it_has() -> None:
    limit = NamespaceLimit(1000)
    assert [fill(limit, name) for name in "abcd"] == [500, 250, 125, 63]
    assert limit.exceeded("a") == "namespace-limit"
    assert limit.exceeded("another") is None


def test_overall_limit_is_never_exceeded() -> None:
    limit = NamespaceLimit(10)
    assert sum(fill(limit, str(number)) for number in range(20)) == 10
    assert limit.exceeded("another") == "limit"


def test_released_capacity_is_free_again() -> None:
    limit = NamespaceLimit(4)
    fill(limit, "a")
    limit.release("a")
    assert limit.exceeded("a") is None
    limit.release("a")
    assert (limit.used, limit.largest, limit.used_by("a")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (required_files(2000), 2000),
        (required_files(2000) - 2, 1999),
        (16_384, 2000),
        (4096, 792),
        (1024, 128),
    ],
)
def test_connections_leave_files_for_everything_else(files: int, expected: int) -> None:
    assert max_connections(2000, files) == expected


@pytest.mark.parametrize(
    ("files", "expected"), [(1 << 20, 4096), (16_384, 2048), (1024, 128), (64, 16)]
)
def test_listeners_are_fewer_with_few_open_files(files: int, expected: int) -> None:
    assert max_listeners(files) == expected
    assert max_listeners(files, addresses=254) == expected + min(254, files // 4)


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit of open files; restores both limits afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_soft_limit_is_raised_for_requested_connections(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    assert fit_to_open_files(RelaySettings(connections=2000)).connections == 2000
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= required_files(2000)


@pytest.mark.parametrize(("image", "connections"), [("", 1811), ("bridge:1", 905)])
def test_connections_follow_from_the_memory(
    image: str, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RelaySettings(connections=2000, image=image)
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 2**30)
    assert fit_to_memory(settings).connections == connections
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 2**33)
    assert fit_to_memory(settings) == settings


def test_pod_addresses_reserve_files(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    fit_to_open_files(RelaySettings(connections=2000, cidr="10.77.0.0/24"))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= required_files(2000) + 254
    assert max_connections(2000, required_files(2000), addresses=254) == 2000 - 127


def test_relay_agents_reserve_files_for_both_directions_and_udp(hard: int) -> None:
    required = required_files(3000, has_agents=True)
    assert required - required_files(3000) == 3000 * 3
    assert max_connections(3000, required, has_agents=True) == 3000
    assert max_connections(3000, required - 1, has_agents=True) == 2999
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    settings = RelaySettings(connections=3000, image="bridge:1")
    assert fit_to_open_files(settings).connections == 3000
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= required


def test_connections_are_reduced_with_a_warning_when_files_are_lacking(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    requested = 1 << 32 if hard == resource.RLIM_INFINITY else hard
    with caplog.at_level(logging.WARNING):
        found = fit_to_open_files(RelaySettings(connections=requested))
    assert 0 < found.connections < requested
    (record,) = caplog.records
    assert f"{requested} connections require" in record.getMessage()
