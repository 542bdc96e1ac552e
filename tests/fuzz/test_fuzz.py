"""A short fuzz run of all listeners; its seed follows from that of the test run."""

from __future__ import annotations

import pytest

from tests.fuzz.requests import attack
from tests.fuzz.run import arena, chosen_seed, fuzz

#: Some seconds; `python -m tests.fuzz` sends 100,000.
REQUESTS = 4_000


@pytest.mark.timeout(180)
async def test_hostile_callers_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = await fuzz(chosen_seed(), REQUESTS)
    with capsys.disabled():
        print(f"\n{report.text()}")
    assert not report.problems, report.text()


async def test_attack_is_determined_by_seed_and_number() -> None:
    async with arena() as place:
        for number in range(200):
            first, again = (attack(7, number, place.listeners) for _ in range(2))
            assert first == again
        others = [attack(seed, 0, place.listeners)[1].data for seed in range(20)]
    assert len(set(others)) > 15
