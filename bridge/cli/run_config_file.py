"""The configuration file of `bridge run`: read, validated, and described as JSON Schema.

`read` returns the joins and the output settings, or raises ConfigError: every message names the
file, the key, the value, and what to use instead. Unknown keys are errors. The users' reference is
docs/reference/config-file.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.base.join_settings import KUBELET_PORT, Part, SettingsError
from bridge.cli.options.join_options import JOIN, PROCESS, join_settings
from bridge.cli.options.option_declaration import Option
from bridge.cli.options.value_parsing import InvalidValueError
from bridge.cli.reexec_to_free_memory import LogSettings

#: The keys of a join, and those of the whole file, by name.
KEYS: Mapping[str, Option] = {it.name: it for it in JOIN}
_TOP: Mapping[str, Option] = {it.name: it for it in PROCESS}
#: Keys that differ from join to join.
_UNIQUE = ("name", "port", "health-port")


class ConfigError(SettingsError):
    """A configuration file is invalid; the message is one sentence."""


def read(path: Path) -> tuple[tuple[Part, ...], LogSettings]:
    """The joins of a file, and its output settings. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {why}") from None
    return _File(path).read(_parsed(path, text))


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


class _File:
    """Reads the content of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.absolute().parent

    def read(self, content: Any) -> tuple[tuple[Part, ...], LogSettings]:
        top = self._map("", content, ("remotes", "defaults", *_TOP))
        remotes = top.get("remotes")
        if not isinstance(remotes, list) or not remotes:
            raise self._error("remotes", "write a list of joins, at least one")
        shared = [key for key in KEYS if key not in _UNIQUE]
        defaults = self._map("defaults", top.get("defaults", {}), shared, shared_only=True)
        joins = [
            {**defaults, **self._map(f"remotes[{index}]", it, KEYS)}
            for index, it in enumerate(remotes)
        ]
        self._assign_ports(joins)
        self._check_unique(joins)
        return tuple(self._part(index, it) for index, it in enumerate(joins)), self._log_settings(
            top
        )

    def _map(
        self, where: str, content: Any, known: Iterable[str], *, shared_only: bool = False
    ) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            raise self._error(where, "write a map of keys to values")
        keys = list(known)
        for key in content:
            if key in keys:
                continue
            if shared_only and key in KEYS:
                raise self._error(f"{where}.{key}", "each join has its own; write it in remotes")
            near = difflib.get_close_matches(str(key).replace("_", "-").lower(), keys, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"use {', '.join(keys)}"
            raise self._error(where, f'"{key}" is not a key; {hint}')
        return content

    def _assign_ports(self, joins: list[dict[str, Any]]) -> None:
        """Assigns a port to each join without one, upwards from a kubelet's."""
        taken = {it["port"] for it in joins if "port" in it}
        free = (port for port in range(KUBELET_PORT, 65536) if port not in taken)
        for it in joins:
            if "port" not in it:
                it["port"] = next(free)

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
        try:
            settings = join_settings(values)
        except SettingsError as error:
            message = re.sub(r"--([a-z-]+)", r"\1", str(error))
            raise ConfigError(f"{self._path}: {where}: {message}") from None
        return Part(settings.name or where, settings)

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

    def _error(self, where: str, message: str) -> ConfigError:
        return ConfigError(
            f"{self._path}: {where}: {message}" if where else f"{self._path}: {message}"
        )


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration file."""
    joins = {key: option.schema() for key, option in KEYS.items()}
    shared = {key: it for key, it in joins.items() if key not in _UNIQUE}
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
