"""Small steps on the spec of a pod that several translations share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from translators.types import Object


@dataclass(frozen=True, slots=True)
class Dropped:
    """A field that was left out, and why, in words for the pod's owner."""

    field: str
    why: str

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


def each_container(spec: Object, change: Callable[[Object], Object]) -> None:
    """Replaces every container of a new pod (init too) by ``change`` of it."""
    for field_name in ("initContainers", "containers"):
        if spec.get(field_name):
            spec[field_name] = [change(container) for container in spec[field_name]]


def put(target: Object, key: str, value: Any) -> None:
    """Sets ``target[key]``, or removes it where the value is empty."""
    if value:
        target[key] = value
    else:
        target.pop(key, None)
