"""The state of one API server that its clients in a process share: the counters of requests, the
server's clock, and the cluster that must be behind its address."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from sync.base import clock
from sync.base.histograms import Histogram
from sync.kube.endpoint import Endpoint

#: Seconds for which a date is used before the next one is parsed.
CLOCK_UPDATE_INTERVAL = 10.0
#: Times can be calculated from dates until then: Python's calendar ends with 9999.
_LAST_YEAR = 9000


def code_label(status: int) -> str:
    """The status code; of one that is not registered its class (``5xx``), so that a server cannot
    add labels."""
    return str(status) if status in _REGISTERED else f"{status // 100 % 10}xx"


_REGISTERED = frozenset(HTTPStatus)


class RequestMetrics:
    """Counters of the clients and of the informers that use them;
    `bridge.observability.metric_families` exposes them."""

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


def seconds_of_date(date: str | None) -> float | None:
    """The time of a ``Date`` header in seconds since 1970; None without a valid one."""
    try:
        moment = parsedate_to_datetime(date or "")
        return moment.timestamp() if moment.year <= _LAST_YEAR else None
    except (ValueError, OverflowError):
        return None


class ServerClock:
    """The clock of an API server, from the ``Date`` header of its responses.

    Times that a server decides by (when a token expires) are compared with its own clock, since the
    bridge's may be wrong by hours. Between two responses the time advances by `clock.now`.
    """

    def __init__(self) -> None:
        self._date: float | None = None
        self._read_at = 0.0

    def update(self, date: str | None) -> None:
        """Sets the clock from the ``Date`` header of a response just received; a date that is not
        valid changes nothing."""
        now = clock.now()
        if self._date is not None and now - self._read_at < CLOCK_UPDATE_INTERVAL:
            return
        if (found := seconds_of_date(date)) is not None:
            self._date, self._read_at = found, now

    def now(self) -> datetime | None:
        """The server's time now; None before the first response with a date."""
        if self._date is None:
            return None
        return datetime.fromtimestamp(self._date + clock.now() - self._read_at, UTC)


class JoinedCluster:
    """The cluster that an API server must belong to, by the UID of a namespace.

    A kubeconfig that changes while the bridge runs must not lead it to another cluster. So an
    endpoint is confirmed before the first request to it.
    """

    def __init__(self) -> None:
        self.namespace = ""
        """The namespace whose UID identifies the cluster; "" while any cluster is accepted."""
        self.uid = ""
        self.confirming = asyncio.Lock()
        """Held while the UID is read."""
        self._confirmed: Endpoint | None = None

    def expect(self, uid: str, *, namespace: str, endpoint: Endpoint) -> None:
        """Requires this cluster from now on; it was read from ``endpoint``."""
        self.namespace, self.uid, self._confirmed = namespace, uid, endpoint

    def is_confirmed(self, endpoint: Endpoint) -> bool:
        """Whether requests may be sent to this endpoint."""
        return not self.namespace or endpoint is self._confirmed or endpoint == self._confirmed

    def confirm(self, uid: str, endpoint: Endpoint) -> bool:
        """Records the UID that was read from the endpoint; returns whether it is the right one."""
        if uid == self.uid:
            self._confirmed = endpoint
        return uid == self.uid
