"""Waits that grow, with jitter, to a cap."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sync.base.backoff import Backoff


@given(seed=st.integers(), first=st.floats(0.01, 10), factor=st.floats(1, 100))
def test_wait_is_between_half_a_step_and_a_step(seed: int, first: float, factor: float) -> None:
    cap = first * factor
    backoff = Backoff(first=first, cap=cap, rng=random.Random(seed))
    step = first
    for _ in range(12):
        assert step / 2 <= backoff.next() <= step
        step = min(step * 2, cap)


def test_reset_starts_from_the_first_wait() -> None:
    backoff = Backoff(first=1.0, cap=64.0, rng=random.Random(1))
    for _ in range(10):
        backoff.next()
    assert backoff.next() >= 32.0
    backoff.reset()
    assert backoff.next() <= 1.0


def test_two_backoffs_differ_by_jitter() -> None:
    one, other = Backoff(first=1.0, cap=9.0), Backoff(first=1.0, cap=9.0)
    assert [one.next() for _ in range(4)] != [other.next() for _ in range(4)]
