"""The order of resource versions."""

from __future__ import annotations

import pytest

from sync.base.resource_version import is_newer, is_older

LONG = "9" * 5000


def test_versions_are_compared_as_numbers() -> None:
    assert is_newer("10", "9")
    assert not is_newer("9", "10")


@pytest.mark.parametrize(("one", "other"), [(LONG, "1"), ("1", LONG), (LONG, LONG + "9")])
def test_version_of_too_many_digits_is_no_number(one: str, other: str) -> None:
    """It once raised ValueError, which ended each watch of a hostile API server's objects."""
    assert is_newer(one, other)
    versions = ({"metadata": {"resourceVersion": version}} for version in (one, other))
    assert not is_older(*versions)
