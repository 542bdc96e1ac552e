"""The time of an API server's clock, by the ``Date`` of its answers.

Times that a server decides by (when a token expires) are compared with the server's own clock: the
bridge's may be wrong by hours. Between two answers the time goes on by this machine's monotonic
clock, which no correction of its wall clock changes.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

#: Seconds for which an answer's date counts before the next one is read.
EVERY = 10.0


class ServerClock:
    """The clock of one API server."""

    def __init__(self) -> None:
        self._date: float | None = None
        self._read_at = 0.0

    def update(self, date: str | None) -> None:
        """Takes the ``Date`` header of an answer that has just come."""
        now = time.monotonic()
        if date is None or (self._date is not None and now - self._read_at < EVERY):
            return
        try:
            self._date = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        self._read_at = now

    def now(self) -> datetime | None:
        """The time there now; None before the first answer with a date."""
        if self._date is None:
            return None
        return datetime.fromtimestamp(self._date + time.monotonic() - self._read_at, UTC)
