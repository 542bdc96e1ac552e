"""Remembers which remotes a replica has just failed to serve, so that others get them. Pure.

The first failure is remembered for `FIRST_SECONDS`, and each within `RESET_SECONDS` of the last one
for twice as long, up to `MAX_SECONDS`: most causes pass soon, such as an API server that restarts,
but a remote that this replica does not reach must neither be tried all the time nor move to and
fro.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bridge.fleet.fleet_report import Standing

#: Seconds: an attempt at a join ends within about as many (`bridge.clusters.connection`); later
#: attempts are not urgent, since another replica serves the remote.
FIRST_SECONDS, MAX_SECONDS = 15.0, 300.0
#: Seconds without a failure after which the next one counts as the first: more than the longest
#: memory and an attempt.
RESET_SECONDS = 2 * MAX_SECONDS


@dataclass(slots=True)
class _Failure:
    seconds: float
    """For how long it is remembered."""
    seen: float
    """When it was last observed."""
    until: float
    is_present: bool = True
    """Whether the replica has not made another attempt since."""


@dataclass(slots=True)
class RecentFailures:
    """The failures of one replica."""

    _by_key: dict[str, _Failure] = field(default_factory=dict)

    def standing(self, key: str, present: Standing, *, now: float) -> Standing:
        """The standing to show for a remote whose present one is ``present``: ``unable`` also while
        a failure is remembered that was not followed by a success."""
        failure = self._by_key.get(key)
        if present in ("unable", "lost"):
            self._by_key[key] = _next(failure, now)
        elif present == "left":
            self._by_key.pop(key, None)
        elif failure is not None:
            failure.is_present = False
            if present in ("ready", "serving"):
                failure.until = now
            elif now < failure.until:
                return "unable"
        return present

    def forget(self, keys: Iterable[str]) -> None:
        """Forgets the failures of these remotes, whose cause has passed."""
        for key in keys:
            self._by_key.pop(key, None)


def _next(last: _Failure | None, now: float) -> _Failure:
    """The failure that is observed now; it is ``last`` if that continues."""
    if last is None or now - last.seen > RESET_SECONDS:
        seconds = FIRST_SECONDS
    elif last.is_present:
        seconds = last.seconds
    else:
        seconds = min(2 * last.seconds, MAX_SECONDS)
    return _Failure(seconds, now, now + seconds)
