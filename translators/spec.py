"""Small steps on the spec of a pod that several translations share.

A path is as in `translators.podfields`: ``spec.volumes[].projected``, with ``[]`` for each item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from translators.types import Object

#: The lists of containers: ordinary, init (sidecars too) and ephemeral.
CONTAINERS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class Dropped:
    """A field that was left out, and why, in words for the pod's owner."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def each_container(spec: Object, change: Callable[[Object], Object]) -> None:
    """Replaces every container of a new pod (init and ephemeral too) by ``change`` of it."""
    for field_name in CONTAINERS:
        if spec.get(field_name):
            spec[field_name] = [change(container) for container in spec[field_name]]


def put(target: Object, key: str, value: Any) -> None:
    """Sets ``target[key]``, or removes it where the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)


def found(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What the path leads to that is not empty, with the name of each place for a person:
    ``spec.volumes[data].projected``."""
    yield from _found(value, path.split("."), "")


def _found(value: Any, steps: list[str], at: str) -> Iterator[tuple[str, Any]]:
    if not steps:
        if value:
            yield at, value
        return
    key, rest = steps[0].removesuffix("[]"), steps[1:]
    inner = value.get(key) if isinstance(value, dict) else None
    place = f"{at}.{key}" if at else key
    if key == steps[0]:
        yield from _found(inner, rest, place)
        return
    for number, item in enumerate(inner or ()):
        name = item.get("name", number) if isinstance(item, dict) else number
        yield from _found(item, rest, f"{place}[{name}]")


def without(value: Any, path: str) -> Any:
    """The value without what the path leads to. An item of a list that is empty then goes too."""
    return _without(value, path.split("."))


def _without(value: Any, steps: list[str]) -> Any:
    key, rest = steps[0].removesuffix("[]"), steps[1:]
    if not isinstance(value, dict) or key not in value:
        return value
    if not rest:
        return {name: kept for name, kept in value.items() if name != key}
    inner = value[key]
    if key == steps[0]:
        return {**value, key: _without(inner, rest)}
    if not isinstance(inner, list):
        return value
    kept = [(item, _without(item, rest)) for item in inner]
    return {**value, key: [after for before, after in kept if after or not before]}
