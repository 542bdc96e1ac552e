"""What the virtual node as a whole uses: the sum over its pods, and no more.

Not what the remote's machines use: others work there too, and `kubectl top node` sets this against
what the node offers, which is what is left for us.

The CPU counter never falls. Each pod adds what it has used since its last sample; a pod whose
counter fell began anew, and a sample that is not newer than the last one adds nothing. What pods
had used before they were first asked about is not counted, unless they came after that, so that no
start of the bridge shows as a leap; `note` and `go_on` carry the sum from one bridge to the next.
Where nothing is used both numbers are not quite zero
(`NOTHING_SECONDS`, `NOTHING_BYTES`): metrics-server takes zero for missing and drops the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from typing import NamedTuple

NOTHING_SECONDS = 0.001
NOTHING_BYTES = 1


class PodUsage(NamedTuple):
    """What one pod uses."""

    uid: str
    cpu_seconds: float
    milliseconds: int
    """When that was so, since 1970."""
    memory_bytes: float


class NodeUsage:
    """Sums what pods say, one answer after the other."""

    def __init__(self) -> None:
        self.cpu_seconds = NOTHING_SECONDS
        self.memory_bytes: float = NOTHING_BYTES
        self.milliseconds: int | None = None
        """When the newest of the pods' samples was taken; None where no pod has one."""
        self._went_on = False
        self._last: dict[str, tuple[float, int]] = {}
        self._before: Set[str] | None = None

    def note(self) -> str:
        """The sum, for the next bridge."""
        return repr(self.cpu_seconds)

    def go_on(self, note: str) -> None:
        """Begins where the bridge before ended; where that left nothing, or nothing that is a
        number, with what there is. Again, where another bridge has served the node meanwhile: what
        pods used in that time is in its sum."""
        try:
            before = float(note)
        except ValueError:
            return
        if not 0 < before < math.inf:
            return
        if self._went_on:
            self.cpu_seconds = max(self.cpu_seconds, before)
            self._last.clear()
            self._before = None
        else:
            self.cpu_seconds += before
        self._went_on = True

    def count(self, samples: Iterable[PodUsage], *, present: Set[str]) -> None:
        """Takes up an answer. ``present`` are the UIDs of all pods that are there: those that do
        not answer are not forgotten."""
        if self._before is None:
            self._before = present
        newest: int | None = None
        memory = 0.0
        for sample in samples:
            memory += sample.memory_bytes
            newest = max(newest or 0, sample.milliseconds)
            self.cpu_seconds += self._used(sample)
        self.memory_bytes = max(memory, NOTHING_BYTES)
        self.milliseconds = newest
        for gone in self._last.keys() - present:
            del self._last[gone]

    def _used(self, sample: PodUsage) -> float:
        last = self._last.get(sample.uid)
        if last is None:
            self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
            return 0.0 if sample.uid in (self._before or ()) else sample.cpu_seconds
        seconds, at = last
        if sample.milliseconds <= at:
            return 0.0
        self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
        fell = sample.cpu_seconds < seconds
        return sample.cpu_seconds if fell else sample.cpu_seconds - seconds
