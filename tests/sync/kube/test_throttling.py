"""How long a throttled request waits, and which responses count as throttled."""

from __future__ import annotations

import pytest

from sync.kube.api_errors import Throttled
from sync.kube.transport import delay, is_throttled, retry_after


def throttled(seconds: float | None) -> Throttled:
    """The error for a response with this ``Retry-After``."""
    return Throttled("busy", side="home", code=429, retry_after=seconds)


@pytest.mark.parametrize(
    ("seconds", "number", "expected"),
    [(0, 1, 0.5), (7, 1, 7), (999, 1, 30), (None, 1, 1), (None, 2, 2), (None, 9, 30)],
)
def test_delay_follows_retry_after_or_doubles(
    seconds: float | None, number: int, expected: float
) -> None:
    assert delay(throttled(seconds), number) == expected


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [(429, {}, True), (503, {"Retry-After": "1"}, True), (503, {}, False), (500, {}, False)],
)
def test_throttled_responses(status: int, headers: dict[str, str], expected: bool) -> None:
    assert is_throttled(status, headers) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("2", 2.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("9" * 400, 86_400.0)],
)
def test_retry_after_in_seconds_counts(value: str, expected: float | None) -> None:
    assert retry_after({"Retry-After": value}) == expected
