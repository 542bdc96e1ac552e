"""Samples of the last hour for each remote, in bounded memory.

All remotes are sampled at common times. A remote that was not sampled, or joined later, has None
there: a gap of the plot. Pure except for what callers pass in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from translators.object_accessors import Object

#: Seconds between two samples, and their number in an hour.
INTERVAL, LENGTH = 15.0, 240
#: Pods; the lag in seconds; pods started, errors and bytes relayed per second.
SERIES = ("pods", "lag", "started", "errors", "relay")

#: The values of one remote at one time, in the order of `SERIES`.
Sample = tuple[float | None, ...]
_GAP: Sample = (None,) * len(SERIES)


class History:
    """The samples of all remotes."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=LENGTH)
        self._samples: dict[str, deque[Sample]] = {}
        self.revision = 0
        """The number of samples so far."""

    def add(self, at: float, samples: Mapping[str, Sample]) -> None:
        """Adds the samples of one time, in seconds since the epoch."""
        before = len(self._times)
        self._times.append(at)
        self.revision += 1
        for name in samples.keys() - self._samples.keys():
            self._samples[name] = deque([_GAP] * min(before, LENGTH - 1), maxlen=LENGTH)
        for name, kept in self._samples.items():
            kept.append(samples.get(name, _GAP))

    def keep_only(self, names: Iterable[str]) -> None:
        """Drops the samples of all other remotes."""
        for name in self._samples.keys() - set(names):
            del self._samples[name]

    def since(self, revision: int) -> Object:
        """The samples after ``revision``; all, if it is not known."""
        missing = self.revision - revision
        count = missing if 0 <= missing < len(self._times) else len(self._times)
        start = len(self._times) - count
        return {
            "interval": INTERVAL,
            "series": list(SERIES),
            "times": list(self._times)[start:],
            "remotes": {name: list(its)[start:] for name, its in self._samples.items()},
        }
