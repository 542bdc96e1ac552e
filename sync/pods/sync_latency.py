"""Measures how soon home's pods follow the remote.

- *Status lag*: from the first change of a remote pod that home's status does not show yet, to the
  answer to the status write, including failed attempts.
- *Start*: from the first sight of a new home pod on the node until its status shows that it runs,
  or ran to completion. Pods that existed before, fail before they run, or are skipped (DaemonSets)
  do not count.

Nothing is measured before `begin`: a standby sees what the leader does.
"""

from __future__ import annotations

from sync.base import clock
from sync.base.histograms import Histogram
from sync.cache.store import Key
from translators.object_accessors import Object, uid_of
from translators.pods import pod_status, synthetic_status

#: Histogram bounds in seconds, from the bridge's own overhead to the pull of large images.
START_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class PodLatency:
    """The measurements of one virtual node."""

    def __init__(self) -> None:
        self.status_lag = Histogram()
        """Status lag, in seconds."""
        self.start = Histogram(START_BOUNDS)
        """Start, in seconds."""
        self._measuring = False
        # Since when a change in the remote waits to be in home's status, by the home pod's key.
        self._pending: dict[Key, float] = {}
        # Since when a home pod waits to start, by its UID.
        self._starting: dict[str, float] = {}

    def begin(self) -> None:
        self._measuring = True

    def remote_changed(self, key: Key) -> None:
        if self._measuring:
            self._pending.setdefault(key, clock.now())

    def take_change(self, key: Key) -> float | None:
        """Removes the pending change of this key and returns its time; None if there is none."""
        return self._pending.pop(key, None)

    def restore_change(self, key: Key, since: float | None) -> None:
        """Puts back a change that was taken and whose status write failed."""
        if since is not None:
            self._pending[key] = since

    def status_written(self, since: float) -> None:
        self.status_lag.observe(clock.now() - since)

    def home_changed(self, old: Object | None, new: Object | None) -> None:
        """Observes when a home pod begins to wait, starts, or is deleted."""
        if new is None:
            if old is not None:
                self._starting.pop(uid_of(old), None)
        elif old is None:
            if self._measuring and pod_status.phase(new) == "Pending":
                self._starting[uid_of(new)] = clock.now()
        elif self._starting and (phase := pod_status.phase(new)) != "Pending":
            since = self._starting.pop(uid_of(new), None)
            ran = phase in ("Running", "Succeeded") and not synthetic_status.is_creation_blocked(
                new
            )
            if since is not None and ran:
                self.start.observe(clock.now() - since)
