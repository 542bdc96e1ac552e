"""The relay's counters, for `bridge.observability.metric_families`. They outlive the engine that
counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bridge.net.splice import Direction
from sync.base.histograms import Histogram

#: How a reverse connection ends: ``done`` (in order), ``failed`` (broken off); or why it was
#: rejected: no ready pod at home, no route to one, or a limit.
REVERSE_RESULTS = (
    "done",
    "failed",
    "no-pod",
    "no-way",
    "limit",
    "namespace-limit",
    "service-limit",
)
#: The same for a forward connection, where ``failed`` is the remote's side alone.
FORWARD_RESULTS = (*REVERSE_RESULTS, "rate", "service-rate")


@dataclass(slots=True)
class ReverseRelayMetrics:
    """Connections from pods in the remote to home."""

    agents: int = 0
    """Relay agents with an open control connection."""
    open: int = 0
    """Connections that are forwarded or being set up."""
    results: Counter[str] = field(default_factory=Counter)
    """Connections by `REVERSE_RESULTS`."""
    open_seconds: Histogram = field(default_factory=Histogram)
    """Seconds from the relay agent's message until both ends are connected."""
    bytes: Counter[str] = field(default_factory=Counter)
    """``in`` from clients in the remote, ``out`` to them."""

    def count_bytes(self, direction: Direction, count: int) -> None:
        """Counts bytes of a tunnel."""
        self.bytes[direction] += count


@dataclass(slots=True)
class RelayMetrics:
    """Connections from home to pods in the remote, and the reverse direction."""

    open: int = 0
    """Connections that are forwarded or being set up."""
    limit: int = 0
    """The maximum of ``open``, over all namespaces."""
    listening: int = 0
    """Ports that the bridge listens on."""
    listening_limit: int = 0
    """The maximum of ``listening``, over all namespaces."""
    addresses: int = 0
    """Pod addresses that the bridge listens on (`--relay-cidr`)."""
    results: Counter[str] = field(default_factory=Counter)
    """Connections by `FORWARD_RESULTS`."""
    dials: Counter[str] = field(default_factory=Counter)
    """Port-forwards by result: ok, failed."""
    dial_seconds: Histogram = field(default_factory=Histogram)
    """Seconds to open a port-forward."""
    bytes: Counter[str] = field(default_factory=Counter)
    """``in`` from clients to pods, ``out`` to clients."""
    reverse: ReverseRelayMetrics = field(default_factory=ReverseRelayMetrics)

    def count_bytes(self, direction: Direction, count: int) -> None:
        """Counts bytes of a tunnel."""
        self.bytes[direction] += count
