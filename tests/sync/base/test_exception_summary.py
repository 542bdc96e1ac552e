"""Summaries of exceptions, and the exceptions inside of groups."""

from __future__ import annotations

import logging

import pytest

from sync.base import exception_summary


def raised(error: Exception) -> Exception:
    """The error with a traceback."""
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_summary_names_type_and_place_without_the_message() -> None:
    found = exception_summary.summary(raised(ValueError("canary")))
    assert found.startswith("ValueError in ")
    assert "test_exception_summary.py:" in found
    assert "canary" not in found


def test_summary_of_an_exception_that_was_never_raised_is_its_type() -> None:
    assert exception_summary.summary(ValueError("canary")) == "ValueError"


def test_traced_summary_has_frames_without_the_message() -> None:
    found = exception_summary.traced_summary(raised(ValueError("canary")))
    assert found.splitlines()[0] == "ValueError"
    assert "(raised)" in found
    assert "canary" not in found


def test_defect_is_logged_and_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), exception_summary.log_defects("pod default/web"):
        int("canary")
    assert "pod default/web: a defect in the bridge" in caplog.text
    assert "canary" not in caplog.text


def test_leaves_of_nested_groups_come_depth_first() -> None:
    first, second = ValueError("1"), TypeError("2")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [first]), second])
    assert list(exception_summary.leaves(group)) == [first, second]
    assert exception_summary.first_leaf(group) is first


def test_leaf_of_an_exception_is_the_exception_itself() -> None:
    error = ValueError("1")
    assert list(exception_summary.leaves(error)) == [error]
