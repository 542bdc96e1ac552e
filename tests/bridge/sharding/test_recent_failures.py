"""Failures that a replica remembers."""

from __future__ import annotations

import pytest

from bridge.fleet.fleet_report import Standing
from bridge.sharding.recent_failures import (
    FIRST_SECONDS,
    MAX_SECONDS,
    RESET_SECONDS,
    RecentFailures,
)


def seconds_remembered(failures: RecentFailures, *, now: float) -> float:
    """Fails at ``now``, and returns for how long another attempt does not change the standing."""
    failures.standing("east", "unable", now=now)
    for seconds in range(round(MAX_SECONDS) + 2):
        if failures.standing("east", "starting", now=now + seconds) == "starting":
            return seconds
    raise AssertionError("the failure is never forgotten")


def test_failure_is_remembered_longer_each_time_up_to_a_limit() -> None:
    failures, now, found = RecentFailures(), 1000.0, []
    for _ in range(7):
        found.append(seconds_remembered(failures, now=now))
        now += MAX_SECONDS + 14
    first = round(FIRST_SECONDS)
    assert found == [first, 2 * first, 4 * first, 8 * first, 16 * first, 300, 300]


def test_failure_after_a_long_time_is_a_first_one() -> None:
    failures = RecentFailures()
    for now in (0.0, 100.0):
        seconds_remembered(failures, now=now)
    assert seconds_remembered(failures, now=101 + RESET_SECONDS) == FIRST_SECONDS


def test_failure_that_continues_counts_once_from_its_end() -> None:
    failures = RecentFailures()
    for now in range(100):
        assert failures.standing("east", "lost", now=now) == "lost"
    assert failures.standing("east", "cold", now=99 + FIRST_SECONDS - 1) == "unable"
    assert failures.standing("east", "cold", now=99 + FIRST_SECONDS) == "cold"


@pytest.mark.parametrize("success", ["ready", "serving", "left"])
def test_success_ends_the_memory_of_the_remote_alone(success: Standing) -> None:
    failures = RecentFailures()
    for key in ("east", "west"):
        failures.standing(key, "unable", now=0)
    assert failures.standing("east", success, now=1) == success
    assert failures.standing("east", "starting", now=2) == "starting"
    assert failures.standing("west", "starting", now=2) == "unable"


def test_remote_that_is_reached_now_and_then_stays_longer_with_others_each_time() -> None:
    failures = RecentFailures()
    assert seconds_remembered(failures, now=0) == FIRST_SECONDS
    failures.standing("east", "serving", now=20)
    assert seconds_remembered(failures, now=40) == 2 * FIRST_SECONDS


def test_forgotten_failure_is_one_that_never_happened() -> None:
    failures = RecentFailures()
    for key in ("east", "west"):
        failures.standing(key, "unable", now=0)
    failures.forget(["east", "never seen"])
    assert failures.standing("east", "cold", now=1) == "cold"
    assert failures.standing("west", "cold", now=1) == "unable"
    assert seconds_remembered(failures, now=2) == FIRST_SECONDS
