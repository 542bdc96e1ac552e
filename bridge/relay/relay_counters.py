"""The relay's counters, for `bridge.observability.metric_families`. They outlive the engine that
counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from bridge.net.splice import Direction
from bridge.net.unsent_budget import UnsentBudget
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


#: Why a datagram was dropped: a queue or buffer was full; too many flows; no ready pod at home; the
#: pod or client could not be reached; longer than the network permits; no bridge was connected.
DATAGRAM_DROPS = ("queue", "flows", "no-pod", "no-way", "too-long", "no-bridge")


@dataclass(slots=True)
class _Connections:
    """Connections in one direction. In ``bytes``, *in* is from clients and *out* to them."""

    open: int = 0
    """Connections that are forwarded or being set up."""
    results: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    unsent: UnsentBudget = field(default_factory=UnsentBudget)
    """Bytes that peers do not take."""

    def count_bytes(self, direction: Direction, count: int) -> None:
        """Counts bytes of a tunnel."""
        self.bytes[direction] += count


@dataclass(slots=True)
class ReverseRelayMetrics(_Connections):
    """Connections from pods in the remote to home, with `REVERSE_RESULTS`."""

    agents: int = 0
    """Relay agents with an open control connection."""
    open_seconds: Histogram = field(default_factory=Histogram)
    """Seconds from the relay agent's message until both ends are connected."""
    flows: int = 0
    """Flows of datagrams."""
    datagrams: Counter[str] = field(default_factory=Counter)
    """Forwarded datagrams by direction, as in ``bytes``."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Dropped datagrams by reason (`DATAGRAM_DROPS`), those that agents report included."""


@dataclass(slots=True)
class RelayMetrics(_Connections):
    """Connections from home to pods in the remote, with `FORWARD_RESULTS`, and the reverse
    direction."""

    limit: int = 0
    """The maximum of ``open``, over all namespaces."""
    listening: int = 0
    """Ports that the bridge listens on."""
    listening_limit: int = 0
    """The maximum of ``listening``, over all namespaces."""
    addresses: int = 0
    """Pod addresses that the bridge listens on (`--relay-cidr`)."""
    dials: Counter[str] = field(default_factory=Counter)
    """Port-forwards by result: ok, failed."""
    dial_seconds: Histogram = field(default_factory=Histogram)
    """Seconds to open a port-forward."""
    reverse: ReverseRelayMetrics = field(default_factory=ReverseRelayMetrics)
