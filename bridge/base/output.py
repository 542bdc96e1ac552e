"""What a command answers, on standard output: a table for people, JSON or YAML for programs.

A command makes plain data (objects, arrays, strings, numbers, true, false, null) with field names
in lower camel case, as Kubernetes' own, and shows it here, whole and once. A field that was shown
stays; new ones may come. Progress and errors go to standard error (`bridge.cli.runner`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from bridge.base.printable_text import escape_json, escape_line, escape_lines


class Output(StrEnum):
    """How an answer is shown."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="How the answer is shown: for people, or for programs."),
]


def print_result(
    data: Any, output: Output, as_text: Callable[[], str], *, is_drawn: bool = False
) -> None:
    """Prints ``data`` for programs, or else the text that ``people`` gives. Control characters in
    that text are escaped, unless it ``is_drawn``: escaped already, and coloured for a terminal."""
    if output is Output.JSON:
        text = escape_json(json.dumps(data, indent=2, ensure_ascii=False))
    elif output is Output.YAML:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    else:
        text = as_text() if is_drawn else escape_lines(as_text())
    sys.stdout.write(text.rstrip("\n") + "\n")


def format_table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as kubectl has them: heads in capitals, columns left-aligned three blanks apart. A
    cell is one line, whatever is in it."""
    table = [[head.upper() for head in headers], *([escape_line(it) for it in row] for row in rows)]
    widths = [max(len(line[place]) for line in table) for place in range(len(headers))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    )
