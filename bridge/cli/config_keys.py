"""The options of `bridge join` as keys of a configuration: which there are, and what each takes.

They are read from the command itself, so that an option which it gains is a key, too; a key has the
option's name. What is several things in one text on a command line may be a map (labels) or a list
(taints) here.
"""

from __future__ import annotations

import inspect
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.cli.join import join
from bridge.cli.join_settings import join_settings

#: Of a map, ``KEY=VALUE[,KEY=VALUE]`` is made; of a list ``ITEM[,ITEM]``.
MAPS = frozenset({"labels", "annotations", "node-selector", "reserve"})
LISTS = frozenset({"accept-namespaces", "taints"})


class Wrong(ValueError):
    """A value that an option does not take; the message says what it takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One key."""

    key: str
    parameter: str
    """Its name in `join_settings`."""
    kind: type
    choices: tuple[str, ...]
    default: Any
    """`inspect.Parameter.empty` where it must be given."""
    least: float | None
    most: float | None
    help: str

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is inspect.Parameter.empty

    @property
    def takes(self) -> str:
        """In words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind is bool:
            return "true or false"
        if self.kind in (int, float):
            number = "a whole number" if self.kind is int else "a number"
            bounds = [("from", self.least), ("to", self.most)]
            said = " ".join(f"{word} {it:g}" for word, it in bounds if it is not None)
            return f"{number} {said}".rstrip()
        if self.key in MAPS:
            return "a map of names to values, or a text KEY=VALUE[,KEY=VALUE]"
        return "a list of texts, or one text" if self.key in LISTS else "a text"

    def read(self, value: Any, *, folder: Path) -> Any:
        """As `join_settings` takes it. Paths are found from ``folder``. Raises Wrong."""
        if self.kind is bool:
            if isinstance(value, bool):
                return value
        elif self.kind in (int, float):
            if self._is_number(value):
                return self.kind(value)
        elif (text := self._text(value)) is not None and (not self.choices or text in self.choices):
            return folder / Path(text).expanduser() if self.kind is Path else text
        raise Wrong(f"it takes {self.takes}")

    def _is_number(self, value: Any) -> bool:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        whole = right and (self.kind is float or value == int(value))
        low, high = self.least, self.most
        return whole and (low is None or value >= low) and (high is None or value <= high)

    def _text(self, value: Any) -> str | None:
        if self.key in MAPS and isinstance(value, dict):
            parts = {str(name): _word(it) for name, it in value.items()}
            if None in parts.values():
                return None
            return ",".join(f"{name}={it}" for name, it in parts.items())
        if self.key in LISTS and isinstance(value, list):
            words = [_word(it) for it in value]
            return ",".join(word for word in words if word is not None) if all(words) else None
        return _word(value) if not isinstance(value, bool) else None

    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""
        found: dict[str, Any] = {"description": self.help}
        if self.choices:
            return {**found, "enum": list(self.choices), "default": self.default}
        names = {bool: "boolean", int: "integer", float: "number"}
        scalar = ["string", "number"]
        if self.key in MAPS:
            values = {"type": [*scalar, "boolean"]}
            found["anyOf"] = [
                {"type": "string"},
                {"type": "object", "additionalProperties": values},
            ]
        elif self.key in LISTS:
            found["anyOf"] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
        else:
            found["type"] = names.get(self.kind) or ("string" if self.kind is Path else scalar)
        bounds = {"minimum": self.least, "maximum": self.most}
        found |= {name: it for name, it in bounds.items() if it is not None}
        if not self.required and self.default is not None:
            found["default"] = self.default
        return found


def _word(value: Any) -> str | None:
    """A scalar of YAML as it is written there."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def options() -> dict[str, Option]:
    """All, by their keys, in the order of `bridge join --help`."""
    hints = typing.get_type_hints(join, include_extras=True)
    parameters = inspect.signature(join).parameters
    taken = inspect.signature(join_settings).parameters
    found = [
        _option(name, hints[name], parameters[name].default) for name in parameters if name in taken
    ]
    return {option.key: option for option in found}


def _option(name: str, hint: Any, default: Any) -> Option:
    kind, info = typing.get_args(hint)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        (kind,) = (it for it in typing.get_args(kind) if it is not types.NoneType)
    literal = typing.get_origin(kind) is typing.Literal
    return Option(
        key=name.replace("_", "-"),
        parameter=name,
        kind=str if literal else kind,
        choices=typing.get_args(kind) if literal else (),
        default=default,
        least=info.min,
        most=info.max,
        help=info.help,
    )
