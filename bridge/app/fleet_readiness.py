"""Decides whether a bridge of several joins is ready, for the probes of the kubelet that runs it.

The bridge is ready once the source has been read and each of its joins has filled its caches, or
has failed, or `START_SECONDS` have passed: a remote that does not answer holds up no rollout. From
then on the bridge stays ready, because a remote that is added or lost concerns no other node; the
kubelet API of each node has its own ``/readyz``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bridge.base.printable_text import summarize_names
from bridge.fleet.fleet_report import FleetReport

#: Seconds after the first probe that found the source read, until the bridge is ready at the
#: latest. The checks of a join take up to twice `bridge.clusters.connection.CONNECT_SECONDS`.
START_SECONDS = 60.0


class FleetReadiness:
    """The readiness of one process."""

    def __init__(self, report: FleetReport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._read_at: float | None = None
        self._is_ready = False

    def problem(self) -> str:
        """Why the bridge is not ready; "" if it is."""
        if self._is_ready:
            return ""
        report = self._report
        if not report.loads["success"]:
            return report.error or "the joins have not been read yet"
        now = self._clock()
        self._read_at = now if self._read_at is None else self._read_at
        starting = sorted(filter(self._is_starting, report.remotes))
        if starting and now - self._read_at < START_SECONDS:
            return f"the bridge is joining {summarize_names(starting)}"
        self._is_ready = True
        return ""

    def _is_starting(self, key: str) -> bool:
        """Whether the join's first attempt has not ended yet."""
        remote = self._report.remotes[key]
        is_first = remote.state in ("waiting", "joining", "running") and not remote.error
        return is_first and self._report.standing(key) == "starting"
