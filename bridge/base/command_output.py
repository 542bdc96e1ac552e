"""The results of commands on standard output: a table for people, data for programs.

A command makes plain data (objects, arrays, strings, numbers, true, false, null) with field names
in lower camel case, as Kubernetes' own, and prints it here, whole and once. Fields are added, never
renamed or removed. Progress and errors go to standard error (`bridge.cli.run_until_signal`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from bridge.base.join_settings import SettingsError
from bridge.base.printable_text import escape_json, escape_line, escape_lines


class Output(StrEnum):
    """A format of results, as ``-o`` names it."""

    TABLE = "table"
    WIDE = "wide"
    """A table with more columns; of lists only, as `NAME`."""
    NAME = "name"
    """``kind/name`` of each item, a line each."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_for_people(self) -> bool:
        return self in (Output.TABLE, Output.WIDE)


_ONE = (Output.TABLE, Output.JSON, Output.YAML)
_NAMES = (Output.TABLE, Output.NAME, Output.JSON, Output.YAML)
_LIST = (Output.TABLE, Output.WIDE, Output.NAME, Output.JSON, Output.YAML)


def _option(formats: Sequence[Output]) -> Any:
    def parse(value: str) -> Output:
        if value not in formats:
            choices = f"{', '.join(formats[:-1])} or {formats[-1]}"
            raise SettingsError(f'"{value}" is not a valid choice; use {choices}')
        return Output(value)

    return typer.Option(
        "--output",
        "-o",
        help="Format of the result.",
        metavar="|".join(formats),
        parser=parse,
        autocompletion=lambda: list(formats),
    )


#: ``-o`` of a command with a single result, of one that prints a list, and of one whose list has
#: more columns with ``wide``.
OutputOption = Annotated[Output, _option(_ONE)]
NamesOutputOption = Annotated[Output, _option(_NAMES)]
ListOutputOption = Annotated[Output, _option(_LIST)]


def print_result(
    data: Any,
    output: Output,
    as_text: Callable[[], str],
    *,
    names: Callable[[], Iterable[str]] = tuple,
    as_wide: Callable[[], str] | None = None,
    is_drawn: bool = False,
) -> None:
    """Prints ``data`` for programs, or the text of ``as_text`` for people.

    ``names`` returns the lines of ``-o name``, ``as_wide`` the text of ``-o wide``. Escapes control
    characters in a text, unless it ``is_drawn``: escaped already, and coloured for a terminal.
    """
    if output.is_for_people:
        if output is Output.WIDE and as_wide is not None:
            text = escape_lines(as_wide())
        else:
            text = as_text() if is_drawn else escape_lines(as_text())
    elif output is Output.NAME:
        text = "\n".join(map(escape_line, dict.fromkeys(names())))
        if not text:
            return
    else:
        text = format_data(data, output, indent=2)
    sys.stdout.write(text.rstrip("\n") + "\n")


def format_data(data: Any, output: Output, *, indent: int | None = None) -> str:
    """``data`` as JSON or YAML."""
    if output is Output.YAML:
        import yaml  # noqa: PLC0415  # `bridge --help` loads this module

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        if all(map(str.isprintable, text.split("\n"))):
            return text
        # PyYAML escapes control characters itself, but neither U+0085 nor those that reorder text.
        return yaml.safe_dump(data, sort_keys=False)
    return escape_json(json.dumps(data, indent=indent, ensure_ascii=False))


def format_document(data: Any, output: Output) -> str:
    """``data`` as one of several documents in a stream, without the last end of line."""
    text = format_data(data, output).rstrip("\n")
    return f"---\n{text}" if output is Output.YAML else text


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as kubectl has them: headers in capitals, columns left-aligned and three blanks
    apart. A cell is one line: control characters are escaped."""
    lines = [list(map(str.upper, headers)), *rows]
    table = [[escape_line(cell) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(headers))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )
