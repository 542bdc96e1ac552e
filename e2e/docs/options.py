"""docs/reference/cli.md: every command and every option, from the commands as typer has them."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import typer.main

from bridge.cli.command_group import app

_HEAD = """\
# Every command and option

<!-- made by `python -m e2e.docs write`: do not edit -->

What `--help` says, of all commands. `kubectl bridge …` is the same as `bridge …`. What a command
answers is on standard output, progress and errors are on standard error. Exit status: 0 done, 1 it
failed, 2 the options are wrong.
"""
#: The heading of options that belong under none.
_OTHERS = "Options"


def page() -> str:
    """The page."""
    return "\n".join([_HEAD, *(_section(name, it) for name, it in _commands("bridge", _root()))])


def _root() -> Any:
    return typer.main.get_command(app)


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All that can be called, with the words that call it."""
    if command.hidden:
        return
    below: Mapping[str, Any] = getattr(command, "commands", {})
    if not below:
        yield name, command
    for word, found in below.items():
        yield from _commands(f"{name} {word}", found)


def _section(name: str, command: Any) -> str:
    kinds = _kinds(command.callback)
    arguments: list[str] = []
    panels: dict[str, list[str]] = {}
    for param in command.params:
        if getattr(param, "hidden", False) or param.name == "help":
            continue
        if param.param_type_name == "argument":
            arguments.append(_argument(param))
        else:
            panels.setdefault(param.rich_help_panel or _OTHERS, []).append(
                _row(param, kinds[param.name])
            )
    usage = " ".join([name, *(["[OPTIONS]"] if panels else []), *arguments])
    parts = [f"## `{name}`", f"```\n{usage}\n```", _text(inspect.cleandoc(command.help or ""))]
    for panel, rows in sorted(panels.items(), key=lambda it: it[0] == _OTHERS):
        if len(panels) > 1:
            parts.append(f"**{panel}**")
        head = "| option | meaning | unless given |\n|---|---|---|"
        parts.append("\n".join([head, *rows]))
    return "\n\n".join(parts) + "\n"


def _argument(param: Any) -> str:
    name = str(param.metavar or param.name.upper())
    return name if param.required or re.fullmatch(r"\[[^][]*\]", name) else f"[{name}]"


def _row(param: Any, kind: str) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    if kind:
        names += f" `{param.metavar or kind}`".replace("|", "\\|")
    meaning = _text(param.help or "")
    if param.multiple:
        meaning += " May be given several times." if "several" not in meaning else ""
    if isinstance(param.envvar, str):
        meaning += f" Environment: `{param.envvar}`."
    return f"| {names} | {meaning} | {_default(param)} |"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    value = param.default
    if isinstance(value, Enum):
        value = value.value
    if value is None or value is False or callable(value) or not param.show_default:
        return ""
    if isinstance(param.show_default, str):
        return _text(param.show_default)
    shown = f"{value:g}" if isinstance(value, float) else str(value).replace("|", "\\|")
    return f"`{shown}`"


def _kinds(callback: Callable[..., Any]) -> dict[str, str]:
    """What each parameter takes, in a word; "" for a flag."""
    hints = typing.get_type_hints(inspect.unwrap(callback))
    return {name: _kind(hint) for name, hint in hints.items()}


def _kind(hint: Any) -> str:
    if inner := [it for it in get_args(hint) if it is not NoneType and not _is_choice(hint)]:
        return _kind(inner[0])
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(it.value) for it in hint)
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(hint, "TEXT")


def _is_choice(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _text(text: str) -> str:
    """Help as Markdown: what would be a mark there is a character here."""
    for mark, shown in (("\b\n", ""), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*")):
        text = text.replace(mark, shown)
    return text
