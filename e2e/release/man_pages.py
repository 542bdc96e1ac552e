"""Manual pages of `bridge` and of each command, made from the commands.

Format: man(7) macros, as groff and mandoc read them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from e2e.docs import command_tree

_FILES = """\
.SH EXIT STATUS
0: success. 1: failure. 2: invalid options.
.SH ENVIRONMENT
An environment variable sets each option: CLUSTER_BRIDGE_JOIN_NAME is
.B \\-\\-name
of
.BR "bridge join" .
"""


def pages(version: str, epoch: int) -> Mapping[str, str]:
    """File name → page: `bridge.1`, and `bridge-join.1` for `bridge join`; epoch: their date."""
    commands = command_tree.commands()
    date = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d")
    made = {"bridge.1": _overview(commands, version, date)}
    for name, command in commands.items():
        made[f"{_dashed(name)}.1"] = _page(name, command, version, date)
    return made


def _overview(commands: Mapping[str, Any], version: str, date: str) -> str:
    root = command_tree.root()
    lines = [
        *_head("bridge", root.help or "", version, date),
        ".SH SYNOPSIS",
        ".B bridge",
        "[OPTIONS] COMMAND [ARGS]",
        ".PP",
        ".B kubectl bridge",
        "[OPTIONS] COMMAND [ARGS]",
        ".SH DESCRIPTION",
        _text(root.help or ""),
        ".SH COMMANDS",
    ]
    for name, command in commands.items():
        lines += [".TP", f".BR {_dashed(name, escaped=True)} (1)", _text(_summary(command))]
    return "\n".join([*lines, _FILES])


def _page(name: str, command: Any, version: str, date: str) -> str:
    options = list(command_tree.options(command))
    arguments = [
        command_tree.argument(it) for it in command.params if it.param_type_name == "argument"
    ]
    synopsis = " ".join([*(["[OPTIONS]"] if options else []), *arguments])
    lines = [
        *_head(_dashed(name), _summary(command), version, date),
        ".SH SYNOPSIS",
        f".B {_text(name)}",
        *([_text(synopsis)] if synopsis else []),
        ".SH DESCRIPTION",
    ]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines += [_text(paragraph.replace("\b\n", "")), ".PP"]
    lines.pop()
    if options:
        lines.append(".SH OPTIONS")
        for param in options:
            lines += _option(param)
    if command.epilog:
        lines += [".SH EXAMPLES", ".nf"]
        lines += [_text(line) for line in _examples(command.epilog)]
        lines.append(".fi")
    return "\n".join([*lines, _FILES + ".SH SEE ALSO\n.BR bridge (1)\n"])


def _head(name: str, summary: str, version: str, date: str) -> list[str]:
    title = _text(name).upper()
    short = _text(summary.split("\n\n", maxsplit=1)[0].rstrip("."))
    return [
        '.\\" Made from the commands of bridge; do not edit.',
        f'.TH "{title}" "1" "{date}" "cluster\\-bridge {version}" "User Commands"',
        ".SH NAME",
        f"{_text(name)} \\- {short}",
    ]


def _option(param: Any) -> Iterator[str]:
    names = ", ".join(f"\\fB{_text(it)}\\fR" for it in [*param.opts, *param.secondary_opts])
    kind = command_tree.value_type(param)
    yield ".TP"
    yield names + (f" \\fI{_text(kind)}\\fR" if kind else "")
    meaning = param.help or ""
    if param.required:
        meaning += " Required."
    elif shown := command_tree.default(param):
        meaning += f" Default: {shown}."
    if param.multiple and "epeatable" not in meaning:
        meaning += " Repeatable."
    yield _text(meaning.strip())


def _examples(epilog: str) -> list[str]:
    return [it for it in epilog.split("\n\n") if it != "Examples:"]


def _summary(command: Any) -> str:
    return (command.help or "").split("\n\n")[0]


def _dashed(name: str, *, escaped: bool = False) -> str:
    dashed = name.replace(" ", "-")
    return _text(dashed) if escaped else dashed


def _text(text: str) -> str:
    """Text with the characters escaped that are special, also at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"(?m)^([.'])", r"\\&\1", text)
    return "".join(it if it.isascii() else f"\\[u{ord(it):04X}]" for it in text)
