"""Compares resource versions (``metadata.resourceVersion``). Pure."""

from __future__ import annotations

from translators.object_accessors import Object, metadata


def version_of(obj: Object) -> str:
    """The object's resource version; "" if it has none."""
    return str(metadata(obj).get("resourceVersion") or "")


def is_newer(one: str, other: str) -> bool:
    """Whether version ``one`` is later than ``other``. In conformant servers versions are growing
    decimal numbers (KEP-5504); for others, every different version counts as later."""
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return one != other


def is_older(one: Object, other: Object) -> bool:
    """Whether object ``one`` certainly has an earlier version than ``other``."""
    versions = version_of(one), version_of(other)
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
