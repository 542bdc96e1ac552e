"""The pods that wait behind the gate, each with the reason and the policy of its last decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sync.cache.store import Key
from translators.placement.wait_reason import WaitReason

_UNDECIDED: tuple[str, WaitReason] = ("", "undecided")


class WaitingPods:
    """The pods, with sums by reason and policy. Iteration yields their keys, the oldest first."""

    def __init__(self) -> None:
        self._found: dict[Key, tuple[str, WaitReason]] = {}
        self.by_reason: Counter[WaitReason] = Counter()
        self._by_policy: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._found)

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def of_policy(self, policy: str) -> int:
        """How many pods waited when they were last decided by the policy."""
        return self._by_policy[policy]

    def add(self, key: Key) -> None:
        """A pod that has the gate. Does nothing for a known one."""
        if key not in self._found:
            self._set(key, _UNDECIDED)

    def decide(self, key: Key, policy: str, reason: WaitReason) -> None:
        """A decision of the policy found no place for a pod that waits."""
        if key in self._found:
            self._count(self._found[key], -1)
            self._set(key, (policy, reason))

    def remove(self, key: Key) -> str:
        """A pod that waits no longer; returns the policy that last decided it."""
        found = self._found.pop(key)
        self._count(found, -1)
        return found[0]

    def _set(self, key: Key, value: tuple[str, WaitReason]) -> None:
        self._found[key] = value
        self._count(value, 1)

    def _count(self, value: tuple[str, WaitReason], change: int) -> None:
        policy, reason = value
        self.by_reason[reason] += change
        if policy:
            self._by_policy[policy] += change
            if not self._by_policy[policy]:
                del self._by_policy[policy]
