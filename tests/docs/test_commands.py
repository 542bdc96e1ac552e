"""Every `bridge` command line in the documents names a command and options that exist."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from bridge.cli.command_table import app
from e2e.docs.generated_pages import DOCS, REPOSITORY

#: Generated pages, and the history.
EXCLUDED = {"CHANGELOG.md", "docs/reference/cli.md"}


def command_lines() -> Iterator[tuple[str, str]]:
    """Document and command line, from code blocks and inline code."""
    for path in sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")]):
        name = str(path.relative_to(REPOSITORY))
        if name in EXCLUDED:
            continue
        text = path.read_text("utf-8")
        blocks = re.findall(r"^ *```\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            if line.strip().startswith("bridge "):
                yield name, line.strip()
        prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from ((name, " ".join(it.split())) for it in re.findall(r"`(bridge [^`]+)`", prose))


def words(line: str) -> list[str]:
    """The arguments, without comment, pipe and redirection."""
    line = re.split(r"\s[|>]|\s#|…|\$\(", line)[0]
    return shlex.split(line)[1:]


@functools.cache
def root() -> Any:
    """The command tree, as typer builds it; its classes are not part of typer's interface."""
    return typer.main.get_command(app)


@pytest.mark.parametrize(("document", "line"), sorted({*command_lines()}))
def test_command_line_in_a_document_is_valid(document: str, line: str) -> None:
    command, rest, context = root(), words(line), None
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        context = command.context_class(command, info_name=command.name, parent=context)
        found = command.get_command(context, rest[0])
        assert found is not None, f"{document}: `{line}`: no command {rest[0]}"
        command, rest = found, rest[1:]
    context = command.context_class(command, info_name=command.name, parent=context)
    known = {name for it in command.get_params(context) for name in [*it.opts, *it.secondary_opts]}
    for word in rest:
        if word.startswith("-") and word != "-":
            option = word.partition("=")[0]
            assert option in known | {"--help"}, f"{document}: `{line}`: no option {option}"
