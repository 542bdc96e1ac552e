"""The share of memory for bytes that peers do not take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.net.unsent_budget import MAX_WINDOW, MIN_WINDOW, UnsentBudget

MIB = 2**20


def test_limit_follows_from_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 1024 * MIB)
    assert UnsentBudget().limit == 736 * MIB // 64


def test_namespace_that_does_not_read_leaves_full_windows_to_others() -> None:
    budget = UnsentBudget(32 * MIB)
    slow, other = budget.share("slow"), budget.share("other")
    assert slow.window() == MAX_WINDOW
    slow.hold(16 * MIB)
    assert (slow.window(), other.window()) == (MIN_WINDOW, MAX_WINDOW)
    slow.hold(-16 * MIB)
    assert slow.window() == MAX_WINDOW
    assert budget.held == 0


@given(st.lists(st.sampled_from("abc"), max_size=2000))
def test_held_bytes_are_bounded(namespaces: list[str]) -> None:
    """Each direction that waits has a window of unsent bytes, and one read on top of it."""
    budget = UnsentBudget(MIB)
    for namespace in namespaces:
        share = budget.share(namespace)
        share.hold(2 * share.window())
    assert budget.held <= MIB + 2 * MIN_WINDOW * len(namespaces)
