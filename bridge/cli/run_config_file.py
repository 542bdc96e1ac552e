"""The configuration file of `bridge run`: read, validated, and described as JSON Schema.

`read` returns the joins and the output settings, or raises ConfigError: every message names the
file, the key, the value, what to use instead, and the line. Unknown keys are errors. The users'
reference is docs/reference/config-file.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.base.join_settings import Part, PartState, SettingsError
from bridge.cli.options.join_options import JOIN, PROCESS, join_settings
from bridge.cli.options.option_declaration import Option
from bridge.cli.options.value_parsing import InvalidValueError
from bridge.cli.reexec_to_free_memory import LogSettings
from bridge.fleet.config_file_source import UnreadableFileError
from bridge.fleet.desired_state import by_key
from bridge.fleet.port_assignment import assign_ports

#: The keys of a join, and those of the whole file, by name.
KEYS: Mapping[str, Option] = {it.name: it for it in JOIN}
_TOP: Mapping[str, Option] = {it.name: it for it in PROCESS}
#: The key of a join that is no option of `bridge join`.
STATE = Option(
    "state",
    "joined: serve the node. left: remove it from both clusters, as bridge leave --yes does.",
    "",
    kind=PartState,
    default="joined",
)
#: Keys that differ from join to join.
_UNIQUE = ("name", "port", "health-port")
#: `_UNIQUE`, and what defaults must not do to all joins at once.
_NOT_SHARED = (*_UNIQUE, STATE.name)


class ConfigError(SettingsError):
    """A configuration file is invalid; the message is one sentence."""


class UnreadableConfigError(ConfigError, UnreadableFileError):
    """A configuration file cannot be read."""


def read(
    path: Path, ports: Mapping[str, int] | None = None
) -> tuple[tuple[Part, ...], LogSettings]:
    """The joins of a file, and its output settings. Raises ConfigError.

    ``ports``: those that joins without a configured one keep, by key (`by_key`).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UnreadableConfigError(f"{path}: cannot be read: {why}") from None
    return _File(path, text, ports or {}).read(_parsed(path, text))


