"""A short fuzz run of all listeners and clients; its seed follows from that of the test run."""

from __future__ import annotations

import pytest

from tests.fuzz.client_run import TARGETS, fuzz_client
from tests.fuzz.process_state import resident_and_peak, return_free_memory
from tests.fuzz.requests import attack
from tests.fuzz.run import arena, chosen_seed, fuzz

#: Some seconds; `python -m tests.fuzz` sends 100,000.
REQUESTS = 4_000
#: Some seconds; `python -m tests.fuzz` makes 20,000.
EXCHANGES = 300


@pytest.mark.timeout(180)
async def test_hostile_callers_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = await fuzz(chosen_seed(), REQUESTS)
    with capsys.disabled():
        print(f"\n{report.text()}")
    assert not report.problems, report.text()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("target", TARGETS)
async def test_hostile_servers_break_nothing(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = await fuzz_client(target, chosen_seed(), EXCHANGES, measured=True)
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


def test_freed_memory_does_not_count() -> None:
    """The C library keeps what is freed below another allocation."""
    size, count = 100_000, 400
    blocks = [bytearray(size) for _ in range(count)]
    pins = blocks[::100]
    before, _ = resident_and_peak()
    del blocks
    return_free_memory()
    after, _ = resident_and_peak()
    assert before - after > 0.8 * size * (count - len(pins))
