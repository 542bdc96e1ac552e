"""Connections within the files that a process may have open."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator

import pytest

from bridge.base.settings import RelaySettings
from bridge.net.descriptor_limits import listeners, room, wanted, within


@pytest.mark.parametrize(
    ("files", "most"),
    [(wanted(2000), 2000), (wanted(2000) - 2, 1999), (16_384, 2000), (4096, 792), (1024, 128)],
)
def test_connections_leave_files_for_the_rest(files: int, most: int) -> None:
    assert room(2000, files) == most


@pytest.mark.parametrize(
    ("files", "most"), [(1 << 20, 4096), (16_384, 2048), (1024, 128), (64, 16)]
)
def test_listeners_are_fewer_with_few_open_files(files: int, most: int) -> None:
    assert listeners(files) == most
    assert listeners(files, addresses=254) == most + min(254, files // 4)


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the soft one is put back."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_what_is_asked_for_is_asked_of_the_system(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    assert within(RelaySettings(connections=2000)).connections == 2000
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= wanted(2000)


def test_addresses_of_pods_have_files_too(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    within(RelaySettings(connections=2000, cidr="10.77.0.0/24"))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= wanted(2000) + 254
    assert room(2000, wanted(2000), addresses=254) == 2000 - 127


def test_what_the_system_does_not_grant_is_said(
    hard: int, caplog: pytest.LogCaptureFixture
) -> None:
    asked = 1 << 32 if hard == resource.RLIM_INFINITY else hard
    with caplog.at_level(logging.WARNING):
        found = within(RelaySettings(connections=asked))
    assert 0 < found.connections < asked
    (record,) = caplog.records
    assert f"--relay-connections {asked}" in record.getMessage()
    assert f"at most {found.connections}" in record.getMessage()
