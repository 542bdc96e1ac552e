"""What the relay of a join has carried: numbers for `bridge.observability.metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bridge.net.active_streams import Direction
from bridge.relay.reverse_metrics import BackMeasures
from sync.base.histograms import Histogram

#: How connections end: in order; not so, on the remote's side; or before they began, for want of a
#: ready pod, of a way to one, of room, or because they came too fast.
ENDS = (
    "done",
    "failed",
    "no-pod",
    "no-way",
    "limit",
    "namespace-limit",
    "service-limit",
    "rate",
    "service-rate",
)


@dataclass(slots=True)
class Measures:
    """What the relay of a join has done; for `bridge.observability.metrics`."""

    open: int = 0
    """Connections that are carried, or for which a way is being opened."""
    limit: int = 0
    """How many of these there may be, of all namespaces."""
    listening: int = 0
    """Ports that are listened on."""
    listening_limit: int = 0
    """How many of these there may be, of all namespaces."""
    addresses: int = 0
    """Addresses of pods at which some of them are (`--relay-cidr`)."""
    ended: Counter[str] = field(default_factory=Counter)
    """Connections by how they ended: done, failed (not in order, on the remote's side), or why
    they were reset before they began: no-pod, no-way, limit, namespace-limit,
    service-limit, rate, service-rate."""
    dials: Counter[str] = field(default_factory=Counter)
    """Ways to pods that were opened, or not: ok, failed."""
    dialling: Histogram = field(default_factory=Histogram)
    """How long that took."""
    bytes: Counter[str] = field(default_factory=Counter)
    """``in`` from clients to pods, ``out`` to clients."""
    back: BackMeasures = field(default_factory=BackMeasures)
    """The other direction."""

    def moved(self, direction: Direction, count: int) -> None:
        """Counts bytes of a tunnel."""
        self.bytes[direction] += count
