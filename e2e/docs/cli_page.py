"""docs/reference/cli.md: every command and option, generated from the commands of typer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from bridge.cli.command_table import app

_HEAD = """\
# Every command and option

<!-- made by `python -m e2e.docs write`: do not edit -->

`kubectl bridge …` is the same as `bridge …`. Commands print results to standard output, progress
and errors to standard error. Exit codes: 0 success, 1 failure, 2 invalid options.

An environment variable sets each option: `CLUSTER_BRIDGE_JOIN_NAME` is `--name` of `bridge join`.
Durations are written as `30s`, `5m` or `1h30m`; a number alone is seconds. With `-o json`, an error
is also printed to standard output, as `{"error": {"message": …, "exitCode": …}}`.

kubectl [cordons and drains](status.md#cordon-and-drain) virtual nodes, and lists the
[Events](conditions-events.md) of both clusters. Manifests have what is applied once:

- [a StorageClass](../how-to/use-volumes.md#create-a-storageclass) with volumes in the remote;
- [alerts](../how-to/monitor.md#prometheus) for Prometheus;
- [a server block](../how-to/names-of-services.md) for names of the home cluster in the remote.
"""
#: The heading of options without a panel.
_OTHERS = "Options"


#: Commands that share most options with others, to whose tables they refer.
_SHARING: Mapping[str, Sequence[str]] = {
    "bridge install": ("bridge join",),
    "bridge render": ("bridge join",),
    "bridge upgrade": ("bridge join", "bridge install"),
}


def page() -> str:
    """The page."""
    commands = _commands()
    sections = [_HEAD]
    for name, command in commands.items():
        shared = _SHARING.get(name, ())
        rows = [row for it in shared for row in _rows(commands[it])]
        without = [*rows, *map(_without_default, rows)]
        sections.append(_section(name, command, shared, without))
    return "\n".join(sections)


def _section(name: str, command: Any, shared: Sequence[str], without: Sequence[str]) -> str:
    arguments = [_argument(each) for each in command.params if each.param_type_name == "argument"]
    panels: dict[str, list[str]] = {}
    for param in _options(command):
        if (row := _row(param)) not in without:
            panels.setdefault(param.rich_help_panel or _OTHERS, []).append(row)
    usage = " ".join([name, *(["[OPTIONS]"] if panels or shared else []), *arguments])
    parts = [f"## `{name}`", f"```\n{usage}\n```", _text(inspect.cleandoc(command.help or ""))]
    if command.epilog:
        examples = command.epilog.replace("\n\n", "\n").removeprefix("Examples:\n")
        parts.append(f"```\n{examples}\n```")
    if shared:
        links = " and ".join(f"[`{it}`](#{it.replace(' ', '-')})" for it in shared)
        parts.append(f"Options: those of {links} that a bridge in a pod can have.")
    for panel, rows in sorted(panels.items(), key=lambda it: it[0] == _OTHERS):
        if len(panels) > 1:
            parts.append(f"**{panel}**")
        head = "| option | meaning | default |\n|---|---|---|"
        parts.append("\n".join([head, *rows]))
    return "\n\n".join(parts) + "\n"


def _rows(command: Any) -> list[str]:
    return [_row(option) for option in _options(command)]


def _without_default(row: str) -> str:
    """The row as in a command whose default is the value that an installation recorded."""
    row = re.sub(r" Default: .*?\.(?= )", "", row)
    return re.sub(r" \|[^|]*\|$", " |  |", row)


def _row(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    if kind := _value_type(param):
        names += f" `{kind}`".replace("|", "\\|")
    meaning = _text(param.help or "")
    if param.multiple:
        meaning += " Repeatable." if "epeatable" not in meaning else ""
    if isinstance(param.envvar, str):
        meaning += f" Environment: `{param.envvar}`."
    return f"| {names} | {meaning} | {_default(param)} |"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if isinstance(param.show_default, str):
        return _text(param.show_default)
    shown = _shown_default(param).replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def _text(text: str) -> str:
    """Help as Markdown, with special characters escaped."""
    for mark, shown in (("\b\n", ""), ("<", "&lt;"), ("|", "\\|"), ("*", "\\*")):
        text = text.replace(mark, shown)
    return text


# -- commands ------------------------------------------------------------------------------


def _commands() -> dict[str, Any]:
    """Full name → command, in the order of the help; without groups and hidden commands."""
    return dict(_below("bridge", typer.main.get_command(app)))


def _options(command: Any) -> Iterator[Any]:
    """The options of a command that its help shows, except ``--help``."""
    for param in command.params:
        hidden = getattr(param, "hidden", False) or param.name == "help"
        if not hidden and param.param_type_name == "option":
            yield param


def _argument(param: Any) -> str:
    """An argument as in a synopsis: in brackets if it is optional."""
    name = str(param.metavar or param.name.upper())
    return name if param.required or re.fullmatch(r"\[[^][]*\]", name) else f"[{name}]"


def _value_type(param: Any) -> str:
    """The type of an option's value, or its choices; "" for a flag."""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor
    if kind.choices:
        return "|".join(str(getattr(choice, "value", choice)) for choice in kind.choices)
    return {bool: "", int: "NUMBER", float: "NUMBER", Path: "PATH"}.get(kind.annotation, "TEXT")


def _shown_default(param: Any) -> str:
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
