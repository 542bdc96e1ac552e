"""Versions of objects (``metadata.resourceVersion``), and which of two is the later. Pure."""

from __future__ import annotations

from translators.objects import Object, metadata


def version_of(obj: Object) -> str:
    """The object's version; empty where it has none."""
    return str(metadata(obj).get("resourceVersion") or "")


def newer(one: str, other: str) -> bool:
    """Whether version ``one`` is a later one than ``other``.

    Versions are decimal numbers that grow in all servers that keep to Kubernetes' conformance
    (KEP-5504); where they are not, any other version counts as later.
    """
    if one.isdecimal() and other.isdecimal():
        return int(one) > int(other)
    return one != other


def older(one: Object, other: Object) -> bool:
    """Whether object ``one`` is surely of an earlier version than ``other``."""
    versions = version_of(one), version_of(other)
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
