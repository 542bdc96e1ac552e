"""The clocks of the bridge in simulated and in real loops."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from sync.base.clock import lease_time, now
from sync.kube.leader_write_fence import Fence
from tests.virtual_time_loop import VirtualLoop

REAL_LOOPS = [asyncio.SelectorEventLoop, uvloop.Loop]


async def test_both_clocks_follow_simulated_time() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    began = loop.time()
    assert (now(), lease_time()) == (began, began)
    await asyncio.sleep(10**6)
    assert (now(), lease_time()) == (began + 10**6, began + 10**6)


async def test_thread_without_a_loop_reads_the_clock_of_the_machine() -> None:
    before = time.monotonic()
    assert before <= await asyncio.to_thread(now) <= time.monotonic()


def test_clocks_of_the_machine_are_read_where_no_loop_runs() -> None:
    before = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    found = now(), lease_time()
    after = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before[0] <= found[0] <= after[0]
    assert before[1] <= found[1] <= after[1]


@pytest.mark.parametrize("factory", REAL_LOOPS)
def test_clocks_of_the_machine_are_read_with_their_resolution(
    factory: type[asyncio.AbstractEventLoop],
) -> None:
    """uvloop's own time has milliseconds, which are too coarse for a histogram."""

    async def read() -> None:
        assert lease_time() <= time.clock_gettime(time.CLOCK_BOOTTIME)
        readings = {now() for _ in range(1000)}
        assert len(readings) > 100
        # On the same clock as the loop's timers.
        assert abs(now() - asyncio.get_running_loop().time()) < 1

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(read())


@pytest.mark.parametrize("factory", REAL_LOOPS)
def test_fence_expires_during_a_step_that_blocks_the_loop(
    factory: type[asyncio.AbstractEventLoop],
) -> None:
    """No timer runs, and the loop has not looked at its clock since."""

    async def block() -> None:
        fence = Fence()
        fence.extend(lease_time() + 0.05)
        assert fence.is_open
        time.sleep(0.06)  # noqa: ASYNC251  # the loop is busy
        assert not fence.is_open

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(block())
