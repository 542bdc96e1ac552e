"""The streams that are open: counted by kind, and ended together when the server stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ActiveStreams:
    """Everything that lasts: followed logs, exec, attach and port-forward."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How many are open now, by kind: logs, exec, attach, portforward."""
        self._ends: dict[object, Callable[[], object]] = {}

    @contextmanager
    def one(self, kind: str, end: Callable[[], object]) -> Iterator[None]:
        """Counts one while it lasts. ``end`` begins its end and returns at once."""
        token = object()
        self._ends[token] = end
        self.counts[kind] += 1
        try:
            yield
        finally:
            self.counts[kind] -= 1
            del self._ends[token]

    def end_all(self) -> None:
        """Begins the end of each."""
        for end in list(self._ends.values()):
            end()
