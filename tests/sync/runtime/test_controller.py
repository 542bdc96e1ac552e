"""Workers that reconcile each key until it succeeds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from sync.cache.store import Key
from sync.kube.api_errors import Invalid, Unreachable
from sync.kube.request_limiter import FLOW
from sync.runtime import workqueue
from sync.runtime.controller import SLICE, Controller, ReconcileBlocked
from tests.virtual_time_loop import VirtualLoop, run_virtual

Reconcile = Callable[[str], Awaitable[None]]


@asynccontextmanager
async def running(reconcile: Reconcile, *, workers: int = 2) -> AsyncIterator[Controller[str]]:
    """A controller at work until the block ends."""
    controller = Controller("test", reconcile, workers=workers)
    task = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the delays before retries."""
    monkeypatch.setattr(workqueue, "RETRY_FIRST", 0.002)
    monkeypatch.setattr(workqueue, "RETRY_CAP", 0.004)


class RecordingReconcile:
    """A reconcile function that records its keys and raises configured errors."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.calls: list[str] = []
        self.now: set[str] = set()
        self.most = 0
        self._ended = asyncio.Event()

    async def until(self, calls: int) -> None:
        """Waits until this number of calls has ended."""
        while len(self.calls) < calls or self.now:
            self._ended.clear()
            await self._ended.wait()

    async def __call__(self, key: str) -> None:
        assert key not in self.now, "one key is worked twice at once"
        self.calls.append(key)
        self.now.add(key)
        self.most = max(self.most, len(self.now))
        try:
            await asyncio.sleep(0.001)
            if self.failures:
                raise self.failures.pop(0)
        finally:
            self.now.discard(key)
            self._ended.set()


def refused() -> Unreachable:
    return Unreachable("refused", side="remote", what="GET /x")


async def test_different_keys_run_in_parallel_up_to_the_number_of_workers() -> None:
    worked = RecordingReconcile()
    async with running(worked, workers=3) as controller:
        for key in "abcdefg":
            controller.queue.add(key)
        await controller.reconcile_now("g")
    assert worked.most == 3
    assert set(worked.calls) == set("abcdefg")


async def test_key_is_never_reconciled_twice_at_once() -> None:
    worked = RecordingReconcile()
    async with running(worked, workers=3) as controller:
        for _ in range(10):
            controller.queue.add("a")
            await asyncio.sleep(0.0005)
        await controller.reconcile_now("a")
    assert worked.most == 1


async def test_failing_key_is_retried_until_success() -> None:
    worked = RecordingReconcile(refused(), ReconcileBlocked("Busy", "wait"), refused())
    async with running(worked) as controller:
        controller.queue.add("a")
        await worked.until(4)
        await asyncio.sleep(0.02)
    assert worked.calls == ["a"] * 4


async def test_only_the_first_failure_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    worked = RecordingReconcile(refused(), refused(), refused())
    async with running(worked) as controller:
        controller.queue.add("a")
        await worked.until(4)
        worked.failures = [refused()]
        controller.queue.add("a")
        await worked.until(6)
    levels = [
        record.levelname for record in caplog.records if record.name == "sync.runtime.controller"
    ]
    assert levels == ["WARNING", "DEBUG", "DEBUG", "WARNING"]
    assert "test a: remote: GET /x: refused (again in" in caplog.text


async def test_unexpected_exception_is_logged_and_stops_no_other_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The message of the exception can quote an object, and is not logged."""
    caplog.set_level(logging.DEBUG)
    worked = RecordingReconcile(ValueError("invalid literal: 'canary-4711'"))
    async with running(worked, workers=1) as controller:
        controller.queue.add("a")
        await controller.reconcile_now("b")
        await worked.until(3)
    assert sorted(worked.calls) == ["a", "a", "b"]
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "test a: a defect in the bridge" in record.getMessage()
    assert "ValueError" in record.getMessage()
    assert "sync/runtime/test_controller.py" in record.getMessage()
    assert "canary-4711" not in caplog.text


async def test_reconcile_now_raises_the_error_of_the_reconcile() -> None:
    async with running(RecordingReconcile(ReconcileBlocked("Busy", "wait"))) as controller:
        with pytest.raises(ReconcileBlocked, match="Busy: wait"):
            await controller.reconcile_now("a")
        await controller.reconcile_now("a")


async def test_reconcile_now_during_a_reconcile_waits_for_the_next() -> None:
    turns: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
    calls = 0

    async def reconcile(_: str) -> None:
        nonlocal calls
        calls += 1
        await turns[calls - 1].wait()

    async with running(reconcile) as controller:
        controller.queue.add("a")
        await asyncio.sleep(0.001)
        waiting = asyncio.create_task(controller.reconcile_now("a"))
        await asyncio.sleep(0.001)
        turns[0].set()
        await asyncio.sleep(0.001)
        assert not waiting.done()
        turns[1].set()
        await waiting
    assert calls == 2


