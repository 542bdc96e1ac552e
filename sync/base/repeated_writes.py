"""Delays writes whose effect another client sets back again and again.

Without a delay, the two clients would write as fast as the server answers, for ever. The first
write is not delayed. If the same write is needed again soon after it succeeded, it waits, each time
twice as long; if its effect lasted for a while, the next one is not delayed again.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from sync.base import clock
from sync.base.namespace_fair_cache import FairCache

K = TypeVar("K", bound=Hashable)

#: Seconds between the first two equal writes, and the longest time between two.
FIRST, CAP = 1.0, 600.0
#: Seconds beyond the wait for which an effect has to last.
LASTS = 60.0
#: The repetition that is reported: the first ones can be a user's edits.
REPORTED = 3
#: The reason of Events, and of waiting pods, about objects of the remote that another client sets
#: back.
OVERWRITES = "RemoteOverwrites"


class _Written(NamedTuple):
    write: Any
    at: float
    wait: float
    repetitions: int


class RepeatedWrites(Generic[K]):
    """The last write for each key that was sent and succeeded. Writes are kept and compared: for a
    write whose size a user decides, callers pass a digest."""

    def __init__(self) -> None:
        self._last: FairCache[K, _Written] = FairCache()

    def seconds_left(self, key: K, write: Any) -> float:
        """Seconds until the write may be sent; 0 for now."""
        last = self._last.get(key)
        if last is None or last.write != write:
            return 0.0
        return max(0.0, last.at + last.wait - clock.now())

    def delayed(self, key: K) -> tuple[Any, float] | None:
        """The write that has been repeated and must not be sent yet, and the seconds until then."""
        last = self._last.get(key)
        if last is None or not last.repetitions:
            return None
        seconds = self.seconds_left(key, last.write)
        return (last.write, seconds) if seconds else None

    def sent(self, namespace: str, key: K, write: Any) -> int:
        """Records a write that succeeded. Returns how often it has been repeated in a row."""
        last, now = self._last.get(key), clock.now()
        wait, repetitions = FIRST, 0
        if last is not None and last.write == write and now < last.at + 2 * last.wait + LASTS:
            wait, repetitions = min(2 * last.wait, CAP), last.repetitions + 1
        self._last.put(namespace, key, _Written(write, now, wait, repetitions))
        return repetitions

    def forget(self, key: K) -> None:
        self._last.pop(key)


def overwritten_message(what: str) -> str:
    """States that ``what`` is set back, and how the client is found."""
    return (
        f"another client sets {what} back, or deletes it, after each write of the bridge, which "
        "repeats the write at growing intervals of up to ten minutes; `kubectl get -o yaml "
        "--show-managed-fields` names the client"
    )
