"""Counters of the requests to one API server; `bridge.observability.metric_families` exposes
them."""

from __future__ import annotations

from collections import Counter, defaultdict
from http import HTTPStatus

from sync.base.histograms import Histogram


def code_label(status: int) -> str:
    """The status code; of one that is not registered its class (``5xx``), so that a server cannot
    add labels."""
    return str(status) if status in _REGISTERED else f"{status // 100 % 10}xx"


_REGISTERED = frozenset(HTTPStatus)


class RequestMetrics:
    """Counters of one `sync.kube.transport.Transport` and the informers that use it."""

    def __init__(self) -> None:
        self.durations: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
        """Durations of requests, except streams, by method and status code (``none``: no
        response)."""
        self.streams: Counter[str] = Counter()
        """Opened watches, logs and other streams by status code."""
        self.lists: Counter[str] = Counter()
        """Full lists of informers by resource."""
        self.watches: Counter[str] = Counter()
        """Watches that informers began by resource."""
        self.watch_failures: Counter[str] = Counter()
        """Failed lists and watches of informers by resource."""
        self.defects: Counter[str] = Counter()
        """Events that a defect of the bridge kept from being stored or handled, by resource."""

    @property
    def answered(self) -> Counter[tuple[str, str]]:
        """Requests by method and status code; streams have the method ``STREAM``."""
        streams = {("STREAM", code): count for code, count in self.streams.items()}
        requests = {key: sum(histogram.counts) for key, histogram in self.durations.items()}
        return Counter(requests | streams)
