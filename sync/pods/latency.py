"""How soon home knows: the times of pods, measured from what the bridge sees.

- *Status lag*: from the first event of a remote pod that home has not been told until home's answer
  to the write of its status; tries that failed are part of it. An event that changes nothing at
  home is none.
- *Start*: from when a home pod that has not begun is seen on the node until home says that it runs,
  or has run to its end. Pods that were there before, fail first, or are skipped (of DaemonSets) are
  not counted.

Nothing is measured before `begin`: a bridge that stands by sees what another one does. What is kept
is for pods that wait only, and goes with them.
"""

from __future__ import annotations

from time import monotonic

from sync.base.histograms import Histogram
from sync.cache.store import Key
from translators.objects import Object, uid_of
from translators.pods import status, synthetic_status

#: Seconds in which pods start: from what the bridge adds to images of gigabytes.
START_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class PodLatency:
    """The times of the pods of one node."""

    def __init__(self) -> None:
        self.status_lag = Histogram()
        """Status lag, in seconds."""
        self.start = Histogram(START_BOUNDS)
        """Start, in seconds."""
        self._measuring = False
        # Since when a change in the remote has not been told.
        self._news: dict[Key, float] = {}
        # By home UID: since when a pod is to start.
        self._starting: dict[str, float] = {}

    def begin(self) -> None:
        """Measures from now on."""
        self._measuring = True

    def remote_changed(self, key: Key) -> None:
        """The remote pod has changed, and is to be reconciled."""
        if self._measuring:
            self._news.setdefault(key, monotonic())

    def take_change(self, key: Key) -> float | None:
        """Since when the news of this key waits, if there is any: the caller's to tell now."""
        return self._news.pop(key, None)

    def restore_change(self, key: Key, since: float | None) -> None:
        """What was taken could not be told, and waits on."""
        if since is not None:
            self._news[key] = since

    def status_written(self, since: float) -> None:
        """What was taken has been told."""
        self.status_lag.observe(monotonic() - since)

    def home_changed(self, old: Object | None, new: Object | None) -> None:
        """A pod that is bound to the node came, changed or went."""
        if new is None:
            if old is not None:
                self._starting.pop(uid_of(old), None)
        elif old is None:
            if self._measuring and status.phase(new) == "Pending":
                self._starting[uid_of(new)] = monotonic()
        elif self._starting and (phase := status.phase(new)) != "Pending":
            since = self._starting.pop(uid_of(new), None)
            ran = phase in ("Running", "Succeeded") and not synthetic_status.is_creation_blocked(
                new
            )
            if since is not None and ran:
                self.start.observe(monotonic() - since)
