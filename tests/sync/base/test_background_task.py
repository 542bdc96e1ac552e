"""Tasks that run beside a block."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sync.base.background_task import background_task, cancel_and_wait


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A task that has run until its first wait."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    return task


async def slow_to_end(ended: asyncio.Event) -> None:
    """Needs some rounds of the event loop to end once it is cancelled."""
    try:
        await never()
    finally:
        for _ in range(3):
            await asyncio.sleep(0)
        ended.set()


async def test_task_has_ended_after_the_block() -> None:
    ended = asyncio.Event()
    async with background_task(slow_to_end(ended), name="work") as task:
        await asyncio.sleep(0)
        assert task.get_name() == "work"
    assert ended.is_set()
    assert task.cancelled()


async def test_error_of_the_block_is_raised_after_the_task_has_ended() -> None:
    ended = asyncio.Event()

    async def run() -> None:
        async with background_task(slow_to_end(ended), name="work"):
            await asyncio.sleep(0)
            raise RuntimeError("of the block")

    with pytest.raises(RuntimeError, match="of the block"):
        await run()
    assert ended.is_set()


async def test_result_is_kept() -> None:
    async def work() -> int:
        return 3

    async with background_task(work(), name="work") as task:
        assert await task == 3
    assert task.result() == 3


async def test_error_of_the_task_is_raised() -> None:
    async def fail() -> None:
        raise RuntimeError("of the task")

    with pytest.raises(RuntimeError, match="of the task"):
        await cancel_and_wait(await started(fail()))


async def test_cancellation_of_the_caller_is_raised() -> None:
    """Also while the task does not end; a cancelled caller must not go on."""
    task = await started(slow_to_end(asyncio.Event()))
    caller = await started(cancel_and_wait(task))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.wait({task})


async def test_block_that_is_cancelled_waits_for_the_task() -> None:
    ended = asyncio.Event()

    async def run() -> None:
        async with background_task(slow_to_end(ended), name="work"):
            await never()

    caller = await started(run())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
