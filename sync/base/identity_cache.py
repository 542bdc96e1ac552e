"""A bounded cache of a function's values for immutable objects.

The key is the identity of an object, which needs no comparison: a stored object keeps its parts
while they are equal to those of its next version (`sync.cache.interning`). The cache keeps its
objects alive; the oldest one is evicted first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

#: Specs of pods for which a value is kept: those of the pods that the workers handle at once. A
#: spec has about 2**13 bytes, and is kept after its pod. With 256 a bridge with 500 pods took 1 MB
#: more, and no less CPU (`python -m e2e.bench burst`).
CACHED_SPECS = 32

V = TypeVar("V")


class IdentityCache(Generic[V]):
    """Calls ``function``, which must depend on its argument alone, once for each of the last
    ``maxsize`` objects."""

    def __init__(self, function: Callable[[Any], V], *, maxsize: int) -> None:
        self._function = function
        self._maxsize = maxsize
        # By the address, which is another object's as soon as this one is not kept any more.
        self._entries: dict[int, tuple[Any, V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __call__(self, obj: Any, /) -> V:
        """Returns the function's value for ``obj``. Raises what the function raises."""
        address = id(obj)
        known = self._entries.get(address)
        if known is not None:
            return known[1]
        value = self._function(obj)
        self._entries[address] = obj, value
        if len(self._entries) > self._maxsize:
            del self._entries[next(iter(self._entries))]
        return value
