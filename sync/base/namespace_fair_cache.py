"""A bounded cache shared by namespaces, in which a namespace that fills it evicts its own entries.

Beyond a number of entries in all, the namespace with the most loses its oldest one; so one tenant
cannot evict the entries of namespaces that have fewer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from sync.base.memory_limit import memory_share

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def entries_limit() -> int:
    """Entries of one cache: 5,888 in a process with 1 GiB, and 10,000 at most. An entry has up to a
    kilobyte."""
    return min(10_000, memory_share(1) // 2**11)


class FairCache(Generic[K, V]):
    """A cache whose keys are unique across namespaces, such as UIDs. ``maxsize`` is `entries_limit`
    by default."""

    def __init__(self, maxsize: int | None = None) -> None:
        self._maxsize = entries_limit() if maxsize is None else maxsize
        self._namespaces: dict[K, str] = {}
        # By namespace, in the order in which they were put; no namespace is empty.
        self._entries: dict[str, dict[K, V]] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, key: K) -> bool:
        return key in self._namespaces

    def put(self, namespace: str, key: K, value: V) -> K | None:
        """Adds or replaces an entry, which becomes the newest of its namespace. Returns the key
        that it evicts."""
        self.pop(key)
        self._namespaces[key] = namespace
        self._entries.setdefault(namespace, {})[key] = value
        if len(self._namespaces) > self._maxsize:
            largest = max(self._entries.values(), key=len)
            evicted = next(iter(largest))
            self.pop(evicted)
            return evicted
        return None

    def get(self, key: K) -> V | None:
        namespace = self._namespaces.get(key)
        return None if namespace is None else self._entries[namespace][key]

    def pop(self, key: K) -> V | None:
        namespace = self._namespaces.pop(key, None)
        if namespace is None:
            return None
        entries = self._entries[namespace]
        value = entries.pop(key)
        if not entries:
            del self._entries[namespace]
        return value
