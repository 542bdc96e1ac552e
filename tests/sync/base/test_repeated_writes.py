"""Equal writes to one object wait longer each time."""

from __future__ import annotations

import asyncio

from sync.base.repeated_writes import CAP, FIRST, LASTS, REPORTED, RepeatedWrites


async def test_waits_double_up_to_the_longest() -> None:
    writes: RepeatedWrites[str] = RepeatedWrites()
    waits = []
    for _ in range(14):
        left = writes.seconds_left("a", {"b": 1})
        waits.append(round(left, 3))
        await asyncio.sleep(left)
        writes.sent("default", "a", {"b": 1})
    assert waits[:5] == [0.0, FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert waits[-1] == CAP


async def test_another_write_and_another_object_do_not_wait() -> None:
    writes: RepeatedWrites[str] = RepeatedWrites()
    for _ in range(REPORTED):
        writes.sent("default", "a", {"b": 1})
    assert writes.seconds_left("a", {"b": 2}) == 0.0
    assert writes.seconds_left("c", {"b": 1}) == 0.0
    assert writes.delayed("c") is None
    writes.forget("a")
    assert writes.seconds_left("a", {"b": 1}) == 0.0


async def test_effect_that_lasted_ends_the_waits() -> None:
    writes: RepeatedWrites[str] = RepeatedWrites()
    for count in range(4):
        assert writes.sent("default", "a", 1) == count
    assert writes.delayed("a") == (1, 8 * FIRST)
    await asyncio.sleep(2 * 8 * FIRST + LASTS + 1)
    assert writes.delayed("a") is None
    assert writes.sent("default", "a", 1) == 0
