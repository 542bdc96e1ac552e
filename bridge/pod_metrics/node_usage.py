"""Computes the resource usage of the virtual node: the sum over its pods.

The remote's nodes run other workloads, too, and `kubectl top node` compares the usage with what the
virtual node offers; so only its own pods count.

The CPU counter never decreases. Each pod adds its usage since its last sample; a counter that fell
was reset, and a sample that is not newer adds nothing. A pod's first sample counts as a whole only
if the pod was scheduled in the remote after the previous response, so that neither a start of the
bridge nor a pod that is listed late or again causes a jump. `checkpoint` and `resume` carry the sum
from one bridge to the next; the next bridge begins again if the sum is `MAX_NODE_SECONDS`, beyond
which it does not grow. Without usage both values are slightly above zero (`MIN_SECONDS`,
`MIN_BYTES`): metrics-server takes zero for missing and drops the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

MIN_SECONDS = 0.001
MIN_BYTES = 1
#: Milliseconds of skew between the clocks of the bridge and the remote: so much usage can count
#: twice if a pod is listed again right after it was scheduled.
MAX_CLOCK_SKEW = 10_000


#: Limits of a sample: more would make the sums meaningless. Years of a hundred cores, of which the
#: nanoseconds fit into an int64; 2**60 bytes; and the year 3000.
MAX_SECONDS, MAX_BYTES, MAX_MILLISECONDS = 9e9, 2.0**60, 32_503_680_000_000
#: Limit of the node's counter, a century of a hundred thousand cores. A float64 of this size still
#: counts fractions of a second.
MAX_NODE_SECONDS = 1e15


class PodUsage(NamedTuple):
    uid: str
    cpu_seconds: float
    milliseconds: int
    """The time of the sample, since 1970."""
    memory_bytes: float

    @property
    def is_valid(self) -> bool:
        """Whether the sample can be added up: it is not NaN, infinite or absurd."""
        return (
            0 <= self.cpu_seconds < MAX_SECONDS
            and 0 <= self.memory_bytes < MAX_BYTES
            and 0 <= self.milliseconds < MAX_MILLISECONDS
        )


class NodeUsage:
    """Adds up the samples of consecutive responses."""

    def __init__(self) -> None:
        self.cpu_seconds = MIN_SECONDS
        self.memory_bytes: float = MIN_BYTES
        self.milliseconds: int | None = None
        """The time of the newest sample; None if no pod has one."""
        self._resumed = False
        self._last: dict[str, tuple[float, int]] = {}
        # The pods that exist, and whether their first sample counts as a whole.
        self._counts_whole: dict[str, bool] = {}
        # When the previous response was built; None if there was none.
        self._last_response: int | None = None

    def checkpoint(self) -> str:
        """The CPU counter, for the next bridge."""
        return repr(self.cpu_seconds)

    def resume(self, checkpoint: str) -> None:
        """Continues the counter of the previous bridge; ignores a checkpoint that is no such
        number.
        Called again if another bridge has served the node meanwhile: its counter includes the usage
        of that time."""
        try:
            before = float(checkpoint)
        except ValueError:
            return
        if not 0 < before < MAX_NODE_SECONDS:
            return
        if self._resumed:
            self.cpu_seconds = max(self.cpu_seconds, before)
            self._last.clear()
            self._counts_whole.clear()
            self._last_response = None
        else:
            self._count(before)
        self._resumed = True

    def add(self, samples: Iterable[PodUsage], *, present: Mapping[str, int], now: int) -> None:
        """Adds the samples of a response built at ``now``, in milliseconds since 1970.

        ``present`` are all pods that exist, with the time when each was scheduled in the remote;
        pods without a sample are remembered. Invalid samples are skipped.
        """
        before = math.inf if self._last_response is None else self._last_response - MAX_CLOCK_SKEW
        for uid, scheduled in present.items():
            self._counts_whole.setdefault(uid, scheduled >= before)
        self._last_response = now
        newest: int | None = None
        memory = 0.0
        for sample in samples:
            if not sample.is_valid:
                continue
            memory += sample.memory_bytes
            newest = max(newest or 0, sample.milliseconds)
            self._count(self._usage_since_last(sample))
        self.memory_bytes = max(memory, MIN_BYTES)
        self.milliseconds = newest
        for gone in self._counts_whole.keys() - present.keys():
            del self._counts_whole[gone]
            self._last.pop(gone, None)

    def _count(self, seconds: float) -> None:
        self.cpu_seconds = min(self.cpu_seconds + seconds, MAX_NODE_SECONDS)

    def _usage_since_last(self, sample: PodUsage) -> float:
        last = self._last.get(sample.uid)
        if last is None:
            self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
            return sample.cpu_seconds if self._counts_whole.get(sample.uid) else 0.0
        seconds, at = last
        if sample.milliseconds <= at:
            return 0.0
        self._last[sample.uid] = sample.cpu_seconds, sample.milliseconds
        fell = sample.cpu_seconds < seconds
        return sample.cpu_seconds if fell else sample.cpu_seconds - seconds
