"""The file of `bridge join --file`: options of one join, as a YAML map of long names to values.

The command line and the environment win over the file, whose values become the defaults of the
command (click's ``default_map``). Each error is one sentence with the file, the key, and what to
use instead.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from bridge.base.join_settings import SettingsError
from bridge.cli.options.join_options import JOIN, PROCESS
from bridge.cli.options.option_declaration import Option, is_from_file
from bridge.cli.options.value_parsing import InvalidValueError

_YES = Option("yes", "", "", kind=bool)
#: The options that a file can have, by name.
OPTIONS: Mapping[str, Option] = {option.name: option for option in (*JOIN, *PROCESS, _YES)}


def use_file(ctx: typer.Context, file: Path | None) -> Path | None:
    """The callback of ``--file``, which runs before the other options are read."""
    from bridge.cli.run_until_signal import fail

    if file is not None and not ctx.resilient_parsing:
        try:
            ctx.default_map = read(file)
        except SettingsError as error:
            raise fail(str(error), code=2) from None
    return file


def name_file(ctx: typer.Context, file: Path | None, message: str) -> str:
    """The message of an error with ``KEY of FILE`` for each flag whose value is from the file."""

    def named(flag: re.Match[str]) -> str:
        option = OPTIONS.get(flag[1])
        is_in_file = option is not None and is_from_file(ctx, option.parameter)
        return f"{flag[1]} of {file}" if is_in_file else flag[0]

    return re.sub(r"--([a-z][a-z-]*)", named, message)


def read(path: Path) -> dict[str, Any]:
    """The values by parameter name, as the command line would have them. Paths are relative to the
    folder of the file. Raises SettingsError."""
    import yaml

    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        found = _pairs(path, loader.get_single_node())
        return dict(_value(path, loader, *pair) for pair in found)
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _error(path, "cannot be read: it is not UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        # Without the parser's message, which may quote a secret.
        mark = getattr(error, "problem_mark", None)
        message = "invalid YAML; check quotes, brackets and indentation"
        raise _error(path, message, mark) from None


def _pairs(path: Path, node: Any) -> Iterator[tuple[str, Any, Any]]:
    """The keys of a map of YAML, with their places and values."""
    if getattr(node, "id", "") != "mapping":
        raise _error(path, "write options of bridge join, each as NAME: VALUE")
    seen = set[str]()
    for name, value in node.value:
        if name.id != "scalar":
            raise _error(path, "a list or a map is not a key; use a text", name.start_mark)
        key = str(name.value)
        if key in seen:
            raise _error(path, f'"{key}" is there twice; remove one', name.start_mark)
        seen.add(key)
        yield key, name.start_mark, value


def _value(path: Path, loader: Any, key: str, mark: Any, node: Any) -> tuple[str, Any]:
    """The parameter and its value."""
    if (option := OPTIONS.get(key)) is None:
        near = difflib.get_close_matches(key.replace("_", "-").lower(), OPTIONS, 1)
        hint = f"did you mean {near[0]}?" if near else "bridge join --help lists them"
        raise _error(path, f'"{key}" is not an option of bridge join; {hint}', mark)
    if node.id == "mapping":
        list(_pairs(path, node))
    try:
        value = loader.construct_object(node, deep=True)
        return option.parameter, option.read(value, folder=path.absolute().parent)
    # PyYAML raises them for a tag, or a date, that does not fit the text.
    except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
        message = str(error) if isinstance(error, InvalidValueError) else "the value is invalid"
        raise _error(path, f"{key}: {message}", mark) from None


def _error(path: Path, message: str, mark: Any = None) -> SettingsError:
    line = f" line {mark.line + 1}:" if mark is not None else ""
    return SettingsError(f"{path}:{line} {message}")
