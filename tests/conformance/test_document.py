"""The exceptions, and the document that is made from them."""

from __future__ import annotations

import pytest

from e2e.conformance import conformance_page, exceptions


def test_the_document_in_the_repository_is_up_to_date() -> None:
    there = conformance_page.FILE.read_text()
    excused = exceptions.load(exceptions.FILE.read_text())
    assert conformance_page.renewed(there, excused) == there, (
        "run python -m e2e.conformance document"
    )


def test_exceptions_are_reasons_with_their_tests() -> None:
    text = "- reason: >\n    two\n    lines\n  tests: ['[sig-node] a', b]\n"
    assert exceptions.load(text) == {"[sig-node] a": "two lines", "b": "two lines"}
    assert exceptions.load("[]") == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- reason: x", "not an entry"),
        ("- tests: [a]", "not an entry"),
        ("- a", "not an entry"),
        ("- {reason: x, tests: [a]}\n- {reason: y, tests: [a]}", "listed twice: a"),
    ],
)
def test_other_forms_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        exceptions.load(text)


def test_an_exception_for_a_test_that_does_not_exist_is_refused() -> None:
    exceptions.require_known({"a": "why"}, ["a", "b"])
    with pytest.raises(ValueError, match="no such tests: c"):
        exceptions.require_known({"a": "why", "c": "why"}, ["a", "b"])
