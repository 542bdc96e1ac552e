"""The last known objects of one resource in one cluster, by key and by index.

All readers share the objects and must not change them. Indexers run when an object is added, and
when a part that they read has changed, but not when an object is removed. `has` and `count`
take constant time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from translators.object_accessors import Object, name_of, namespace_of


class Key(NamedTuple):
    """Namespace and name of an object; ``namespace`` is "" for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Indexer = Callable[[Object], Iterable[Hashable]]


def key_of(obj: Object) -> Key:
    return Key(namespace_of(obj), name_of(obj))


def has_key(obj: Object) -> bool:
    """Whether `key_of` can be read; always true for an object of an API server."""
    return type(obj) is dict and type(obj.get("metadata")) is dict


class _Entry:
    """One value of one index, with the keys of the objects that have it."""

    __slots__ = ("index", "keys", "value")

    def __init__(self, index: dict[Hashable, _Entry], value: Hashable) -> None:
        self.index = index
        self.value = value
        self.keys: set[Key] = set()


class Store:
    """Objects by key, and by the values that each of ``indexers`` returns for them.

    ``reads`` names the parts of an object that indexers read (``spec``, ``metadata.labels``) beside
    its name, namespace and UID: while each part is the identical object (`sync.cache.interning`),
    the values are unchanged. None: indexers may read anything.
    """

    def __init__(
        self, indexers: Mapping[str, Indexer] | None = None, *, reads: Iterable[str] | None = None
    ) -> None:
        self._objects: dict[Key, Object] = {}
        self._indexers = dict(indexers or {})
        self._reads = None if reads is None else tuple(path.split(".") for path in reads)
        self._indices: dict[str, dict[Hashable, _Entry]] = {name: {} for name in self._indexers}
        # The index entries of each object.
        self._entries: dict[Key, tuple[_Entry, ...]] = {}

    def __repr__(self) -> str:
        return f"<Store of {len(self)} indexed by {sorted(self._indexers)}>"

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(tuple(self._objects.values()))

    def keys(self) -> set[Key]:
        return set(self._objects)

    def get(self, key: Key) -> Object | None:
        return self._objects.get(key)

    def by_index(self, index: str, value: Hashable) -> list[Object]:
        """The objects for which the indexer ``index`` returned ``value``."""
        entry = self._indices[index].get(value)
        return [self._objects[key] for key in entry.keys] if entry is not None else []

    @property
    def indices(self) -> Collection[str]:
        """The names of the indexes."""
        return self._indices.keys()

    def has(self, index: str, value: Hashable) -> bool:
        """Whether the indexer ``index`` returned ``value`` for any object."""
        return value in self._indices[index]

    def count(self, index: str, value: Hashable) -> int:
        """For how many objects the indexer ``index`` returned ``value``."""
        entry = self._indices[index].get(value)
        return len(entry.keys) if entry is not None else 0

    def put(self, obj: Object) -> Object | None:
        """Stores the object; returns the one that it replaces, or None."""
        key = key_of(obj)
        old = self._objects.get(key)
        self._objects[key] = obj
        if self._indexers and (old is None or not self._has_equal_index(old, obj)):
            self._remove_from_indices(key)
            self._add_to_indices(key, obj)
        return old

    def remove(self, key: Key) -> Object | None:
        """Removes the object; returns it, or None if there was none."""
        old = self._objects.pop(key, None)
        if old is not None:
            self._remove_from_indices(key)
        return old

    def _has_equal_index(self, old: Object, new: Object) -> bool:
        return self._reads is not None and all(
            _part(old, path) is _part(new, path) for path in self._reads
        )

    def _add_to_indices(self, key: Key, obj: Object) -> None:
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
            # If an indexer raises, the object stays stored, with the index entries so far.
            if entries:
                self._entries[key] = tuple(entries)

    def _remove_from_indices(self, key: Key) -> None:
        for entry in self._entries.pop(key, ()):
            entry.keys.discard(key)
            if not entry.keys:
                del entry.index[entry.value]


def _part(obj: Object, path: list[str]) -> Any:
    part: Any = obj
    for name in path:
        part = part.get(name) if part else None
    return part
