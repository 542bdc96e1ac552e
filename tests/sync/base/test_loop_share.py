"""The share of the event loop's time of one remote, by a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from sync.base.loop_share import ACTIVE, BURST, MAX_REST, REST, STEP, LoopShare, LoopUses
from tests.virtual_time_loop import VirtualLoop, run_virtual

#: The part of the time that a remote has beside others.
SHARE = 1 / (1 + REST)


def loop_time() -> float:
    """The CPU time of these tests: work holds the virtual loop."""
    return asyncio.get_running_loop().time()


def work(seconds: float) -> None:
    """Takes that long, of CPU time and of the loop's time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.hold(seconds)


async def took(share: LoopShare, *lengths: float) -> float:
    """The seconds until steps of these lengths are over, rests included."""
    began = loop_time()
    step = share.step()
    for length in lengths:
        work(length)
        await step.end()
    return loop_time() - began


def remote(uses: LoopUses) -> LoopShare:
    return LoopShare(is_limited=True, uses=uses, cpu_time=loop_time)


class Neighbour:
    """Another remote, which uses the loop for a moment ten times a second."""

    def __init__(self, uses: LoopUses) -> None:
        self._share = remote(uses)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await took(self._share, 0.0001)
            await asyncio.sleep(ACTIVE / 10)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def test_remote_without_neighbours_does_not_rest() -> None:
    """As the only one of a process, it has all the time: a large list is as fast as without."""

    async def main() -> None:
        assert await took(remote(LoopUses()), *[STEP] * 2_000) == pytest.approx(2_000 * STEP)
        assert await took(remote(LoopUses()), *[0.05] * 100) == pytest.approx(5)

    run_virtual(main)


def test_remote_beside_idle_ones_does_not_rest() -> None:
    async def main() -> None:
        uses = LoopUses()
        for _ in range(3):
            await took(remote(uses), STEP)
        await asyncio.sleep(2 * ACTIVE)
        assert await took(remote(uses), *[STEP] * 1000) == pytest.approx(1000 * STEP)

    run_virtual(main)


def test_short_work_after_an_idle_time_does_not_rest() -> None:
    async def main() -> None:
        uses = LoopUses()
        neighbour = Neighbour(uses)
        await asyncio.sleep(1)
        steps = int(BURST / (STEP * (1 + REST)))
        assert await took(remote(uses), *[STEP] * steps) == pytest.approx(steps * STEP, rel=0.05)
        await neighbour.stop()

    run_virtual(main)


def test_continuous_work_beside_others_has_its_share() -> None:
    async def main() -> None:
        uses = LoopUses()
        neighbour = Neighbour(uses)
        await asyncio.sleep(1)
        for length in (STEP, 0.05):
            seconds = await took(remote(uses), *[length] * 1000)
            assert 1000 * length / seconds == pytest.approx(SHARE, rel=0.05)
        await neighbour.stop()

    run_virtual(main)


def test_work_beside_others_has_all_the_time_once_they_are_idle() -> None:
    async def main() -> None:
        uses, share = LoopUses(), None
        neighbour = Neighbour(uses)
        await asyncio.sleep(1)
        share = remote(uses)
        await took(share, *[STEP] * 1000)
        await neighbour.stop()
        await took(share, *[STEP] * 1000)
        assert await took(share, *[STEP] * 1000) == pytest.approx(1000 * STEP)

    run_virtual(main)


def test_tasks_of_one_remote_share_its_time() -> None:
    async def main() -> None:
        uses = LoopUses()
        neighbour = Neighbour(uses)
        await asyncio.sleep(1)
        share, began = remote(uses), loop_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(took(share, *[STEP] * 200))
        assert 2_000 * STEP / (loop_time() - began) == pytest.approx(SHARE, rel=0.05)
        await neighbour.stop()

    run_virtual(main)


def test_neighbour_of_a_busy_remote_does_not_rest() -> None:
    async def main() -> None:
        uses = LoopUses()
        busy = asyncio.create_task(took(remote(uses), *[0.05] * 100))
        await asyncio.sleep(1)
        assert await took(remote(uses), *[STEP] * 10) < 10 * STEP + 3 * 0.05
        busy.cancel()
        await asyncio.wait([busy])

    run_virtual(main)


def test_rest_after_the_process_was_suspended_is_bounded() -> None:
    async def main() -> None:
        uses = LoopUses()
        await asyncio.sleep(1)
        share = remote(uses)
        step = share.step()
        work(3600)
        await took(remote(uses), STEP)
        began = loop_time()
        await step.finish()
        assert loop_time() - began <= MAX_REST

    run_virtual(main)


def test_home_lets_other_tasks_run_and_does_not_rest() -> None:
    async def main() -> None:
        uses = LoopUses()
        share = LoopShare(is_limited=False, uses=uses, cpu_time=loop_time)
        neighbour = Neighbour(uses)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        assert await took(share, *[0.1] * 10) == pytest.approx(1.0, rel=0.02)
        task.cancel()
        await neighbour.stop()
        assert turns >= 10

    run_virtual(main)


def test_waiting_for_a_processor_ends_no_step() -> None:
    async def main() -> None:
        step = LoopShare(is_limited=True, uses=LoopUses(), cpu_time=lambda: 0.0).step()
        work(0.1)
        assert not step.is_over

    run_virtual(main)
