"""The clock of an API server, by headers that a hostile one may send."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sync.kube.api_server import ServerClock


def test_clock_follows_the_date() -> None:
    server = ServerClock()
    assert server.now() is None
    server.update("Fri, 02 Jan 2026 03:04:05 GMT")
    now = server.now()
    assert now is not None
    assert 0 <= (now - datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)).total_seconds() < 60


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "never",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Thu, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Thu, 01 Jan 1970 00:00:00 +999999999999999",
    ],
)
def test_date_outside_of_the_calendar_is_no_date(date: str | None) -> None:
    server = ServerClock()
    server.update(date)
    assert server.now() is None
