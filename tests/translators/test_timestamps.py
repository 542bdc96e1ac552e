"""Timestamps of the Kubernetes API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from translators.timestamps import format_micro_time, format_time, parse_time

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)


def test_time_has_whole_seconds() -> None:
    assert format_time(MOMENT) == "2026-01-02T03:04:05Z"


def test_micro_time_has_six_digits() -> None:
    assert format_micro_time(MOMENT) == "2026-01-02T03:04:05.000006Z"


def test_other_time_zones_are_converted_to_utc() -> None:
    local = MOMENT.astimezone(timezone(timedelta(hours=2)))
    assert format_time(local) == format_time(MOMENT)


@pytest.mark.parametrize(
    "text",
    ["2026-01-02T03:04:05Z", "2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05"],
    ids=["UTC", "an offset", "no offset counts as UTC"],
)
def test_parsing(text: str) -> None:
    assert parse_time(text) == MOMENT.replace(microsecond=0)


def test_parsing_keeps_fractions() -> None:
    assert parse_time(format_micro_time(MOMENT)) == MOMENT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-13-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
    ],
)
def test_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_time(text)
