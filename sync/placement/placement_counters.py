"""Counts what the placer does; `bridge.placement.placer_families` reads it at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

from sync.base.histograms import Histogram

#: Seconds from a second, the resolution of a creation's time, to a day, which a pod may wait for
#: room.
WAIT_BOUNDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
#: The most label values of one counter with names of objects; the rest is counted together.
MAX_NAMED = 500
#: Pods whose binding is timed at once; of more, the oldest are not.
MAX_TIMED = 10_000

K = TypeVar("K", bound=Hashable)


class NamedCounts(Generic[K]):
    """A counter by names of objects. After `MAX_NAMED` different ones, new ones count as
    ``other``."""

    def __init__(self, other: K) -> None:
        self._other = other
        self.counts: Counter[K] = Counter()

    def add(self, key: K) -> None:
        known = key in self.counts or len(self.counts) < MAX_NAMED
        self.counts[key if known else self._other] += 1


class PlacementCounters:
    """The counters of one process; they outlive the loss of the Lease."""

    def __init__(self) -> None:
        self.placed: NamedCounts[tuple[str, str]] = NamedCounts(("other", "other"))
        """Placed pods by policy and candidate."""
        self.released: Counter[str] = Counter({"max-wait": 0, "no-policy": 0})
        """Pods released to home's scheduler without a place, by reason."""
        self.refused: NamedCounts[str] = NamedCounts("other")
        """Placed pods that a remote refused, by virtual node."""
        self.evicted: Counter[tuple[str, str]] = Counter(
            {(why, result): 0 for why in ("return", "node-lost") for result in ("done", "blocked")}
        )
        """Evictions by reason and result."""
        self.wait = Histogram(WAIT_BOUNDS)
        """Seconds from the creation of pods until they were placed."""
        self.binding = Histogram(WAIT_BOUNDS)
        """Seconds from then until home's scheduler had bound them."""
        self._placed_at: dict[str, float] = {}

    def pod_placed(
        self, uid: str, policy: str, candidate: str, *, waited: float, at: float
    ) -> None:
        """A pod was placed, ``waited`` seconds after its creation."""
        self.placed.add((policy, candidate))
        self.wait.observe(max(0.0, waited))
        self._placed_at[uid] = at
        if len(self._placed_at) > MAX_TIMED:
            del self._placed_at[next(iter(self._placed_at))]

    def pod_changed(self, uid: str, *, is_bound: bool, is_gone: bool, at: float) -> None:
        """Times the binding of a pod that was placed."""
        if not (is_bound or is_gone) or uid not in self._placed_at:
            return
        since = self._placed_at.pop(uid)
        if is_bound:
            self.binding.observe(at - since)
