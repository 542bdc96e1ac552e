"""The last known state of one kind in one cluster, found by key or by index.

Objects in the store are shared by all who read it: nobody changes one. A write is seen by the
next read. The store has no opinion on what is true; its informer has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from translators.types import Object, name_of, namespace_of


class Key(NamedTuple):
    """Names an object of a known kind; ``namespace`` is "" for a cluster-scoped one."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Indexer = Callable[[Object], Iterable[Hashable]]


def key_of(obj: Object) -> Key:
    """The key that the store keeps the object by."""
    return Key(namespace_of(obj), name_of(obj))


class Store:
    """Objects by key, and by the values that each of ``indexers`` gives for them."""

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._objects: dict[Key, Object] = {}
        self._indexers = dict(indexers or {})
        self._indices: dict[str, defaultdict[Hashable, set[Key]]] = {
            name: defaultdict(set) for name in self._indexers
        }

    def __repr__(self) -> str:
        return f"<Store of {len(self)} indexed by {sorted(self._indexers)}>"

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(tuple(self._objects.values()))

    def keys(self) -> set[Key]:
        """The keys of all objects, in a set of the caller's own."""
        return set(self._objects)

    def get(self, key: Key) -> Object | None:
        """The object, or None."""
        return self._objects.get(key)

    def by_index(self, index: str, value: Hashable) -> list[Object]:
        """The objects for which the indexer ``index`` gave ``value``."""
        keys = self._indices[index].get(value, ())
        return [self._objects[key] for key in keys]

    def put(self, obj: Object) -> Object | None:
        """Keeps the object; returns the one that it replaces."""
        key = key_of(obj)
        old = self.remove(key)
        self._objects[key] = obj
        for name, indexer in self._indexers.items():
            for value in indexer(obj):
                self._indices[name][value].add(key)
        return old

    def remove(self, key: Key) -> Object | None:
        """Forgets the object; returns it, or None where there was none."""
        old = self._objects.pop(key, None)
        if old is None:
            return None
        for name, indexer in self._indexers.items():
            index = self._indices[name]
            for value in indexer(old):
                index[value].discard(key)
                if not index[value]:
                    del index[value]
        return old