def _parsed(path: Path, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark is not None else ""
        # Without the parser's message, which may quote a secret of the file.
        raise ConfigError(
            f"{path}:{where} the YAML is invalid; check quotes, brackets and indentation"
        ) from None


def _line(text: str, keys: Iterable[str | int]) -> int | None:
    """The line of the value at this path of keys and indices, or of the last part that exists."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return None
    line = node.start_mark.line
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            found = [(name, it) for name, it in node.value if name.value == key]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            found = [(node.value[key], node.value[key])]
        else:
            break
        if not found:
            break
        # The last one, as the value of a repeated key.
        name, node = found[-1]
        line = name.start_mark.line
    return int(line) + 1


def _keys(where: str) -> list[str | int]:
    """``remotes[1].port`` as keys and indices."""
    parts = re.findall(r"\[([0-9]+)\]|([^.\[\]]+)", where)
    return [int(index) if index else key for index, key in parts]


class _File:
    """Reads the content of one file."""

    def __init__(self, path: Path, text: str, ports: Mapping[str, int]) -> None:
        self._path = path
        self._text = text
        self._folder = path.absolute().parent
        self._ports = ports

    def read(self, content: Any) -> tuple[tuple[Part, ...], LogSettings]:
        top = self._map("", content, ("remotes", "defaults", *_TOP))
        remotes = top.get("remotes")
        if not isinstance(remotes, list) or not remotes:
            raise self._error("remotes", "write a list of joins, at least one")
        shared = [key for key in KEYS if key not in _UNIQUE]
        defaults = self._map("defaults", top.get("defaults", {}), shared, shared_only=True)
        joins = [
            {**defaults, **self._map(f"remotes[{index}]", it, (*KEYS, STATE.name))}
            for index, it in enumerate(remotes)
        ]
        self._check_unique(joins)
        parts = [self._part(index, it) for index, it in enumerate(joins)]
        return self._with_ports(joins, parts), self._log_settings(top)

    def _map(
        self, where: str, content: Any, known: Iterable[str], *, shared_only: bool = False
    ) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            raise self._error(where, "write a map of keys to values")
        keys = list(known)
        for key in content:
            if key in keys:
                continue
            if shared_only and key in (*KEYS, *_NOT_SHARED):
                raise self._error(f"{where}.{key}", "each join has its own; write it in remotes")
            near = difflib.get_close_matches(str(key).replace("_", "-").lower(), keys, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(keys)}"
            raise self._error(where, f'"{key}" is not a key; {hint}', key=str(key))
        return content

    def _with_ports(
        self, joins: Iterable[Mapping[str, Any]], parts: Iterable[Part]
    ) -> tuple[Part, ...]:
        """Assigns a port to each join without one."""
        named = by_key(parts)
        open_ = [
            key
            for (key, part), join in zip(named.items(), joins, strict=True)
            if "port" not in join and part.state == "joined"
        ]
        return tuple(assign_ports(named, open_, self._ports).values())

    def _check_unique(self, joins: list[dict[str, Any]]) -> None:
        for key in _UNIQUE:
            first: dict[Any, int] = {}
            for index, it in enumerate(joins):
                value = it.get(key)
                if value is None or value == 0 or not isinstance(value, str | int):
                    continue
                if value in first:
                    other = f"remotes[{first[value]}] has {value} too"
                    raise self._error(f"remotes[{index}].{key}", f"{other}; each needs its own")
                first[value] = index

    def _part(self, index: int, join: Mapping[str, Any]) -> Part:
        where = f"remotes[{index}]"
        if missing := next((it for it in JOIN if it.required and it.name not in join), None):
            raise self._error(where, f"{missing.name} is missing: {missing.help}")
        values = {
            it.parameter: self._value(f"{where}.", it, join[it.name])
            if it.name in join
            else it.initial
            for it in JOIN
        }
        state: PartState = self._value(f"{where}.", STATE, join.get(STATE.name, STATE.default))
        try:
            settings = join_settings(values)
        except SettingsError as error:
            raise self._error(where, re.sub(r"--([a-z-]+)", r"\1", str(error))) from None
        if state == "left" and settings.name is None:
            raise self._error(f"{where}.state", "left requires name: the node that leaves")
        return Part(settings.name or where, settings, state)

    def _value(self, where: str, option: Option, value: Any) -> Any:
        try:
            return option.read(value, folder=self._folder)
        except InvalidValueError as error:
            raise self._error(f"{where}{option.name}", str(error)) from None

    def _log_settings(self, top: Mapping[str, Any]) -> LogSettings:
        logs = {it.parameter: self._value("", it, top[it.name]) for it in PROCESS if it.name in top}
        if not str(logs.get("traces", "http:")).startswith(("http:", "https:")):
            # Not the value: a URL can hold a password.
            raise self._error("traces", "write a URL such as http://collector:4318")
        return LogSettings(**logs)

    def _error(self, where: str, message: str, *, key: str = "") -> ConfigError:
        """The error at ``where``, with the line of ``key`` there."""
        line = _line(self._text, [*_keys(where), *([key] if key else [])])
        place = f"{where}: " if where else ""
        suffix = f" (line {line})" if line is not None else ""
        return ConfigError(f"{self._path}: {place}{message}{suffix}")


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file."""
    joins = {key: option.schema() for key, option in (*KEYS.items(), (STATE.name, STATE))}
    shared = {key: it for key, it in joins.items() if key not in _NOT_SHARED}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bridge run",
        "type": "object",
        "additionalProperties": False,
        "required": ["remotes"],
        "properties": {
            "remotes": {
                "description": "Joins that one process runs, with the options of bridge join.",
                "type": "array",
                "minItems": 1,
                "items": {"type": "object", "additionalProperties": False, "properties": joins},
            },
            "defaults": {
                "description": "Options of all joins that do not set their own.",
                "type": "object",
                "additionalProperties": False,
                "properties": shared,
            },
            **{key: option.schema() for key, option in _TOP.items()},
        },
    }
