"""The contract of the work queue, by example and against a model."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sync.base.clock import now
from sync.base.fair_queue import SHARE
from sync.cache.store import Key
from sync.runtime.workqueue import RETRY_CAP, RETRY_FIRST, WorkQueue
from tests.virtual_time_loop import VirtualLoop, run_virtual


async def take(queue: WorkQueue[str], count: int) -> list[str]:
    """Takes the next keys, and marks each as done at once."""
    keys = []
    for _ in range(count):
        key = await queue.get()
        keys.append(key)
        queue.done(key)
    return keys


async def turns() -> None:
    """Lets all ready tasks run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_repr_and_counters_of_a_queue() -> None:
    queue: WorkQueue[str] = WorkQueue()
    assert (queue.delayed, queue.failing, queue.longest_wait) == (0, 0, 0.0)
    queue.add("a")
    await asyncio.sleep(0.02)
    queue.add("b")
    assert queue.longest_wait == pytest.approx(0.02)
    assert await queue.get() == "a"
    assert queue.longest_wait == 0.0
    queue.retry("a")
    queue.done("a")
    queue.add_after("c", 60)
    assert (queue.delayed, queue.failing) == (2, 1)
    queue.forget("a")
    assert queue.failing == 0
    queue.close()


def test_earlier_of_two_times_counts() -> None:
    async def main() -> None:
        began, queue = now(), WorkQueue[str]()
        queue.add_after("later first", 9)
        queue.add_after("later first", 2)
        queue.add_after("sooner first", 3)
        queue.add_after("sooner first", 9)
        assert await take(queue, 1) == ["later first"]
        assert now() == began + 2
        assert await take(queue, 1) == ["sooner first"]
        assert now() == began + 3
        await asyncio.sleep(20)
        assert len(queue) == 0

    run_virtual(main)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("seconds", [0, 0.0001])
def test_due_key_may_be_delayed_again(
    loop: Callable[[], asyncio.AbstractEventLoop], seconds: float
) -> None:
    """A uvloop handle of a call that is due at once has no time."""

    async def scenario() -> list[str]:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", seconds)
        queue.add_after("a", seconds)
        queue.add_after("a", 5)
        return await take(queue, 1)

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(scenario()) == ["a"]


def test_add_overrides_add_after() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 5)
        queue.add("a")
        queue.add_after("a", 5)
        assert await take(queue, 1) == ["a"]
        await asyncio.sleep(20)
        assert len(queue) == 0

    run_virtual(main)


def test_failing_key_backs_off_until_success() -> None:
    async def main() -> None:
        queue, began = WorkQueue[str](rng=random.Random(3)), now()
        waits = []
        for _ in range(12):
            waits.append(queue.retry("a"))
            assert await take(queue, 1) == ["a"]
        assert waits[0] <= RETRY_FIRST
        assert RETRY_CAP / 2 <= waits[-1] <= RETRY_CAP
        assert now() - began == pytest.approx(sum(waits))
        queue.forget("a")
        assert queue.retry("a") <= RETRY_FIRST
        queue.close()

    run_virtual(main)


def test_retry_now_queues_failed_keys_only() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        for _ in range(8):
            queue.retry("failed")
            await take(queue, 1)
        queue.retry("failed")
        queue.add_after("planned", 500)
        before = now()
        queue.retry_now()
        assert await take(queue, 1) == ["failed"]
        assert now() == before
        assert queue.retry("failed") <= RETRY_FIRST
        assert "2 delayed" in repr(queue)
        queue.close()

    run_virtual(main)


def test_closed_queue_has_no_timers() -> None:
    async def main() -> None:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("a", 1)
        queue.close()
        await asyncio.sleep(5)
        assert len(queue) == 0

    run_virtual(main)


KEYS = st.sampled_from("abc")


