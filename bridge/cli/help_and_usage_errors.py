"""The classes of `bridge` and its commands: their help, and usage errors in one line.

A usage error reads ``error: --port: "x" is not …; use …`` and ends with exit code 2; typer's own
messages name the classes of its parser. Help leaves out the environment variable of each option.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from bridge.base.join_settings import SettingsError
from bridge.cli import run_until_signal
from bridge.cli.options.value_parsing import Duration, InvalidValueError, format_duration, invalid

#: The base of all usage errors, which typer does not export.
_ClickException: type[Exception] = typer.BadParameter.__mro__[2]

#: Objects and commands of the program `bridge` of iproute2, which has the same name.
_IPROUTE2 = frozenset({"link", "fdb", "mdb", "vlan", "vni", "mst", "monitor"})


class Command(TyperCommand):
    """One command."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for param in self.params:
            its: Any = param
            its.show_envvar = False
            if isinstance(its.type_descriptor.parameter_info.parser, Duration) and isinstance(
                its.default, float
            ):
                its.default = format_duration(its.default)


class CommandGroup(TyperGroup):
    """The commands; a usage error ends the process with one line, a hint and exit code 2."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options, those of shell completion too."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            param.show_envvar = False
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As typer does; the words of iproute2 end with a hint."""
        if ctx.parent is None and args[0] in _IPROUTE2:
            raise run_until_signal.fail(
                f"{args[0]} is a command of iproute2's bridge, and this is cluster-bridge; run "
                f"/sbin/bridge {args[0]} instead",
                code=2,
            )
        return super().resolve_command(ctx, args)

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
        run_until_signal.report_errors_as_json(
            enabled=_asks_for_json(sys.argv[1:] if args is None else args)
        )
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
    ended = run_until_signal.fail(message(error), code=error.exit_code)
    ctx = getattr(error, "ctx", None)
    if ctx is not None:
        typer.echo(f"See '{ctx.command_path} --help' for usage.", err=True)
    return ended


def _asks_for_json(args: Sequence[str]) -> bool:
    """Whether the output is JSON, found without the parser, which may reject the arguments."""
    if args and os.environ.get(f"CLUSTER_BRIDGE_{args[0].upper()}_OUTPUT") == "json":
        return True
    pairs = list(itertools.pairwise(args))
    joined = {"-ojson", "--output=json"}
    return bool(joined & set(args)) or any(
        it in pairs for it in (("-o", "json"), ("--output", "json"))
    )


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
        return str(param.metavar or param.name.upper()).strip("[].")
    return str(max(param.opts, key=len))
