"""The configuration of `bridge run`: read, checked, and described as JSON Schema.

`read` gives the joins and how they show what they do, or raises ConfigError: every message names
the file, the key, and what the key takes. Keys that are not known are errors, with the one that may
have been meant. docs/reference/config-file.md is for those who write one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml

from bridge.base.settings import KUBELET_PORT, LogFormat, Part, SettingsError
from bridge.cli.config_keys import Option, Wrong, options
from bridge.cli.join_settings import join_settings
from bridge.cli.process_handover import Shown

#: What belongs to one join alone.
_OWN = ("name", "port", "health-port")
_TOP = ("remotes", "defaults", "verbose", "log-format", "traces")


class ConfigError(SettingsError):
    """A configuration that cannot be used, in one sentence."""


def read(path: Path) -> tuple[tuple[Part, ...], Shown]:
    """The joins of a file, and how they show what they do."""
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
        where = f" line {mark.line + 1}:" if mark is not None else ""
        # Not the error itself: it quotes the line.
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise ConfigError(f"{path}:{where} {problem}") from None


class _File:
    """Reads one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = path.absolute().parent
        self._options = options()

    def read(self, content: Any) -> tuple[tuple[Part, ...], Shown]:
        top = self._map("", content, _TOP)
        remotes = top.get("remotes")
        if not isinstance(remotes, list) or not remotes:
            raise self._error("remotes", "it takes a list of joins, at least one")
        shared = [key for key in self._options if key not in _OWN]
        defaults = self._map("defaults", top.get("defaults", {}), shared, shared_only=True)
        given = [
            {**defaults, **self._map(f"remotes[{place}]", it, self._options)}
            for place, it in enumerate(remotes)
        ]
        self._ports(given)
        self._differ(given)
        return tuple(self._part(place, it) for place, it in enumerate(given)), self._shown(top)

    def _map(
        self, where: str, content: Any, known: Iterable[str], *, shared_only: bool = False
    ) -> Mapping[str, Any]:
        if not isinstance(content, dict):
            raise self._error(where, "it takes keys with values")
        keys = list(known)
        for key in content:
            if key in keys:
                continue
            if shared_only and key in self._options:
                raise self._error(f"{where}.{key}", "each join has its own; write it in remotes")
            near = difflib.get_close_matches(str(key).replace("_", "-").lower(), keys, 1, 0.5)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(keys)}"
            raise self._error(where, f"there is no key {str(key)!r}{hint}")
        return content

    def _ports(self, given: list[dict[str, Any]]) -> None:
        """Gives each join that names none a port of its own, upwards from a kubelet's."""
        named = {it["port"] for it in given if "port" in it}
        free = (port for port in range(KUBELET_PORT, 65536) if port not in named)
        for it in given:
            if "port" not in it:
                it["port"] = next(free)

    def _differ(self, given: list[dict[str, Any]]) -> None:
        for key in _OWN:
            first: dict[Any, int] = {}
            for place, it in enumerate(given):
                value = it.get(key)
                if value is None or value == 0 or not isinstance(value, str | int):
                    continue
                if value in first:
                    other = f"remotes[{first[value]}] has {value} too"
                    raise self._error(f"remotes[{place}].{key}", f"{other}; each needs its own")
                first[value] = place

    def _part(self, place: int, given: Mapping[str, Any]) -> Part:
        where = f"remotes[{place}]"
        values = {}
        for key, option in self._options.items():
            if key in given:
                values[option.parameter] = self._value(where, option, given[key])
            elif option.required:
                raise self._error(where, f"it needs {key}: {option.help}")
            else:
                values[option.parameter] = option.default
        try:
            settings = join_settings(**values)
        except SettingsError as error:
            said = re.sub(r"--([a-z-]+)", r"\1", str(error))
            raise ConfigError(f"{self._path}: {where}: {said}") from None
        return Part(settings.name or where, settings)

    def _value(self, where: str, option: Option, value: Any) -> Any:
        try:
            return option.read(value, folder=self._folder)
        except Wrong as error:
            raise self._error(f"{where}.{option.key}", str(error)) from None

    def _shown(self, top: Mapping[str, Any]) -> Shown:
        verbose, form = top.get("verbose", False), top.get("log-format", "console")
        traces = top.get("traces", "")
        if not isinstance(verbose, bool):
            raise self._error("verbose", "it takes true or false")
        if form not in get_args(LogFormat):
            raise self._error("log-format", f"it takes one of {', '.join(get_args(LogFormat))}")
        if not isinstance(traces, str) or (traces and not traces.startswith(("http:", "https:"))):
            raise self._error("traces", "it takes a URL such as http://collector:4318")
        return Shown(verbose, form, traces)

    def _error(self, where: str, said: str) -> ConfigError:
        return ConfigError(f"{self._path}: {where}: {said}" if where else f"{self._path}: {said}")


def schema() -> dict[str, Any]:
    """What a configuration may hold, as JSON Schema (2020-12)."""
    found = {key: option.schema() for key, option in options().items()}
    shared = {key: it for key, it in found.items() if key not in _OWN}
    joins = "Joins that run side by side in one process, each with options of bridge join."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bridge run",
        "type": "object",
        "additionalProperties": False,
        "required": ["remotes"],
        "properties": {
            "remotes": {
                "description": joins,
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": found,
                },
            },
            "defaults": {
                "description": "Options of all of them, unless they have their own.",
                "type": "object",
                "additionalProperties": False,
                "properties": shared,
            },
            "verbose": {"description": "Show all log lines.", "type": "boolean", "default": False},
            "log-format": {
                "description": "How lines are written.",
                "enum": list(get_args(LogFormat)),
                "default": "console",
            },
            "traces": {
                "description": "URL of an OpenTelemetry collector (OTLP over HTTP).",
                "type": "string",
            },
        },
    }
