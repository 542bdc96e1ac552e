"""Shapes of JSON values: a small language for the types of fields, and the check of a value.

`translators.remote_shapes` describes the API's objects in it. A check stops at the first part of
the wrong type, and skips parts that are identical to those of an earlier object.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from translators.quantity import is_quantity
from translators.timestamps import parse_time

#: Characters of a name of any kind, or of a UID (`IsDNS1123Subdomain` in k8s.io/apimachinery).
NAME_LIMIT = 253
#: Characters of the key of a label or annotation, or of the name of a resource: a subdomain, a
#: slash, and a name of 63 characters (`IsQualifiedName` in k8s.io/apimachinery).
KEY_LIMIT = 317
#: Characters of a time with nanoseconds and an offset.
_TIME_MAX = 40
#: RFC 3339, which API servers require; `parse_time` accepts more of ISO 8601.
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
#: Times that are cached: those of one object, and of the others that changed with it.
_TIMES_CACHED = 1024


class Shape(Protocol):
    """A type of the API that is no plain type of JSON."""

    def wrong(self, value: Any, before: Any) -> str | None:
        """The path below ``value``, which is not None, to the first part of the wrong type; None if
        there is none. Parts that are identical to those of ``before`` are not checked."""


class Fields:
    """A map with known fields; others are not looked at. ``required`` ones are not missing."""

    __slots__ = ("known", "required")

    def __init__(
        self, known: Mapping[str, Shape | type], *, required: tuple[str, ...] = ()
    ) -> None:
        self.known = known
        self.required = required

    def wrong(self, value: Any, before: Any) -> str | None:
        if type(value) is not dict:
            return ""
        known = self.known
        earlier = before if type(before) is dict else _NOTHING
        for name, part in value.items():
            wanted = known.get(name)
            if wanted is None or wanted is type(part) or part is None:
                continue
            was = earlier.get(name)
            if was is part:
                continue
            path = "" if isinstance(wanted, type) else wanted.wrong(part, was)
            if path is not None:
                return f".{name}{path}"
        for name in self.required:
            if value.get(name) is None:
                return f".{name}"
        return None


class ListOf:
    """A list of items of one shape."""

    __slots__ = ("item",)

    def __init__(self, item: Shape | type) -> None:
        self.item = item

    def wrong(self, value: Any, before: Any) -> str | None:
        if type(value) is not list:
            return ""
        item = self.item
        earlier = before if type(before) is list else ()
        for number, part in enumerate(value):
            was = earlier[number] if number < len(earlier) else None
            if item is type(part) or (was is part and part is not None):
                continue
            path = "" if part is None or isinstance(item, type) else item.wrong(part, was)
            if path is not None:
                return f"[{number}]{path}"
        return None


class MapOf:
    """A map of any keys to values of one shape."""

    __slots__ = ("value",)

    def __init__(self, value: Shape | type) -> None:
        self.value = value

    def wrong(self, value: Any, _: Any) -> str | None:
        if type(value) is not dict:
            return ""
        wanted = self.value
        for part in value.values():
            if wanted is type(part):
                continue
            if part is None or isinstance(wanted, type) or wanted.wrong(part, None) is not None:
                return ".*"
        return None


class TextsOf:
    """A map of any keys to texts, as labels and annotations are: values have at most ``each``
    characters, and keys and values at most ``together``."""

    __slots__ = ("each", "together")

    def __init__(self, *, each: int, together: int) -> None:
        self.each, self.together = each, together

    def wrong(self, value: Any, _: Any) -> str | None:
        if type(value) is not dict:
            return ""
        keys, texts = value.keys(), value.values()
        try:
            # Joined in place of a loop, because the map is a part of each object.
            keys_length, texts_length = len("".join(keys)), len("".join(texts))
        except TypeError:  # a value is no text
            return ".*"
        is_within = (
            (keys_length <= KEY_LIMIT or max(map(len, keys)) <= KEY_LIMIT)
            and (texts_length <= self.each or max(map(len, texts)) <= self.each)
            and keys_length + texts_length <= self.together
        )
        return None if is_within else ".*"


class _Amounts:
    """A map of names of resources to quantities."""

    def wrong(self, value: Any, _: Any) -> str | None:
        if type(value) is not dict:
            return ""
        for name, amount in value.items():
            if len(name) > KEY_LIMIT or Quantity.wrong(amount, None) is not None:
                return ".*"
        return None


class _Name:
    """A text of at most `NAME_LIMIT` characters, not empty."""

    def wrong(self, value: Any, _: Any) -> str | None:
        return None if type(value) is str and 0 < len(value) <= NAME_LIMIT else ""


class _Time:
    """A timestamp that an API server accepts."""

    def wrong(self, value: Any, _: Any) -> str | None:
        if type(value) is str and len(value) <= _TIME_MAX and _is_time(value):
            return None
        return ""


class _Int32:
    """An integer of 32 bits."""

    def wrong(self, value: Any, _: Any) -> str | None:
        return None if type(value) is int and -(2**31) <= value < 2**31 else ""


class _Quantity:
    """A quantity: a text, or a number."""

    def wrong(self, value: Any, _: Any) -> str | None:
        return None if type(value) in (str, int, float) and is_quantity(value) else ""


@lru_cache(maxsize=_TIMES_CACHED)
def _is_time(text: str) -> bool:
    if _RFC_3339.fullmatch(text) is None:
        return False
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


_NOTHING: Mapping[str, Any] = {}

Name, Time, Int32, Quantity, Amounts = _Name(), _Time(), _Int32(), _Quantity(), _Amounts()
