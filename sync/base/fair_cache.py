"""A bounded cache that namespaces share: one that fills it evicts its own entries.

Beyond ``maxsize`` entries in all, the namespace that has the most loses its oldest. So an entry of
another namespace stays as long as that has fewer, whatever one tenant does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairCache(Generic[K, V]):
    """Entries by keys that are unique across namespaces, such as UIDs."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._namespaces: dict[K, str] = {}
        # In the order in which they were put; none is empty.
        self._entries: dict[str, dict[K, V]] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def __contains__(self, key: K) -> bool:
        return key in self._namespaces

    def put(self, namespace: str, key: K, value: V) -> None:
        """Adds or replaces the entry, as the namespace's newest."""
        self.pop(key)
        self._namespaces[key] = namespace
        self._entries.setdefault(namespace, {})[key] = value
        if len(self._namespaces) > self._maxsize:
            largest = max(self._entries.values(), key=len)
            self.pop(next(iter(largest)))

    def get(self, key: K) -> V | None:
        """The entry's value, if there is one."""
        namespace = self._namespaces.get(key)
        return None if namespace is None else self._entries[namespace][key]

    def pop(self, key: K) -> V | None:
        """Removes the entry; its value, if there was one."""
        namespace = self._namespaces.pop(key, None)
        if namespace is None:
            return None
        entries = self._entries[namespace]
        value = entries.pop(key)
        if not entries:
            del self._entries[namespace]
        return value
