"""The command group, whose usage errors are one line each: ``--port: "x" is not …; use …``.

typer's own messages have the classes of its parser in them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from bridge.base.settings import SettingsError
from bridge.cli.option_values import InvalidValueError, invalid
from bridge.cli.runner import fail

#: The base of all usage errors, which typer does not export.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]


class CommandGroup(TyperGroup):
    """The commands; a usage error ends the process with one line, a hint and exit code 2."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Parses the arguments and runs a command; ends with SystemExit."""
        run = functools.partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
        except _ClickException as error:
            raise _failure(error) from None
        except typer.Abort:
            typer.echo("Aborted.", err=True)
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


def _failure(error: Any) -> SystemExit:
    if type(error).__name__ == "NoArgsIsHelpError":  # It has printed the help.
        return SystemExit(error.exit_code)
    ended = fail(message(error), code=error.exit_code)
    ctx = getattr(error, "ctx", None)
    if ctx is not None:
        typer.echo(f"See '{ctx.command_path} --help' for usage.", err=True)
    return ended


def message(error: Any) -> str:
    """The sentence for a usage error of typer."""
    param = getattr(error, "param", None)
    if param is None:
        text: str = error.format_message()
        return text[:1].lower() + text[1:].rstrip(".")
    name = _name(param)
    if type(error).__name__ == "MissingParameter":
        return f"{name} is missing: {param.help}".rstrip(".")
    details: list[Any] = getattr(error.__cause__, "errors", list)()
    if not details:
        return f"{name}: {error.message}".rstrip(".")
    cause = details[0].get("ctx", {}).get("error")
    if isinstance(cause, InvalidValueError | SettingsError):
        return f"{name}: {cause}"
    kind = param.type_descriptor
    return f"{name}: " + str(
        invalid(
            details[0]["input"],
            kind=kind.annotation,
            choices=[str(getattr(it, "value", it)) for it in kind.choices or ()],
            minimum=param.min,
            maximum=param.max,
        )
    )


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))
