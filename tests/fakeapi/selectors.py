"""Label and field selectors of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sync.kube.api_resources import Object
from tests.fakeapi import api_errors
from tests.fakeapi.resource_registry import Kind

Predicate = Callable[[Object], bool]

_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_PAIR = re.compile(r"^(?P<key>[^=!\s]+)\s*(?P<op>==|=|!=)\s*(?P<value>\S*)$")
_BARE = re.compile(r"^(?P<not>!?)\s*(?P<key>[A-Za-z0-9][\w./-]*)$")
_FIELD = re.compile(r"^(?P<key>[^=!]+)(?P<op>==|=|!=)(?P<value>.*)$")


def selection(kind: Kind, labels: str, fields: str) -> Predicate:
    """A predicate for objects that match both selectors. Raises ApiErrorResponse (400)."""
    tests = [_label(part) for part in _split(labels)]
    tests += [_field(kind, part) for part in fields.split(",") if part]
    return lambda obj: all(test(obj) for test in tests)


def _split(text: str) -> list[str]:
    """Splits at commas outside of parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _label(part: str) -> Predicate:
    if found := _SET.match(part):
        key, values = found["key"], {v.strip() for v in found["values"].split(",")}
        if found["op"] == "in":
            return lambda obj: _labels(obj).get(key) in values
        return lambda obj: _labels(obj).get(key) not in values
    if found := _PAIR.match(part):
        key, value = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda obj: _labels(obj).get(key) != value
        return lambda obj: _labels(obj).get(key) == value
    if found := _BARE.match(part):
        key, wanted = found["key"], not found["not"]
        return lambda obj: (key in _labels(obj)) is wanted
    raise api_errors.bad_request(f'unable to parse requirement: found "{part}"')


def _field(kind: Kind, part: str) -> Predicate:
    found = _FIELD.match(part)
    if found is None:
        raise api_errors.bad_request(f'invalid selector: "{part}"; can\'t understand "{part}"')
    key, value, equal = found["key"], found["value"], found["op"] != "!="
    served = {"metadata.name", *(["metadata.namespace"] if kind.resource.namespaced else [])}
    if kind.fields is not None and key not in served | kind.fields:
        raise api_errors.bad_request(f'field label not supported: "{key}"')
    return lambda obj: (_text(obj, key) == value) is equal


def _text(obj: Object, path: str) -> str:
    """The value of a field for selectors: "" if absent, booleans in lower case."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
