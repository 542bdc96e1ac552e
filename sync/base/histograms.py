"""Numbers on what runs, kept where it runs; whoever shows them reads them.

Plain ints and floats of one event loop: to count costs a fraction of a microsecond, and nothing is
done with them unless somebody asks. No key or label is the name of an object, so that there are as
many numbers after a year as after a minute.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Histogram:
    """Durations in seconds, counted by upper bounds."""

    #: From a cache's answer to a request's limit of time (`transport.REQUEST_TIMEOUT`).
    BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many were at most the bound of that place, and above the one before; the last are
        those above all bounds."""
        self.total = 0.0
        """The sum of all."""

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Counts the time until the end, however that comes."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.observe(time.monotonic() - started)


class RequestMetrics:
    """What was asked of one API server."""

    def __init__(self) -> None:
        self.durations: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
        """By method and code, without streams; ``none`` is the code where there was no answer."""
        self.streams: Counter[str] = Counter()
        """Watches, logs and such, by code, when they are opened."""
        self.lists: Counter[str] = Counter()
        """Full lists of informers, by kind."""
        self.watches: Counter[str] = Counter()
        """Watches that were begun, by kind."""
        self.watch_failures: Counter[str] = Counter()
        """Lists and watches of informers that failed, by kind."""
        self.defects: Counter[str] = Counter()
        """Changes that could not be told or kept whole, for a defect of the bridge, by kind."""

    @property
    def answered(self) -> Counter[tuple[str, str]]:
        """How many requests, by method and code; streams have the method ``STREAM``."""
        streams = {("STREAM", code): count for code, count in self.streams.items()}
        return Counter({key: sum(it.counts) for key, it in self.durations.items()} | streams)
