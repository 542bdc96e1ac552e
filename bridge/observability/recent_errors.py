"""The last warnings and errors that one bridge has logged, for whoever asks it how it is.

At most `KEPT` are held, the newest; one that is said again counts, and is not held twice. Each is
cut after `LENGTH` characters. They are lines of the log, which hold no secret.

Of several bridges in one process each has its own: the tasks of a join log into what was made
current (`Recent.collects`) where the join began.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

from translators.objects import Object
from translators.timestamps import format_time

#: Lines that are held, and characters of each.
KEPT, LENGTH = 30, 500

_current: ContextVar[RecentErrors | None] = ContextVar("recent", default=None)


@dataclass(slots=True)
class _Said:
    level: str
    first: float
    last: float
    count: int = 1


class RecentErrors:
    """What was said, newest last."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, _Said] = OrderedDict()

    @contextlib.contextmanager
    def collect(self) -> Iterator[None]:
        """Takes what the tasks that are begun in the block log, as long as they run."""
        root = logging.getLogger()
        if not any(isinstance(it, _Collector) for it in root.handlers):
            root.addHandler(_Collector())
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def add(self, level: str, message: str, at: float) -> None:
        """Something was said at this time of day."""
        text = " ".join(message.split())[:LENGTH]
        known = self._said.pop(text, None)
        if known is None:
            known = _Said(level, at, at, 0)
            while len(self._said) >= KEPT:
                self._said.popitem(last=False)
        known.last, known.count = at, known.count + 1
        self._said[text] = known

    def as_list(self) -> list[Object]:
        """All, the newest first."""
        return [
            {
                "level": said.level,
                "message": text,
                "count": said.count,
                "first": _moment(said.first),
                "last": _moment(said.last),
            }
            for text, said in reversed(self._said.items())
        ]


class _Collector(logging.Handler):
    """Hands warnings and errors to whom they belong."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        """Notes the line; without a traceback, whose lines can show what objects hold."""
        recent = _current.get()
        if recent is None:
            return
        try:
            recent.add(record.levelname.lower(), record.getMessage(), record.created)
        except Exception:  # noqa: BLE001  # as every handler: a line must not end the bridge
            self.handleError(record)


def _moment(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
