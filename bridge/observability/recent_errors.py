"""Keeps the last warnings and errors that a join has logged, for its status pages.

At most `MAX_ENTRIES` are kept, the newest; a repeated message increases a count. Each is cut after
`MAX_LENGTH` characters. They are log lines, which contain no secret.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime

from translators.object_accessors import Object
from translators.timestamps import format_time

#: Maximum number of entries, and characters of each.
MAX_ENTRIES, MAX_LENGTH = 30, 500


class RecentErrors(logging.Handler):
    """The warnings and errors that were logged, newest last."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._entries: OrderedDict[str, Object] = OrderedDict()

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Records what is logged while the block runs."""
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Adds the message without its traceback, which can show the content of objects."""
        try:
            self.add(record.levelname.lower(), record.getMessage(), record.created)
        except Exception:  # noqa: BLE001  # as in every handler: a line must not end the bridge
            self.handleError(record)

    def add(self, level: str, message: str, at: float) -> None:
        """Adds a message logged at this time, in seconds since the epoch."""
        # Cut first: a message can quote megabytes of an object, and each word is an object itself.
        text = " ".join(message[: 2 * MAX_LENGTH].split())[:MAX_LENGTH]
        moment = format_time(datetime.fromtimestamp(at, UTC))
        new = {"level": level, "message": text, "count": 0, "first": moment}
        known = self._entries.pop(text, new)
        self._entries[text] = {**known, "count": known["count"] + 1, "last": moment}
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popitem(last=False)

    def as_list(self) -> list[Object]:
        """All entries as JSON objects, newest first."""
        return list(reversed(self._entries.values()))
