"""What the virtual node as a whole uses: the sum over its pods, and no more.

Not what the remote's machines use: others work there too, and `kubectl top node` sets this against
what the node offers, which is what is left for us.

The CPU counter never falls. Each pod adds what it has used since its last sample; a pod whose
counter fell began anew, and a sample that is not newer than the last one adds nothing. The first
sample of a pod counts whole only where the pod was placed on a node of the remote after the answer
before the one that first had it: no start of the bridge shows as a leap, and no pod whose listing
comes late or that is listed again after a gap. `note` and `go_on` carry the sum from one bridge to
the next.
Where nothing is used both numbers are not quite zero
(`NOTHING_SECONDS`, `NOTHING_BYTES`): metrics-server takes zero for missing and drops the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MIN_SECONDS = 0.001
MIN_BYTES = 1
#: Milliseconds by which the clocks of the bridge and of the remote may differ: so much of a pod's
#: use can count twice where the pod is listed again right after it was placed.
MAX_CLOCK_SKEW = 10_000


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
        self.cpu_seconds = MIN_SECONDS
        self.memory_bytes: float = MIN_BYTES
        self.milliseconds: int | None = None
        """When the newest of the pods' samples was taken; None where no pod has one."""
        self._went_on = False
        self._last: dict[str, tuple[float, int]] = {}
        # Pods that are there, and whether their first sample counts whole.
        self._known: dict[str, bool] = {}
        # When the answer before was put together; None where there was none.
        self._answered: int | None = None

    def checkpoint(self) -> str:
        """The sum, for the next bridge."""
        return repr(self.cpu_seconds)

    def resume(self, checkpoint: str) -> None:
        """Begins where the bridge before ended; where that left nothing, or nothing that is a
        number, with what there is. Again, where another bridge has served the node meanwhile: what
        pods used in that time is in its sum."""
        try:
            before = float(checkpoint)
        except ValueError:
            return
        if not 0 < before < math.inf:
            return
        if self._went_on:
            self.cpu_seconds = max(self.cpu_seconds, before)
            self._last.clear()
            self._known.clear()
            self._answered = None
        else:
            self.cpu_seconds += before
        self._went_on = True

    def add(self, samples: Iterable[PodUsage], *, present: Mapping[str, int], now: int) -> None:
        """Takes up an answer that is put together ``now``, in milliseconds since 1970.

        ``present`` has all pods that are there, and when each was placed on a node of the remote:
        those that do not answer are not forgotten.
        """
        before = math.inf if self._answered is None else self._answered - MAX_CLOCK_SKEW
        for uid, placed in present.items():
            self._known.setdefault(uid, placed >= before)
        self._answered = now
        newest: int | None = None
        memory = 0.0
        for sample in samples:
            memory += sample.memory_bytes
            newest = max(newest or 0, sample.milliseconds)
            self.cpu_seconds += self._used(sample)
        self.memory_bytes = max(memory, MIN_BYTES)
        self.milliseconds = newest
        for gone in self._known.keys() - present.keys():
            del self._known[gone]
            self._last.pop(gone, None)

    def _used(self, sample: PodUsage) -> float:
        last = self._last.get(sample.uid)
        if last is None:
            self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
            return sample.cpu_seconds if self._known.get(sample.uid) else 0.0
        seconds, at = last
        if sample.milliseconds <= at:
            return 0.0
        self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
        fell = sample.cpu_seconds < seconds
        return sample.cpu_seconds if fell else sample.cpu_seconds - seconds
