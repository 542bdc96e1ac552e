"""Decides from Events whether the remote's provisioner fails to provision a PVC for good.

A provisioner tries again and again, at first within seconds and at last every five minutes, and
emits an Event `ProvisioningFailed` for each attempt. Most failures pass, and an unfinished PVC that
is deleted loses what its driver has done so far. So a failure counts as lasting only if several
attempts failed in a row, over `PATIENCE` seconds, the last of them recently.

An error after which the driver may still work on the volume ends the row, as external-provisioner
keeps such a PVC itself (`isFinalError` in kubernetes-csi/external-provisioner).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sync.base import clock
from sync.base.namespace_fair_cache import FairCache
from translators.object_accessors import Object, namespace_of, uid_of

#: Seconds for which attempts must fail, and how many of them.
PATIENCE, ATTEMPTS = 60.0, 3
#: Seconds until a failure without another one no longer counts: the longest interval between two
#: attempts, and an attempt.
MEMORY = 360.0
_CONTINUES = re.compile(r"\bcode = (Canceled|DeadlineExceeded|Unavailable|Aborted)\b")


@dataclass(slots=True)
class _Failures:
    """Failed attempts in a row, by the monotonic clock."""

    first: float
    last: float
    count: int
    message: str


class ProvisioningFailures:
    """Remembers failures by the UID of the remote PVC."""

    def __init__(self) -> None:
        self._failures: FairCache[str, _Failures] = FairCache()

    def observe(self, remote: Object, message: str) -> None:
        """Counts a failed attempt for an unfinished PVC of the remote."""
        if _CONTINUES.search(message):
            self._failures.pop(uid_of(remote))
            return
        now, known = clock.now(), self._failures.get(uid_of(remote))
        if known is None or now - known.last > MEMORY:
            known = _Failures(now, now, 0, message)
        known.last, known.message = now, message
        known.count += 1
        self._failures.put(namespace_of(remote), uid_of(remote), known)

    def lasting(self, remote: Object) -> str:
        """The message of a failure that is lasting; "" if there is none."""
        known = self._failures.get(uid_of(remote))
        if known is None or known.count < ATTEMPTS or known.last - known.first < PATIENCE:
            return ""
        return known.message if clock.now() - known.last <= MEMORY else ""
