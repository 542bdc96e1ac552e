"""The last known state of one kind in one cluster, found by key or by index.

Objects in the store are shared by all who read it: nobody changes one. A write is seen by the
next read. The store has no opinion on what is true; its informer has.

A change costs what it changed: where an object stands in the indices is remembered, so that it is
computed when the object comes and when something changed that the indexers read, and never to
take the object out again. `has` and `count` cost the same however many objects there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from translators.objects import Object, name_of, namespace_of


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


class _Entry:
    """One value of one index, and the keys of the objects that have it."""

    __slots__ = ("index", "keys", "value")

    def __init__(self, index: dict[Hashable, _Entry], value: Hashable) -> None:
        self.index = index
        self.value = value
        self.keys: set[Key] = set()


class Store:
    """Objects by key, and by the values that each of ``indexers`` gives for them.

    ``reads`` names the parts of an object that indexers read (``spec``, ``metadata.labels``) beside
    its name, namespace and UID: where each is the very same object as before (`sync.cache.interning`), the
    values are too. None: they may read anything.
    """

    def __init__(
        self,
        indexers: Mapping[str, Indexer] | None = None,
        *,
        reads: Iterable[str] | None = None,
    ) -> None:
        self._objects: dict[Key, Object] = {}
        self._indexers = dict(indexers or {})
        self._reads = None if reads is None else tuple(path.split(".") for path in reads)
        self._indices: dict[str, dict[Hashable, _Entry]] = {name: {} for name in self._indexers}
        # Where each object stands in the indices.
        self._entries: dict[Key, tuple[_Entry, ...]] = {}

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
        entry = self._indices[index].get(value)
        return [self._objects[key] for key in entry.keys] if entry is not None else []

    def has(self, index: str, value: Hashable) -> bool:
        """Whether the indexer ``index`` gave ``value`` for any object."""
        return value in self._indices[index]

    def count(self, index: str, value: Hashable) -> int:
        """For how many objects the indexer ``index`` gave ``value``."""
        entry = self._indices[index].get(value)
        return len(entry.keys) if entry is not None else 0

    def put(self, obj: Object) -> Object | None:
        """Keeps the object; returns the one that it replaces."""
        key = key_of(obj)
        old = self._objects.get(key)
        self._objects[key] = obj
        if self._indexers and (old is None or not self._is_indexed_alike(old, obj)):
            self._take_out(key)
            self._enter(key, obj)
        return old

    def remove(self, key: Key) -> Object | None:
        """Forgets the object; returns it, or None where there was none."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._take_out(key)
        return old

    # -- indices ---------------------------------------------------------------------------

    def _is_indexed_alike(self, old: Object, new: Object) -> bool:
        return self._reads is not None and all(
            _part(old, path) is _part(new, path) for path in self._reads
        )

    def _enter(self, key: Key, obj: Object) -> None:
        entries = []
        try:
            for name, indexer in self._indexers.items():
                index = self._indices[name]
                for value in indexer(obj):
                    entry = index.get(value)
                    if entry is None:
                        entry = index[value] = _Entry(index, value)
                    if key not in entry.keys:
                        entry.keys.add(key)
                        entries.append(entry)
        finally:
            # Where an indexer raises, the object is kept and stands in the indices so far.
            if entries:
                self._entries[key] = tuple(entries)

    def _take_out(self, key: Key) -> None:
        for entry in self._entries.pop(key, ()):
            entry.keys.discard(key)
            if not entry.keys:
                del entry.index[entry.value]


def _part(obj: Object, path: list[str]) -> Any:
    part: Any = obj
    for name in path:
        part = part.get(name) if part else None
    return part
