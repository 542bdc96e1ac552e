"""The word for why a pod waits."""

from __future__ import annotations

import pytest

from translators.placement.decision import HOME, Decision, Outcome, Verdict
from translators.placement.wait_reason import wait_reason


def decision(**outcomes: Outcome) -> Decision:
    """A decision without a choice; ``home`` stands for `HOME`."""
    verdicts = (
        Verdict(HOME if candidate == "home" else candidate, outcome, "reason")
        for candidate, outcome in outcomes.items()
    )
    return Decision("p", None, "", tuple(verdicts))


@pytest.mark.parametrize(
    ("outcomes", "refused", "blocked", "expected"),
    [
        ({"a": "excluded"}, "", "", "no-candidate"),
        ({}, "", "", "no-candidate"),
        ({"a": "unknown", "b": "impossible"}, "b", "b", "room-unknown"),
        ({"a": "impossible", "c": "excluded"}, "a", "a", "refused"),
        ({"a": "impossible", "b": "impossible"}, "a", "ab", "excluded"),
        ({"a": "impossible", "b": "impossible"}, "a", "a", "no-room"),
    ],
)
def test_reason(outcomes: dict[str, Outcome], refused: str, blocked: str, expected: str) -> None:
    found = wait_reason(decision(**outcomes), refused=set(refused), blocked=set(blocked))
    assert found == expected
