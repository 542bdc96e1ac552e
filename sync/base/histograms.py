"""Histograms of durations.

Counting takes a fraction of a microsecond; a reader (`bridge.observability.metric_families`) does
the rest at a scrape. Labels never contain names of objects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

from sync.base import clock


class Histogram:
    """Durations in seconds, counted in buckets."""

    #: From an answer out of a cache up to a request's timeout (`transport.REQUEST_TIMEOUT`).
    BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Observations per bucket, not cumulative: above the previous bound, and at most the bound
        of the same index; the last bucket counts those above all bounds."""
        self.total = 0.0
        """The sum of all observations."""

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Observes the duration of the block, also when the block raises."""
        started = clock.now()
        try:
            yield
        finally:
            self.observe(clock.now() - started)
