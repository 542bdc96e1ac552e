"""Rates, slots and turns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from bridge.relay.rate_limits import FairLimiter, TokenBucket
from sync.cache.store import Key
from tests.virtual_time_loop import run_virtual

ONE, OTHER = Key("shop", "one"), Key("shop", "other")


def on_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Runs the test on virtual time, so that the load of the host does not matter."""

    def run() -> None:
        run_virtual(test)

    run.__name__ = test.__name__
    return run


def test_bucket_allows_a_burst_of_one_second() -> None:
    bucket = TokenBucket(10.0)
    assert [bucket.take(0.0) for _ in range(11)] == [0.0] * 10 + [None]
    assert bucket.wait(0.0) == pytest.approx(0.1)
    assert bucket.take(0.1) == pytest.approx(0.0)
    assert bucket.take(0.1) is None
    assert bucket.take(100.0) == 0.0


def test_take_returns_growing_waits_up_to_the_maximum() -> None:
    bucket = TokenBucket(2.0)
    found = [bucket.take(0.0, max_wait=1.0) for _ in range(5)]
    assert found == [0.0, 0.0, 0.5, 1.0, None]


async def test_number_of_slots_is_bounded() -> None:
    turns = FairLimiter(4, 1e6)
    inside, most = 0, 0

    async def one() -> None:
        nonlocal inside, most
        async with turns.slot(ONE, 5.0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(one())
    # A Service alone leaves room for others.
    assert most == 3


@on_virtual_time
async def test_services_take_turns_under_load_of_one() -> None:
    turns = FairLimiter(1, 100.0)
    order: list[Key] = []

    async def one(key: Key) -> None:
        async with turns.slot(key, 5.0):
            order.append(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(100):  # Uses up the burst.
            group.create_task(one(Key("shop", "first")))
        for _ in range(20):
            group.create_task(one(ONE))
        await asyncio.sleep(0)
        for _ in range(3):
            group.create_task(one(OTHER))
    late = order[100:]
    assert Counter(late) == {ONE: 20, OTHER: 3}
    assert late.index(OTHER) <= 2
    assert OTHER not in late[6:]


@on_virtual_time
async def test_rate_is_kept() -> None:
    turns = FairLimiter(100, 50.0)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one() -> None:
        async with turns.slot(ONE, 5.0):
            pass

    async with asyncio.TaskGroup() as group:
        for _ in range(60):
            group.create_task(one())
    assert loop.time() - began == pytest.approx(10 / 50.0, abs=1e-3)


@on_virtual_time
async def test_timed_out_caller_takes_no_slot() -> None:
    turns = FairLimiter(10, 1.0)
    async with turns.slot(ONE, 1.0):
        pass
    with pytest.raises(TimeoutError):
        async with turns.slot(ONE, 0.05):
            raise AssertionError("there is no token")
    assert turns.is_rate_exhausted
    async with turns.slot(OTHER, 2.0):
        pass
    turns.close()


async def test_cancelled_caller_releases_its_slot() -> None:
    turns = FairLimiter(1, 1e6)
    held = asyncio.Event()

    async def one() -> None:
        async with turns.slot(ONE, 5.0):
            held.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(one())
    await held.wait()
    waiting = asyncio.create_task(one())
    await asyncio.sleep(0)
    waiting.cancel()
    task.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)
    async with turns.slot(ONE, 1.0):
        pass
