"""The clock of an API server, from the ``Date`` header of its responses.

Times that a server decides by (when a token expires) are compared with its own clock, since the
bridge's may be wrong by hours. Between two responses the time advances by `clock.now`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sync.base import clock

#: Seconds for which a date is used before the next one is parsed.
UPDATE_INTERVAL = 10.0


class ServerClock:
    def __init__(self) -> None:
        self._date: float | None = None
        self._read_at = 0.0

    def update(self, date: str | None) -> None:
        """Sets the clock from the ``Date`` header of a response just received."""
        now = clock.now()
        if date is None or (self._date is not None and now - self._read_at < UPDATE_INTERVAL):
            return
        try:
            self._date = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self._read_at = now

    def now(self) -> datetime | None:
        """The server's time now; None before the first response with a date."""
        if self._date is None:
            return None
        return datetime.fromtimestamp(self._date + clock.now() - self._read_at, UTC)
