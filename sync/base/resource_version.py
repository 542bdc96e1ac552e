"""Compares resource versions (``metadata.resourceVersion``). Pure."""

from __future__ import annotations

from translators.object_accessors import Object, metadata

#: Digits of a version: those of an uint64. Python converts no more than 4300 to a number.
_MAX_DIGITS = 20


def version_of(obj: Object) -> str:
    """The object's resource version; "" if it has none."""
    return str(metadata(obj).get("resourceVersion") or "")


def is_newer(one: str, other: str) -> bool:
    """Whether version ``one`` is later than ``other``. In conformant servers versions are growing
    decimal numbers (KEP-5504); for others, every different version counts as later."""
    if _is_number(one) and _is_number(other):
        return int(one) > int(other)
    return one != other


def is_older(one: Object, other: Object) -> bool:
    """Whether object ``one`` certainly has an earlier version than ``other``."""
    versions = version_of(one), version_of(other)
    return all(map(_is_number, versions)) and int(versions[0]) < int(versions[1])


def _is_number(version: str) -> bool:
    return version.isdecimal() and len(version) <= _MAX_DIGITS
