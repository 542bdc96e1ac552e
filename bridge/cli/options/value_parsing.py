"""The values of options: durations, and the sentence that rejects a bad value.

Every rejection reads ``"VALUE" is not WHAT; use EXAMPLES``, on the command line after the option's
flag and in the file of a join after its key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
#: Ten years, in seconds: timers cannot have any number.
_LONGEST = 87600 * _SECONDS["h"]
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


class InvalidValueError(ValueError):
    """An option rejects its value; the message quotes the value and names alternatives."""


@dataclass(frozen=True, slots=True)
class Duration:
    """Parses a duration, such as ``5m`` or ``1h30m``, into seconds; a number alone is seconds.

    Rejects a duration below ``minimum`` seconds, and one of more than ten years.
    """

    minimum: float = 0.0

    def __call__(self, value: str | float) -> float:
        """The seconds. Raises InvalidValueError."""
        text = str(value)
        if _PLAIN.fullmatch(text):
            seconds = float(text)
        elif _DURATION.fullmatch(text):
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
        else:
            raise InvalidValueError(f'"{text}" is not a duration; use 30s, 5m or 1h')
        if seconds < self.minimum:
            least = format_duration(self.minimum)
            raise InvalidValueError(f'"{text}" is not long enough; use {least} or more')
        if seconds > _LONGEST:
            most = format_duration(_LONGEST)
            raise InvalidValueError(f'"{text}" is not short enough; use {most} or less')
        return seconds


def format_duration(seconds: float) -> str:
    """Seconds in the largest unit that leaves no fraction: ``5m``, ``90s``, ``1h``."""
    for unit in ("h", "m"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:g}s"


def invalid(
    value: Any,
    *,
    kind: Any = str,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> InvalidValueError:
    """The error for a value that is not of this kind, not a choice, or out of range."""
    if choices:
        return InvalidValueError(f"{quoted(value)} is not a valid choice; use {either(choices)}")
    if kind is bool:
        return InvalidValueError(f"{quoted(value)} is not true or false; use true or false")
    if kind not in (int, float):
        return InvalidValueError(f"{quoted(value)} is not a text; use a text")
    if minimum is not None and maximum is not None:
        hint = f"{minimum:g} to {maximum:g}"
    elif minimum is not None:
        hint = f"{minimum:g} or more"
    else:
        hint = "a number such as 1"
    number = "a whole number" if kind is int else "a number"
    what = "in range" if _is_number(value, whole=kind is int) else number
    return InvalidValueError(f"{quoted(value)} is not {what}; use {hint}")


def quoted(value: Any) -> str:
    """The value in double quotes; only the type of a list or map, which may be long."""
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    text = {None: "null", True: "true", False: "false"}.get(value) if _is_constant(value) else None
    return f'"{value if text is None else text}"'


def either(choices: Sequence[str]) -> str:
    """``a, b or c``."""
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _is_number(value: Any, *, whole: bool) -> bool:
    if isinstance(value, bool):
        return False
    try:
        return float(value).is_integer() or not whole
    except (TypeError, ValueError):
        return False
