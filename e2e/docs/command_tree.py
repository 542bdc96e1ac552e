"""Every command of `bridge` with its options, for the pages made from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from bridge.cli.command_table import app


def root() -> Any:
    """`bridge` itself, the group of all commands."""
    return typer.main.get_command(app)


def commands() -> dict[str, Any]:
    """Full name → command, in the order of the help; without groups and hidden commands."""
    return dict(_below("bridge", root()))


def options(command: Any) -> Iterator[Any]:
    """The options of a command that its help shows, except ``--help``."""
    for param in command.params:
        hidden = getattr(param, "hidden", False) or param.name == "help"
        if not hidden and param.param_type_name == "option":
            yield param


def argument(param: Any) -> str:
    """An argument as in a synopsis: in brackets if it is optional."""
    name = str(param.metavar or param.name.upper())
    return name if param.required or re.fullmatch(r"\[[^][]*\]", name) else f"[{name}]"


def value_type(param: Any) -> str:
    """The type of an option's value, or its choices; "" for a flag."""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor
    if kind.choices:
        return "|".join(str(getattr(it, "value", it)) for it in kind.choices)
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind.annotation, "TEXT")


def default(param: Any) -> str:
    """The default of an option as its help shows it; "" without one."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = param.default.value if isinstance(param.default, Enum) else param.default
    if value is None or value is False or callable(value) or not param.show_default:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if command.hidden:
        return
    below: Mapping[str, Any] = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word, found in below.items():
        yield from _below(f"{name} {word}", found)
