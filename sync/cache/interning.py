"""Stores equal parts of API objects once, which saves memory and makes changes cheap to detect.

- A part of a new state that equals the part at the same place of the previous state *is* that part:
  ``new["spec"] is old["spec"]`` means that the spec did not change. The same holds for a condition
  (by its index), and for any other value.
- With an `InternPool`, equal parts of different objects are mostly the same object, so that pods of
  one template share containers, tolerations and strings. Nothing may rely on that.
- Both apply to the upper `DEPTH` levels of an object. Each level is compared, or serialized, with
  everything below it: without a bound, an object of a hostile server with hundreds of levels would
  take seconds of the event loop.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import orjson

from sync.kube.response_limits import decoded_size
from translators.object_accessors import Object

#: The least number of recently used parts in a pool: those of some hundred pod templates.
POOL_PARTS = 4096
#: Bytes of memory that the parts of one generation of a pool may need, and one part of it. Parts
#: that contain each other count as often.
POOL_SIZE = 2**23
PART_SIZE = POOL_SIZE // 8
#: Levels of maps and lists in which parts are shared; those of an affinity in a pod are ten.
DEPTH = 12
#: Bytes of the JSON of a part whose own parts are interned: etcd stores little more of an object.
_PART_MAX = 2**20
#: The longest string, in characters, to intern: names, images, addresses, timestamps.
_STRING_MAX = 128


class Intern(Protocol):
    """Returns the object to store for a part that the previous state lacks; may change the part."""

    def __call__(self, part: Any, /) -> Any: ...


def no_interning(part: Any) -> Any:
    return part


def share_unchanged(
    new: Object, old: Object, intern: Intern = no_interning, depth: int = DEPTH
) -> None:
    """Replaces parts of ``new`` by equal parts of ``old``, in so many levels."""
    for name, value in new.items():
        was = old.get(name)
        new[name] = was if value == was else _changed(value, was, intern, depth - 1)


def _changed(value: Any, was: Any, intern: Intern, depth: int) -> Any:
    """A part that differs from the previous one, with the equal parts inside of it shared."""
    kind = type(value)
    if not depth:
        return value
    if kind is not type(was):
        return intern(value)
    if kind is dict:
        share_unchanged(value, was, intern, depth)
        return value
    if kind is list:
        for at, (item, before) in enumerate(zip(value, was, strict=False)):
            value[at] = before if item == before else _changed(item, before, intern, depth - 1)
        for at in range(len(was), len(value)):
            value[at] = intern(value[at])
        return value
    return intern(value)


class InternPool:
    """Recently seen parts by value; for objects that resemble each other, such as pods. It keeps
    its parts alive, and therefore has a limited size in bytes, too."""

    def __init__(self, parts: int = POOL_PARTS) -> None:
        self._parts = parts
        self._size = 0  # of the younger generation
        # By the hash of their JSON, in two generations: when the younger is full, the older is
        # dropped.
        self._young: dict[int, Any] = {}
        self._old: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __call__(self, part: Any, /) -> Any:
        """Returns an equal part that was seen before; else this part, with its own parts
        interned."""
        kind = type(part)
        if kind is str:
            return sys.intern(part) if len(part) <= _STRING_MAX else part
        if kind is dict or kind is list:
            return self._seen(part, DEPTH)
        return part

    def intern_parts(self, part: Any, depth: int = DEPTH) -> Any:
        """Interns the parts of ``part``, in so many levels, but not ``part`` itself, which is
        unlike all others."""
        for at, value in part.items() if type(part) is dict else enumerate(part):
            kind = type(value)
            if kind is str:
                if len(value) <= _STRING_MAX:
                    part[at] = sys.intern(value)
            elif depth and (kind is dict or kind is list):
                part[at] = self._seen(value, depth)
        return part

    def _seen(self, part: Any, depth: int) -> Any:
        raw = orjson.dumps(part)
        key = hash(raw)
        known = self._young.get(key)
        if known is None:
            known = self._old.get(key)
            if known is None:
                known = self.intern_parts(part, depth - 1) if len(raw) <= _PART_MAX else part
            self._keep(key, known, decoded_size(raw))
        # Two parts can have the same hash.
        return known if known is part or known == part else part

    def _keep(self, key: int, part: Any, size: int) -> None:
        if size > PART_SIZE:
            return
        if len(self._young) >= self._parts or self._size + size > POOL_SIZE:
            self._old, self._young, self._size = self._young, {}, 0
        self._young[key] = part
        self._size += size


def intern_pod(pod: Object, pool: InternPool) -> None:
    for name, part in pod.items():
        # These are unique per pod.
        unique = name in ("metadata", "status") and type(part) is dict
        pod[name] = pool.intern_parts(part) if unique else pool(part)
