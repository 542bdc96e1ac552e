"""One declared option, and what follows from its declaration.

From an `Option` follow its flag and environment variable on the command line (`with_options`), its
key in the file of `bridge join --file` (`Option.read`), its help, and its row in
docs/reference/cli.md.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from bridge.cli.options.value_parsing import Duration, InvalidValueError, invalid, quoted

#: How the file of a join may write a value: as a scalar, with ``list`` also as a list, and with
#: ``map`` also as a map of the ``KEY=VALUE`` pairs.
Form = Literal["scalar", "map", "list"]

#: `Option.in_cluster` of an option that an installed bridge is started with, as it was written.
PASSED = ""
#: `Option.in_cluster` of an option from which the installation's objects are made.
CONSUMED = "consumed"
#: `Option.in_cluster` of an option that an installed bridge cannot have.
ABSENT = "absent"
#: The sentence of an option's help that names its default.
_DEFAULT_SENTENCE = re.compile(r" Default: .*?\.(?= |$)")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``--NAME`` on the command line and ``NAME`` in the file of a join."""

    name: str
    help: str
    group: str
    """Its heading in ``--help``."""
    kind: Any = str
    """str, int, float, bool, Path, list[str], a Literal, or a `Duration`."""
    default: Any = None
    """As a user would write it; None leaves the default to the field of the settings."""
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    metavar: str | None = None
    short: str = ""
    form: Form = "scalar"
    field: str = ""
    """The dotted path of its field in `JoinSettings`; the parameter's name if empty."""
    parse: Callable[[Any], Any] | None = None
    """Makes the field's value from the option's; raises SettingsError."""
    in_cluster: str = PASSED
    """`PASSED`, `CONSUMED` or `ABSENT`."""
    autocompletion: Callable[..., Any] | None = None

    @property
    def parameter(self) -> str:
        """The name of the command function's parameter."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> str:
        """As on the command line."""
        return f"--{self.name}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values that it takes; empty if any text does."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def initial(self) -> Any:
        """The value if the user gives none."""
        return self.kind(self.default) if self._is_duration and self.default else self.default

    @property
    def _is_duration(self) -> bool:
        return isinstance(self.kind, Duration)

    # -- the command line ----------------------------------------------------------------------

    def typer_parameter(self, *, with_default_in_help: bool = True) -> inspect.Parameter:
        """The parameter from which typer makes the command-line option."""
        is_duration = self._is_duration
        text = self.help if with_default_in_help else _DEFAULT_SENTENCE.sub("", self.help)
        info = typer.Option(
            f"{self.flag}/--no-{self.name}" if self.default is True else self.flag,
            *([self.short] if self.short else []),
            help=text,
            rich_help_panel=self.group or None,
            min=self.minimum,
            max=self.maximum,
            metavar="DURATION" if is_duration else self.metavar,
            parser=self.kind if is_duration else None,
            show_default=with_default_in_help and self.default is not None,
            autocompletion=self.autocompletion,
        )
        kind = float if is_duration else self.kind
        optional = kind if self.required or self.default is not None else kind | None
        return inspect.Parameter(
            self.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=operator.getitem(Annotated, (optional, info)),
            default=inspect.Parameter.empty if self.required else self.default,
        )

    def arguments(self, value: Any) -> list[str]:
        """The command-line arguments that give the option this value."""
        if isinstance(value, bool):
            return [self.flag] if value else []
        values = value if isinstance(value, list | tuple) else [value]
        return [f"{self.flag}={it}" for it in values]

    def value_of_argument(self, text: str) -> Any:
        """The value that the option has after an argument of `arguments` with this text."""
        if self.kind is bool:
            return True
        is_converted = self._is_duration or self.kind in (int, float, Path)
        return self.kind(text) if is_converted else text

    # -- the file of a join --------------------------------------------------------------------

    def read(self, value: Any, *, folder: Path) -> Any:
        """The value of a file as the command line would have it. Paths are relative to ``folder``.
        Raises InvalidValueError."""
        if self._is_duration:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return self.kind(value)
            raise InvalidValueError(f"{quoted(value)} is not a duration; use 30s, 5m or 1h")
        if self.kind is bool:
            if isinstance(value, bool):
                return value
        elif self.kind in (int, float):
            if self._is_in_range(value):
                return self.kind(value)
        elif (text := self._text(value)) is not None and (not self.choices or text in self.choices):
            return _path(text, folder) if self.kind is Path else text
        if self.form == "map":
            raise InvalidValueError(f"{quoted(value)} is not a map; use a map or KEY=VALUE[,…]")
        if self.form == "list":
            raise InvalidValueError(f"{quoted(value)} is not a list of texts; use a list or a text")
        raise invalid(
            value, kind=self.kind, choices=self.choices, minimum=self.minimum, maximum=self.maximum
        )

    def _is_in_range(self, value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        low, high = self.minimum, self.maximum
        return (
            is_number
            and (self.kind is float or value == int(value))
            and (low is None or value >= low)
            and (high is None or value <= high)
        )

    def _text(self, value: Any) -> str | None:
        """The text that the command line would have; None if there is none."""
        if self.form == "map" and isinstance(value, dict):
            parts = {str(name): _scalar_text(it) for name, it in value.items()}
            if None in parts.values():
                return None
            return ",".join(f"{name}={it}" for name, it in parts.items())
        if self.form == "list" and isinstance(value, list):
            texts = [text for it in value if (text := _scalar_text(it))]
            return ",".join(texts) if len(texts) == len(value) else None
        return _scalar_text(value) if not isinstance(value, bool) else None


def _path(text: str, folder: Path) -> Path:
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        what = "in the home directory of a user of this machine; use an absolute path"
        raise InvalidValueError(f"{quoted(text)} is not {what}") from None


def _scalar_text(value: Any) -> str | None:
    """A scalar of YAML as it is written there; None of a list, a map or null."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def with_options(
    *parameters: Option | inspect.Parameter,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command that ends in ``**values``: typer gives it these parameters there, after
    those of its own."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        *own, _ = signature.parameters.values()
        rest = [it.typer_parameter() if isinstance(it, Option) else it for it in parameters]
        command.__signature__ = inspect.Signature([*own, *rest])  # type: ignore[attr-defined]
        return command

    return decorate


#: Where the value of an option comes from if the user gave it; the last is a file.
_GIVEN = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")


def is_given(ctx: typer.Context, parameter: str) -> bool:
    """Whether the command line, the environment or a file has the option."""
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name in _GIVEN


def is_from_file(ctx: typer.Context, parameter: str) -> bool:
    """Whether the option's value is that of the file."""
    source = ctx.get_parameter_source(parameter)
    return source is not None and source.name == _GIVEN[-1]


def given(ctx: typer.Context, options: Iterable[Option]) -> list[Option]:
    """Those of ``options`` that `is_given`."""
    return [it for it in options if is_given(ctx, it.parameter)]