class Model(RuleBasedStateMachine):
    """Compares any sequence of calls with a model of the contract."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.queue: WorkQueue[str] = WorkQueue(rng=random.Random(0))
        self.ready: list[str] = []
        self.again: set[str] = set()
        self.working: set[str] = set()
        self.later: dict[str, float] = {}
        self.waiting: list[asyncio.Task[str]] = []
        self.moments = 0

    def teardown(self) -> None:
        """Asserts that every added key is processed in the end."""
        for key in list(self.working):
            self.done(key)
        self.pass_time(1000.0)
        while self.ready:
            self.take()
            for key in list(self.working):
                self.done(key)
        assert len(self.queue) == 0
        for task in self.waiting:
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def act(self, call: Callable[[], object]) -> None:
        """Runs the call in the loop, and lets all tasks run."""

        async def inside() -> None:
            call()
            await turns()

        self.loop.run_until_complete(inside())
        self.served()

    def served(self) -> None:
        """Asserts that waiting workers have taken the available keys in order."""
        done = [task for task in self.waiting if task.done()]
        got = {task.result() for task in done}
        self.waiting = [task for task in self.waiting if not task.done()]
        expected = self.ready[: len(done)]
        assert got == set(expected)
        del self.ready[: len(done)]
        self.working |= got
        assert not (self.waiting and self.ready), "a worker sleeps while there is work"

    def expect(self, key: str) -> None:
        self.later.pop(key, None)
        if key in self.working:
            self.again.add(key)
        elif key not in self.ready:
            self.ready.append(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.expect(key)
        self.act(lambda: self.queue.add(key))

    @rule(key=KEYS, whole=st.integers(1, 30))
    def add_after(self, key: str, whole: int) -> None:
        # Timers of one moment have no order among them: no two are of one.
        self.moments += 1
        seconds = whole + self.moments / 1000
        if key not in self.ready and key not in self.again:
            when = self.loop.time() + seconds
            self.later[key] = min(when, self.later.get(key, when))
        self.act(lambda: self.queue.add_after(key, seconds))

    @rule(seconds=st.floats(0.1, 40))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for key in sorted(self.later, key=lambda key: self.later[key]):
            if self.later[key] <= self.loop.time() + 1e-9:
                self.expect(key)
        self.loop.run_until_complete(turns())
        self.served()

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        key = self.loop.run_until_complete(self.queue.get())
        assert key == self.ready.pop(0)
        assert key not in self.working
        self.working.add(key)

    @precondition(lambda self: not self.ready and len(self.waiting) < 3)
    @rule()
    def wait(self) -> None:
        self.waiting.append(self.loop.create_task(self.queue.get()))
        self.loop.run_until_complete(turns())

    @precondition(lambda self: self.waiting)
    @rule(key=KEYS)
    def cancel_one_as_a_key_comes(self, key: str) -> None:
        task = self.waiting.pop(0)
        self.expect(key)

        def both() -> None:
            self.queue.add(key)
            task.cancel()

        self.act(both)
        assert task.cancelled()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.done(data.draw(st.sampled_from(sorted(self.working))))

    def done(self, key: str) -> None:
        self.working.discard(key)
        if key in self.again:
            self.again.discard(key)
            self.ready.append(key)
        self.act(lambda: self.queue.done(key))

    @invariant()
    def as_many_as_should_be_are_ready(self) -> None:
        assert len(self.queue) == len(self.ready)


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestAnySequence = Model.TestCase


def of_namespaces(*keys: str) -> list[Key]:
    """``a/1`` is key 1 of namespace a."""
    return [Key(*key.split("/")) for key in keys]


async def test_namespaces_take_turns() -> None:
    queue: WorkQueue[Key] = WorkQueue()
    for key in of_namespaces("a/1", "a/2", "a/3", "b/1", "b/2", "c/1"):
        queue.add(key)
    came = []
    for _ in range(6):
        key = await queue.get()
        came.append(str(key))
        queue.done(key)
    assert came == ["a/1", "b/1", "c/1", "a/2", "b/2", "a/3"]


async def test_pod_beside_thousands_waits_one_turn_per_worker() -> None:
    queue: WorkQueue[Key] = WorkQueue(workers=64)
    for number in range(5000):
        queue.add(Key("crowd", str(number)))
    worked = [await queue.get() for _ in range(10)]
    queue.add(Key("other", "alone"))
    worked += [await queue.get() for _ in range(2)]
    assert Key("other", "alone") in worked


async def test_hanging_namespace_leaves_workers_to_others() -> None:
    queue: WorkQueue[Key] = WorkQueue(workers=8)
    for number in range(100):
        queue.add(Key("hangs", str(number)))
    workers = [asyncio.create_task(queue.get()) for _ in range(8)]
    await turns()
    assert sum(worker.done() for worker in workers) == 6
    queue.add(Key("other", "1"))
    queue.add(Key("third", "1"))
    await turns()
    assert all(worker.done() for worker in workers)
    assert {worker.result().namespace for worker in workers} == {"hangs", "other", "third"}


async def test_done_and_get_takes_the_next_key_and_wakes_a_worker() -> None:
    queue: WorkQueue[Key] = WorkQueue(workers=8)
    for key in of_namespaces(*(f"a/{number}" for number in range(10))):
        queue.add(key)
    taken = [await queue.get() for _ in range(6)]
    idle = asyncio.create_task(queue.get())
    await turns()
    assert not idle.done(), "the last quarter is for others"
    assert queue.done_and_get(taken[0]) == Key("a", "6")
    queue.done(taken[1])
    assert await idle == Key("a", "7")


LOADS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 5), st.integers(0, 6), st.integers(0, 4)),
    max_size=12,
)


@given(loads=LOADS, workers=st.integers(1, 9))
@settings(max_examples=50)
def test_any_load_is_processed_without_idle_workers(
    loads: list[tuple[str, int, int, int]], workers: int
) -> None:
    """Each key is processed after its last addition, and never twice at once."""
    most = math.ceil(3 * workers / 4)

    async def main() -> None:
        queue: WorkQueue[Key] = WorkQueue(workers=workers)
        lasts = {Key(ns, str(n)): seconds for ns, n, _, seconds in loads}
        working: list[Key] = []
        owed: set[Key] = set()

        async def work() -> None:
            key = None
            while True:
                key = key or await queue.get()
                assert key not in working
                owed.discard(key)
                working.append(key)
                for namespace in "abcd":
                    assert sum(it.namespace == namespace for it in working) <= most
                await asyncio.sleep(lasts[key])
                working.remove(key)
                key = queue.done_and_get(key)

        def add(key: Key) -> None:
            owed.add(key)
            queue.add(key)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work()) for _ in range(workers)]
            loop, began = asyncio.get_running_loop(), now()
            for namespace, number, when, _ in loads:
                loop.call_later(when + 0.3, add, Key(namespace, str(number)))
            while now() < began + 7 or owed or working:
                await asyncio.sleep(1.25)
                free, ready = workers - len(working), owed - set(working)
                held = Counter(key.namespace for key in working)
                assert not [key for key in ready if held[key.namespace] < SHARE * free], (
                    "an idle worker leaves a key that it may take"
                )
            assert not owed
            assert len(queue) == 0
            for task in tasks:
                task.cancel()

    run_virtual(main)
