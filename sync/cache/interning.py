"""Equal parts of objects are kept once: less memory, and a change is found by looking at names.

What holds of objects in an informer's store, which nobody changes:

- A part of a new state that is equal to the part at the same place of the state before *is* that
  part: ``new["spec"] is old["spec"]`` says that nothing in the spec changed, and the same is true
  of ``metadata.labels``, of one condition (by its place in the list), and of any other value.
- Of `Pool`: parts of different objects that are equal are mostly the same object, so that pods of
  one template have their containers, tolerations and texts once. This saves memory and may be
  relied on for nothing else.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import orjson

from translators.objects import Object

#: Parts that a pool knows at least, the last ones that were used: those of some hundred templates,
#: of which each has about ten. One that is in use anyway costs 100 bytes to know.
POOL_PARTS = 4096
#: The longest text, in characters, that is worth looking up: names, images, addresses, times.
_TEXT_MAX = 128


class Intern(Protocol):
    """What is kept of a part that the state before does not have; it may change the part."""

    def __call__(self, part: Any, /) -> Any: ...


def no_interning(part: Any) -> Any:
    """Keeps the part as it is: for kinds whose objects have little in common."""
    return part


def share_unchanged(new: Object, old: Object, pooled: Intern = no_interning) -> None:
    """Puts into ``new``, in the place of what is equal, the parts of ``old``.

    What is equal as a whole is looked at no deeper; what differs is, part by part.
    """
    for name, value in new.items():
        was = old.get(name)
        new[name] = was if value == was else _changed(value, was, pooled)


def _changed(value: Any, was: Any, pooled: Intern) -> Any:
    """The part, of which something differs, with the parts of it that do not."""
    kind = type(value)
    if kind is not type(was):
        return pooled(value)
    if kind is dict:
        share_unchanged(value, was, pooled)
        return value
    if kind is list:
        for at, (item, before) in enumerate(zip(value, was, strict=False)):
            value[at] = before if item == before else _changed(item, before, pooled)
        for at in range(len(was), len(value)):
            value[at] = pooled(value[at])
        return value
    return pooled(value)


class InternPool:
    """Parts that were seen lately, by what they say; for objects that are alike, such as pods."""

    def __init__(self, parts: int = POOL_PARTS) -> None:
        self._parts = parts
        # By the hash of their JSON: two generations, of which the older goes when the younger is
        # full. What is used again is young again.
        self._young: dict[int, Any] = {}
        self._old: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __call__(self, part: Any, /) -> Any:
        """An equal part that was seen before, or else this one, of parts that were."""
        kind = type(part)
        if kind is str:
            return sys.intern(part) if len(part) <= _TEXT_MAX else part
        if kind is dict or kind is list:
            return self._seen(part)
        return part

    def intern_parts(self, part: Any) -> Any:
        """The part itself, of parts that were seen before; for what is surely unlike all others."""
        for at, value in part.items() if type(part) is dict else enumerate(part):
            kind = type(value)
            if kind is str:
                if len(value) <= _TEXT_MAX:
                    part[at] = sys.intern(value)
            elif kind is dict or kind is list:
                part[at] = self._seen(value)
        return part

    def _seen(self, part: Any) -> Any:
        known_by = hash(orjson.dumps(part))
        found = self._young.get(known_by)
        if found is None:
            found = self._old.get(known_by)
            if found is None:
                found = self.intern_parts(part)
            self._remember(known_by, found)
        # NB: two parts can have one hash.
        return found if found is part or found == part else part

    def _remember(self, known_by: int, part: Any) -> None:
        if len(self._young) >= self._parts:
            self._old, self._young = self._young, {}
        self._young[known_by] = part


def intern_pod(pod: Object, pool: InternPool) -> None:
    """Makes a pod that is seen for the first time of parts that were seen before."""
    for name, part in pod.items():
        # No two pods have the same of these.
        own = name in ("metadata", "status") and type(part) is dict
        pod[name] = pool.intern_parts(part) if own else pool(part)
