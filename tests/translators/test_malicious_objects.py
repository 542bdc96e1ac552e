"""Malicious objects: odd strings, huge numbers, other types, deep nesting.

API servers validate types and most strings, and the remote's is not under our control. An object
with the right types is translated, whatever its values. An object with wrong types may raise an
ordinary error, which only affects that object (`sync.base.exception_summary`), but must not end the
process or modify its input.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.translators import golden
from translators.object_accessors import Object

#: The objects of a golden file.
_OBJECTS = ("home", "remote", "pod")
#: Errors that an object of a wrong shape may raise.
_REFUSED = (AttributeError, IndexError, KeyError, TypeError, ValueError, AssertionError)
#: Strings with a meaning in the API, which a user can choose freely.
_VERDICTS = ["", "None", "Never", "Failed", "Running", "Unknown", "True", "kubernetes", "default"]
_WORDS = st.sampled_from([*_VERDICTS, "$(A)", "../..", "\x00", "a" * 5000]) | st.text(max_size=20)
#: The ends of the calendar: calculations with them overflow.
_TIMES = st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
_NUMBERS = st.sampled_from([0, -1, 2**31, 2**63 - 1, -(2**63)])
_CASES = [pytest.param(case, id=case.path.stem) for case in golden.cases()]


def _depth(levels: int) -> Object:
    found: Object = {}
    for _ in range(levels):
        found = {"a": [found]}
    return found


#: Up to four nested values are still accepted by orjson.
_ANYTHING: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, "", [], {}, [None], {"": None}, [[]], True, _depth(20)]
)


def _places(part: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of every part of an object."""
    inside = part.items() if isinstance(part, dict) else enumerate(part)
    for key, value in list(inside):
        yield part, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _objects(content: Object) -> list[Object]:
    return [content[name] for name in _OBJECTS if name in content]


@pytest.mark.parametrize("case", _CASES)
@settings(max_examples=20)
@given(data=st.data())
def test_arbitrary_values_are_translated(case: golden.Case, data: st.DataObject) -> None:
    content = copy.deepcopy(case.content)
    # API servers validate kinds, keys, quantities and times: only other values are arbitrary. (The
    # origin of an event's pod is known before the translation.)
    leaves = [
        (holder, key)
        for part in _objects(content)
        if part is not content.get("pod")
        for holder, key in _places(part)
        if isinstance(holder[key], str | int) and not _is_checked(key, holder[key])
    ]
    for _ in range(data.draw(st.integers(1, 6))):
        holder, key = data.draw(st.sampled_from(leaves))
        value = holder[key]
        if isinstance(value, bool):
            holder[key] = not value
        elif isinstance(value, str) and str(key).lower().endswith(("time", "timestamp")):
            holder[key] = data.draw(_TIMES)
        else:
            holder[key] = data.draw(_WORDS if isinstance(value, str) else _NUMBERS)
    before = orjson.dumps(content)

    results = golden.Case(case.path, content).results()

    assert orjson.dumps(content) == before
    assert orjson.dumps(results)


@pytest.mark.parametrize("case", _CASES)
@settings(max_examples=20)
@given(data=st.data())
def test_wrong_types_raise_at_most_an_ordinary_error(
    case: golden.Case, data: st.DataObject
) -> None:
    content = copy.deepcopy(case.content)
    for _ in range(data.draw(st.integers(1, 4))):
        places = [place for part in _objects(content) for place in _places(part)]
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = orjson.loads(orjson.dumps(data.draw(_ANYTHING)))
    before = orjson.dumps(content)

    with contextlib.suppress(*_REFUSED):
        golden.Case(case.path, content).results()

    assert orjson.dumps(content) == before


def _is_checked(key: Any, value: Any) -> bool:
    """Whether API servers validate the value."""
    return (
        key in ("cpu", "memory", "ephemeral-storage", "divisor", "sizeLimit", "storage", "pods")
        or str(key).lower().endswith("at")
        or (isinstance(value, str) and value.startswith("sha256:"))
    )
