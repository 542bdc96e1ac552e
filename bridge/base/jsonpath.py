"""kubectl's JSONPath templates, for ``-o jsonpath=TEMPLATE``.

A template is text with expressions in braces: paths (``{.nodes[*].name}``, ``[0]``, ``[-1]``,
``['a.b']``), quoted text (``{"\\n"}``), and ``{range PATH}…{end}``. Values of a path are separated
by a space; lists and maps are JSON; a missing key has no value. Filters and ``..`` are not part of
it. https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bridge.base.join_settings import SettingsError

_TOKEN = re.compile(r"\{((?:\"[^\"]*\"|'[^']*'|[^{}\"'])*)\}|([^{}]+)")
_STEP = re.compile(
    r"\.(?P<key>[A-Za-z_][-\w]*)|\[(?P<index>-?\d+)\]|(?P<all>\[\*\]|\.\*)"
    r"|\[(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)\]"
)


@dataclass(frozen=True, slots=True)
class _Path:
    steps: Sequence[str | int | None]
    """A key, an index, or None for all."""


@dataclass(frozen=True, slots=True)
class _Range:
    path: _Path
    body: Template


Template = Sequence[str | _Path | _Range]


def parse_template(text: str) -> Template:
    """The template; raises SettingsError if it is none."""
    stack: list[tuple[_Path | None, list[str | _Path | _Range]]] = [(None, [])]
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise _invalid(text)
        position = token.end()
        expression = token[1]
        if expression is None:
            stack[-1][1].append(token[2])
            continue
        expression = expression.strip()
        if expression.startswith("range "):
            stack.append((_path(expression.removeprefix("range ").strip(), text), []))
        elif expression == "end":
            path, body = stack.pop()
            if path is None:
                raise _invalid(text)
            stack[-1][1].append(_Range(path, body))
        elif expression[:1] in ("'", '"'):
            stack[-1][1].append(_unescape(expression[1:-1]))
        else:
            stack[-1][1].append(_path(expression, text))
    if len(stack) > 1 or all(isinstance(it, str) for it in stack[0][1]):
        raise _invalid(text)
    return stack[0][1]


def fill_template(template: Template, data: Any) -> str:
    """The text that the template makes of plain data."""
    parts = []
    for part in template:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, _Path):
            parts.append(" ".join(map(_text, _values(part, data))))
        else:
            parts += [fill_template(part.body, it) for it in _values(part.path, data)]
    return "".join(parts)


def _path(expression: str, template: str) -> _Path:
    steps: list[str | int | None] = []
    rest = expression.removeprefix("$").removeprefix("@")
    position = 1 if rest == "." else 0
    while position < len(rest):
        step = _STEP.match(rest, position)
        if step is None:
            raise _invalid(template)
        position = step.end()
        if step["all"]:
            steps.append(None)
        elif step["index"]:
            steps.append(int(step["index"]))
        else:
            steps.append(step["key"] or step["quoted"])
    return _Path(steps)


def _values(path: _Path, data: Any) -> list[Any]:
    found = [data]
    for step in path.steps:
        found = [value for it in found for value in _below(it, step)]
    return found


def _below(data: Any, step: str | int | None) -> list[Any]:
    if isinstance(data, dict):
        if step is None:
            return list(data.values())
        return [data[step]] if step in data else []
    if isinstance(data, list) and not isinstance(step, str):
        if step is None:
            return data
        return [data[step]] if -len(data) <= step < len(data) else []
    return []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _unescape(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _invalid(template: str) -> SettingsError:
    return SettingsError(
        f"{json.dumps(template, ensure_ascii=False)} is not a JSONPath template; use a path in "
        "braces, such as jsonpath='{.nodes[*].name}'"
    )
