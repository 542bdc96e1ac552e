"""Limits by namespace: none takes what others need."""

from __future__ import annotations

import pytest

from bridge.net.namespace_limits import Shares


def fill(shares: Shares, namespace: str) -> int:
    """How many the namespace gets until it is refused."""
    count = 0
    while shares.refusal(namespace) is None:
        shares.take(namespace)
        count += 1
    return count


@pytest.mark.parametrize(("limit", "half"), [(1, 1), (2, 1), (3, 2), (5, 3), (1000, 500)])
def test_a_namespace_alone_gets_half(limit: int, half: int) -> None:
    shares = Shares(limit)
    assert fill(shares, "a") == half
    assert (shares.used, shares.most, shares.of("a")) == (half, half, half)


def test_each_namespace_leaves_as_many_free_as_it_has() -> None:
    shares = Shares(1000)
    assert [fill(shares, name) for name in "abcd"] == [500, 250, 125, 63]
    assert shares.refusal("a") == "namespace-limit"
    assert shares.refusal("another") is None


def test_the_limit_of_all_is_never_exceeded() -> None:
    shares = Shares(10)
    assert sum(fill(shares, str(number)) for number in range(20)) == 10
    assert shares.refusal("another") == "limit"


def test_what_ends_is_free_again() -> None:
    shares = Shares(4)
    fill(shares, "a")
    shares.give("a")
    assert shares.refusal("a") is None
    shares.give("a")
    assert (shares.used, shares.most, shares.of("a")) == (0, 0, 0)
