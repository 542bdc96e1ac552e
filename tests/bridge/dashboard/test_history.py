"""The samples of an hour, and what they are made of."""

from __future__ import annotations

import pytest

from bridge.dashboard.fleet_watch import Counters, rate, read_counters
from bridge.dashboard.history import LENGTH, SERIES, History, Sample


def sample(value: float) -> Sample:
    return (value,) * len(SERIES)


def test_memory_is_bounded_by_an_hour() -> None:
    history = History()
    for at in range(LENGTH + 50):
        history.add(float(at), {"a": sample(at)})
    found = history.since(0)
    assert len(found["times"]) == len(found["remotes"]["a"]) == LENGTH
    assert found["times"][-1] == LENGTH + 49


def test_remote_that_joins_later_has_gaps_before() -> None:
    history = History()
    history.add(1.0, {"a": sample(1)})
    history.add(2.0, {"a": sample(2), "b": sample(5)})
    history.add(3.0, {"b": sample(6)})
    gap = (None,) * len(SERIES)
    remotes = history.since(0)["remotes"]
    assert remotes == {"a": [sample(1), sample(2), gap], "b": [gap, sample(5), sample(6)]}
    history.keep_only(["b"])
    assert list(history.since(0)["remotes"]) == ["b"]


def test_reader_gets_what_is_new() -> None:
    history = History()
    for at in range(5):
        history.add(float(at), {"a": sample(at)})
    assert history.since(3)["times"] == [3.0, 4.0]
    assert history.since(3)["remotes"]["a"] == [sample(3), sample(4)]
    assert history.since(5)["times"] == []
    assert len(history.since(99)["times"]) == 5


def test_counters_are_read_from_an_exposition() -> None:
    text = """
# HELP bridge_reconciles_total x
bridge_pod_start_duration_seconds_count 12.0
bridge_pod_start_duration_seconds_sum 99
bridge_reconciles_total{name="pods",result="success"} 1000
bridge_reconciles_total{name="pods",result="failure"} 3
bridge_reconciles_total{name="mirror",result="defect"} 1
bridge_watch_failures_total{side="remote",resource="pods"} 2
bridge_relay_bytes_total{direction="in"} 1e3
bridge_relay_back_bytes_total{direction="out"} 24
bridge_relay_bytes_total{direction="out"} nonsense
bridge_relay_bytes_total{direction="out"} NaN
process_cpu_seconds_total 5
"""
    assert read_counters(text) == Counters(started=12, errors=6, relayed=1024)
    assert read_counters("\x00{{{\nbridge_") == Counters()


@pytest.mark.parametrize(
    ("before", "now", "seconds", "found"), [(1, 7, 2, 3.0), (7, 1, 2, None), (1, 1, 0, None)]
)
def test_rate(before: float, now: float, seconds: float, found: float | None) -> None:
    assert rate(before, now, seconds) == found
