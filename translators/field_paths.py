"""Finds, removes and replaces fields of a pod by their paths.

A *path* names a field of the API: ``spec.volumes[].projected``, with ``[]`` for each item of a
list. A *location* names a field of one object: ``spec.volumes[data].projected``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from translators.object_accessors import Object

#: The lists of containers: regular, init (including sidecars) and ephemeral.
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")

#: The field that identifies the items of a list, if it is not ``name``.
LIST_KEYS = {"volumeMounts": "mountPath"}

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class FieldMessage:
    """A dropped or rejected field, and the reason, for the owner of the pod."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def replace_containers(spec: Object, change: Callable[[Object], Object]) -> None:
    """Replaces each container of the spec, also init and ephemeral ones."""
    for field_name in CONTAINERS:
        if spec.get(field_name):
            spec[field_name] = [change(container) for container in spec[field_name]]


def set_or_remove(target: Object, key: str, value: Any) -> None:
    """Sets ``target[key]``, or removes the key if the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)


def items_by_key(items: list[Any], key: str) -> dict[str, Object] | None:
    """The items by key; None unless every item has a distinct key."""
    by_key = {str(item[key]): item for item in items if isinstance(item, dict) and item.get(key)}
    return by_key if len(by_key) == len(items) else None


class FoundField(NamedTuple):
    """A non-empty field that matches one of the paths."""

    path: str
    location: str
    """For messages: ``spec.volumes[data].projected``."""
    value: Any


class _Step(NamedTuple):
    """One key in a tree of paths."""

    key: str
    items: bool
    """Whether the path continues in each item of a list."""
    path: str | None
    """The path that ends at this key."""
    below: tuple[_Step, ...]


class FieldPaths:
    """A set of paths, compiled to a tree. The cost of a search depends on the object, not on the
    number of paths."""

    def __init__(self, *paths: str) -> None:
        tree: dict[str, Any] = {}
        for path in paths:
            node = tree
            for key in path.split("."):
                node = node.setdefault(key, {})
            node[""] = path
        self.steps = _steps(tree)


def _steps(tree: dict[str, Any]) -> tuple[_Step, ...]:
    return tuple(
        _Step(step.removesuffix("[]"), step.endswith("[]"), below.get(""), _steps(below))
        for step, below in tree.items()
        if step
    )


def find_fields(value: Any, paths: FieldPaths) -> Iterator[FoundField]:
    """The non-empty fields that match the paths."""
    return _find(value, paths.steps, "")


def _find(value: Any, steps: tuple[_Step, ...], location: str) -> Iterator[FoundField]:
    if not isinstance(value, dict):
        return
    for key, items, path, below in steps:
        inner = value.get(key)
        if not inner:
            continue
        inner_location = f"{location}.{key}" if location else key
        if path is not None:
            yield FoundField(path, inner_location, inner)
        if not items:
            yield from _find(inner, below, inner_location)
            continue
        for number, item in enumerate(inner):
            name = item.get("name", number) if isinstance(item, dict) else number
            yield from _find(item, below, f"{inner_location}[{name}]")


def remove_fields(value: Any, paths: FieldPaths) -> Any:
    """The value without the fields that match; list items that become empty are removed."""
    return _without(value, paths.steps)


def _without(value: Any, steps: tuple[_Step, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    changed: Object = {}
    removed: list[str] = []
    for key, items, path, below in steps:
        inner = value.get(key, _NOTHING)
        if inner is _NOTHING:
            continue
        if path is not None:
            removed.append(key)
        elif not items:
            kept = _without(inner, below)
            if kept is not inner:
                changed[key] = kept
        elif isinstance(inner, list):
            remaining = [_without(item, below) for item in inner]
            if any(map(operator.is_not, remaining, inner)):
                changed[key] = [
                    it for it, before in zip(remaining, inner, strict=True) if it or not before
                ]
    if not changed and not removed:
        return value
    return {key: changed.get(key, inner) for key, inner in value.items() if key not in removed}