async def test_many_callers_wait_for_one_key_and_one_is_cancelled() -> None:
    worked = RecordingReconcile(refused())
    async with running(worked) as controller:
        waiting = [asyncio.create_task(controller.reconcile_now("a")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(result, Unreachable) for result in results[1:])


async def test_reconcile_now_ends_with_the_controller() -> None:
    async def reconcile(_: str) -> None:
        await asyncio.Event().wait()

    async with running(reconcile) as controller:
        waiting = asyncio.create_task(controller.reconcile_now("a"))
        await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):
            await waiting


async def test_cancelled_controller_leaves_no_task_and_no_timer() -> None:
    before = asyncio.all_tasks()
    worked = RecordingReconcile(refused())
    async with running(worked) as controller:
        controller.queue.add("a")
        await asyncio.sleep(0.0015)
    assert asyncio.all_tasks() == before
    calls = len(worked.calls)
    await asyncio.sleep(0.01)
    assert len(worked.calls) == calls
    assert "0 delayed" in repr(controller)


def test_key_failing_for_days_is_retried_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    async def main() -> None:
        worked = RecordingReconcile(*(refused() for _ in range(10_000)))
        async with running(worked, workers=1) as controller:
            controller.queue.add("a")
            await asyncio.sleep(86_400)
            calls = len(worked.calls)
            assert 86_400 / 60 <= calls <= 86_400 / 30 + 20
            controller.queue.retry_now()
            await asyncio.sleep(0.01)
            assert len(worked.calls) == calls + 1

    run_virtual(main)


def test_unretryable_key_waits_longest_unless_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    async def main() -> None:
        worked = RecordingReconcile(*(Invalid("no", side="remote", code=422) for _ in range(10)))
        async with running(worked, workers=1) as controller:
            controller.queue.add("a")
            await asyncio.sleep(59)
            assert len(worked.calls) == 1
            await asyncio.sleep(2)
            assert len(worked.calls) == 2
            controller.queue.add("a")
            await asyncio.sleep(0.01)
            assert len(worked.calls) == 3

    run_virtual(main)


async def test_workers_that_never_wait_yield_to_the_loop() -> None:
    """Thousands of keys of which nothing is to be done, as after a restart."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    worked = 0

    async def reconcile(_: str) -> None:
        nonlocal worked
        worked += 1
        loop.hold(0.00005)

    rounds = []
    async with running(reconcile, workers=64) as controller:
        await asyncio.sleep(0)
        for key in range(5000):
            controller.queue.add(str(key))
        while worked < 5000:
            before = worked
            await asyncio.sleep(0)
            rounds.append(worked - before)
    # A round may overlap two slices.
    assert max(rounds) <= 2 * SLICE / 0.00005


@pytest.mark.parametrize("seconds", [0.00015, 0.0011, 0.004])
async def test_workers_that_only_compute_share_slices_in_order(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    worked: list[int] = []

    async def reconcile(key: str) -> None:
        worked.append(int(key))
        loop.hold(seconds)

    rounds = []
    async with running(reconcile, workers=64) as controller:
        await asyncio.sleep(0)
        for key in range(400):
            controller.queue.add(str(key))
        while len(worked) < 400:
            before = len(worked)
            await asyncio.sleep(0)
            rounds.append(len(worked) - before)
    assert max(rounds) <= max(SLICE / seconds, SLICE / 0.001) + 2
    # A key that a worker has taken is overtaken by the keys of one slice only, and not by a queue.
    assert max(place - key for place, key in enumerate(worked)) <= 64


async def test_controller_that_is_cancelled_between_slices_gives_the_keys_back() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    worked: list[str] = []

    async def reconcile(key: str) -> None:
        worked.append(key)
        loop.hold(0.002)

    async with running(reconcile, workers=64) as controller:
        await asyncio.sleep(0)
        for number in range(64):
            controller.queue.add(str(number))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert 0 < len(worked) < 64
    assert not controller.queue.working


async def test_requests_of_a_reconcile_have_its_flow() -> None:
    seen = []

    async def reconcile(key: Key) -> None:
        seen.append((key.namespace, FLOW.get()))

    controller = Controller("test", reconcile, workers=1)
    task = asyncio.create_task(controller.run())
    for key in ("a", "a", "b", "a"):
        await controller.reconcile_now(Key(key, "x"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [("a", "a"), ("a", "a"), ("b", "b"), ("a", "a")]
    assert FLOW.get() is None


async def test_unfinished_work_has_durations() -> None:
    going, end = asyncio.Event(), asyncio.Event()

    async def reconcile(_: str) -> None:
        going.set()
        await end.wait()

    async with running(reconcile, workers=2) as controller:
        assert controller.unfinished_work == []
        controller.queue.add("a")
        await going.wait()
        (before,) = controller.unfinished_work
        (after,) = controller.unfinished_work
        assert 0 <= before <= after
        end.set()
        controller.queue.add("b")
        await controller.reconcile_now("b")
        await asyncio.sleep(0)
        assert controller.unfinished_work == []
