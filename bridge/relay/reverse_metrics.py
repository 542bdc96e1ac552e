"""What a join has carried from pods in the remote to home: numbers for
`bridge.observability.metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bridge.net.active_streams import Direction
from sync.base.histograms import Histogram

#: How connections end: in order; not so; or at once, for want of a ready pod at home, of a way to
#: one, or of room.
ENDS = ("done", "failed", "no-pod", "no-way", "limit", "namespace-limit", "service-limit")


@dataclass(slots=True)
class BackMeasures:
    """What is counted."""

    pods: int = 0
    """Relay pods that are spoken to."""
    open: int = 0
    """Connections that are carried, or for which a way is being opened."""
    ended: Counter[str] = field(default_factory=Counter)
    """Connections by how they ended (`ENDS`)."""
    opening: Histogram = field(default_factory=Histogram)
    """How long ways took to open, from the word of the relay pod to both ends."""
    bytes: Counter[str] = field(default_factory=Counter)
    """``in`` from clients in the remote, ``out`` to them."""

    def moved(self, direction: Direction, count: int) -> None:
        """Counts bytes of a tunnel."""
        self.bytes[direction] += count
