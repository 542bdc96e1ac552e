"""Bounds of the memory for objects in caches.

The bytes of the home cluster's objects are those that `sync.kube.response_limits.decoded_size`
estimates; those of the remote's are its JSON, because pods of one template have most parts in
common (`sync.cache.interning`). A share may grow while it has less than is free, so that none
takes all. An eighth of the memory is for stubs only (`sync.cache.stub`), which may use all of it.
"""

from __future__ import annotations

from collections.abc import Hashable

from sync.base.memory_limit import memory_share
from sync.kube.response_limits import CACHE_LIMIT, ResponseLimits
from translators.object_accessors import HomeNamespace


class CacheShare:
    """The part of a memory that one store, or one home namespace, has. ``limits`` counts what all
    parts of the memory have."""

    #: A share may have so many times as much as is free.
    _times_free = 1

    def __init__(self, limits: ResponseLimits) -> None:
        self._limits = limits
        # In kB: small integers are shared.
        self._sizes: dict[Hashable, int] = {}
        self._total = 0

    @property
    def limit(self) -> int:
        """Bytes of the memory for all shares."""
        return home_limit()

    @property
    def is_empty(self) -> bool:
        return not self._sizes

    def take(self, key: Hashable, size: int, *, is_stub: bool = False) -> bool:
        """Whether the object may have this size from now on."""
        wanted, limit = (size >> 10) + 1, self.limit
        more = wanted - self._sizes.get(key, 0)
        free = (limit - self._limits.cached) >> 10
        if not is_stub:
            free -= limit >> 13
            free = min(free, self._times_free * free - self._total)
        if more > max(free, 0):
            return False
        self._sizes[key] = wanted
        self._add(more)
        return True

    def release(self, key: Hashable) -> None:
        """Gives the memory of the object back, if it has any."""
        self._add(-self._sizes.pop(key, 0))

    def _add(self, more: int) -> None:
        self._total += more
        self._limits.cached += more << 10


class RemoteShare(CacheShare):
    """The part of one store of the memory for all objects of one remote, which is `CACHE_LIMIT` at
    most. Most of it is for pods, so a store may have three quarters."""

    _times_free = 3

    @property
    def limit(self) -> int:
        return min(CACHE_LIMIT, memory_share(18))


class NamespaceShares:
    """The part of each home namespace of the memory for what its users write: the objects that
    remote pods need."""

    def __init__(self, limits: ResponseLimits) -> None:
        self._limits = limits
        self._shares: dict[HomeNamespace, CacheShare] = {}

    def of(self, namespace: HomeNamespace) -> CacheShare:
        return self._shares.setdefault(namespace, CacheShare(self._limits))

    def forget(self, namespace: HomeNamespace) -> None:
        """Forgets the share of a namespace that has nothing."""
        share = self._shares.get(namespace)
        if share is not None and share.is_empty:
            del self._shares[namespace]


def home_limit() -> int:
    """Bytes of the home cluster's objects."""
    return memory_share(16)
