"""Small steps on the spec of a pod that several translations share.

A path is as in `translators.pods.field_rules`: ``spec.volumes[].projected``, with ``[]`` for each item.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from translators.objects import Object

#: The lists of containers: ordinary, init (sidecars too) and ephemeral.
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class FieldMessage:
    """A field that was left out, and why, in words for the pod's owner."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def replace_containers(spec: Object, change: Callable[[Object], Object]) -> None:
    """Replaces every container of a new pod (init and ephemeral too) by ``change`` of it."""
    for field_name in CONTAINERS:
        if spec.get(field_name):
            spec[field_name] = [change(container) for container in spec[field_name]]


def set_or_remove(target: Object, key: str, value: Any) -> None:
    """Sets ``target[key]``, or removes it where the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)


class FoundField(NamedTuple):
    """A field that is not empty, where one of the paths leads."""

    path: str
    location: str
    """The place, for a person: ``spec.volumes[data].projected``."""
    value: Any


class _Step(NamedTuple):
    """One key on the way of some paths."""

    key: str
    items: bool
    """Whether the way goes on in each item of a list."""
    path: str | None
    """The path that ends here."""
    below: tuple[_Step, ...]


class FieldPaths:
    """Paths that are looked for together: a look costs by what the object has of their beginnings,
    not by how many they are."""

    def __init__(self, *paths: str) -> None:
        tree: dict[str, Any] = {}
        for path in paths:
            at = tree
            for step in path.split("."):
                at = at.setdefault(step, {})
            at[""] = path
        self.steps = _steps(tree)


def _steps(tree: dict[str, Any]) -> tuple[_Step, ...]:
    return tuple(
        _Step(step.removesuffix("[]"), step.endswith("[]"), below.get(""), _steps(below))
        for step, below in tree.items()
        if step
    )


def find_fields(value: Any, paths: FieldPaths) -> Iterator[FoundField]:
    """What the paths lead to that is not empty."""
    return _found(value, paths.steps, "")


def _found(value: Any, steps: tuple[_Step, ...], at: str) -> Iterator[FoundField]:
    if not isinstance(value, dict):
        return
    for key, items, path, below in steps:
        inner = value.get(key)
        if not inner:
            continue
        place = f"{at}.{key}" if at else key
        if path is not None:
            yield FoundField(path, place, inner)
        if not items:
            yield from _found(inner, below, place)
            continue
        for number, item in enumerate(inner):
            name = item.get("name", number) if isinstance(item, dict) else number
            yield from _found(item, below, f"{place}[{name}]")


def remove_fields(value: Any, paths: FieldPaths) -> Any:
    """The value without what the paths lead to. An item of a list that is empty then goes too."""
    return _without(value, paths.steps)


def _without(value: Any, steps: tuple[_Step, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    changed: Object = {}
    gone: list[str] = []
    for key, items, path, below in steps:
        inner = value.get(key, _NOTHING)
        if inner is _NOTHING:
            continue
        if path is not None:
            gone.append(key)
        elif not items:
            kept = _without(inner, below)
            if kept is not inner:
                changed[key] = kept
        elif isinstance(inner, list):
            less = [_without(item, below) for item in inner]
            if any(map(operator.is_not, less, inner)):
                changed[key] = [
                    it for it, before in zip(less, inner, strict=True) if it or not before
                ]
    if not changed and not gone:
        return value
    return {key: changed.get(key, inner) for key, inner in value.items() if key not in gone}
