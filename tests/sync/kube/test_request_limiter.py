"""The limit of requests in flight, against servers of several kinds in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from sync.kube.request_limiter import FLOW, HOLD, LEAST, RequestLimiter, urgent
from tests.virtual_time_loop import run_virtual

MOST = 64

#: Answers a request: whether it is refused.
Answer = Callable[[], Awaitable[bool]]


def cores(number: int, seconds: float) -> Answer:
    """A server with so many processors, each of which needs so long for a request."""
    free = asyncio.Semaphore(number)

    async def answer() -> bool:
        async with free:
            await asyncio.sleep(seconds)
        return False

    return answer


def takes(seconds: Callable[[], float]) -> Answer:
    """A server that answers any number of requests at once, each after so long."""

    async def answer() -> bool:
        await asyncio.sleep(seconds())
        return False

    return answer


def seats(number: int, seconds: float) -> Answer:
    """A server that refuses what is beyond so many requests at once."""
    busy = 0

    async def answer() -> bool:
        nonlocal busy
        if busy >= number:
            await asyncio.sleep(0.001)
            return True
        busy += 1
        await asyncio.sleep(seconds)
        busy -= 1
        return False

    return answer


class Load:
    """Namespaces whose requests never end, through one limiter."""

    def __init__(self, answer: Answer) -> None:
        self.limiter = RequestLimiter(most=MOST)
        self.answer = answer
        self.answered: Counter[str] = Counter()
        self.refused = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def one(self, answer: Answer | None = None) -> float:
        """Seconds that one request takes, its waiting included."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        flow = await self.limiter.enter()
        began, refused = loop.time(), False
        try:
            refused = await (answer or self.answer)()
        finally:
            self.limiter.leave(flow, sent=began, throttled=refused)
        if refused:
            self.refused += 1
            await asyncio.sleep(1)
        else:
            self.answered[str(flow)] += 1
        return loop.time() - came

    def crowd(
        self, namespace: str = "crowd", size: int = 100, answer: Answer | None = None
    ) -> None:
        """So many that send their next request when the last is answered."""

        async def worker() -> None:
            FLOW.set(namespace)
            while True:
                await self.one(answer)

        self._tasks += [asyncio.create_task(worker()) for _ in range(size)]

    async def rate(self, seconds: float) -> float:
        """Answers a second from now on."""
        before, self.refused = self.answered.total(), 0
        await asyncio.sleep(seconds)
        return (self.answered.total() - before) / seconds

    async def end(self) -> None:
        """All are cancelled, wherever they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def test_single_request_never_waits() -> None:
    async def main() -> None:
        load = Load(takes(lambda: 0.004))
        for _ in range(100):
            assert await load.one() == pytest.approx(0.004)
        assert load.limiter.limit == MOST

    run_virtual(main)


def test_slow_server_gets_the_full_limit() -> None:
    async def main() -> None:
        load = Load(takes(lambda: 0.2))
        load.crowd("a")
        load.crowd("b")
        assert load.limiter.limit == MOST
        assert await load.rate(10) >= 0.95 * 54 / 0.2  # two groups hold 54 of 64

    run_virtual(main)


def test_limit_falls_on_throttling_and_recovers() -> None:
    async def main() -> None:
        load = Load(seats(8, 0.01))
        load.crowd()
        await asyncio.sleep(5)
        assert await load.rate(60) >= 0.4 * 8 / 0.01
        assert load.refused <= 60 * 3
        assert load.limiter.limit <= 12
        load.answer = takes(lambda: 0.01)
        await asyncio.sleep(10)
        assert load.limiter.limit == MOST
        await load.end()

    run_virtual(main)


def test_concurrent_throttling_lowers_the_limit_once_and_not_below_the_minimum() -> None:
    async def main() -> None:
        it = RequestLimiter(most=MOST)
        sent = asyncio.get_running_loop().time()
        for number in range(MOST):
            FLOW.set(number)
            await it.enter()
        assert (it.in_flight, it.waiting) == (MOST, 0)
        await asyncio.sleep(1)
        for number in range(MOST):
            it.leave(number, sent=sent, throttled=True)
        assert it.limit == MOST // 2
        for _ in range(10):
            await asyncio.sleep(1)
            flow, sent = await it.enter(), asyncio.get_running_loop().time()
            it.leave(flow, sent=sent, throttled=True)
        assert it.limit == LEAST

    run_virtual(main)


def test_throttling_lowers_a_limit_that_has_grown_since_the_request() -> None:
    """A response may take longer than the limit needs to grow."""

    async def late() -> bool:
        await asyncio.sleep(2)
        return True

    async def main() -> None:
        load = Load(takes(lambda: 0.01))
        load.crowd()
        await asyncio.sleep(1)
        flow, sent = await load.limiter.enter(), asyncio.get_running_loop().time()
        load.limiter.leave(flow, sent=sent, throttled=True)
        assert load.limiter.limit == MOST // 2
        await asyncio.sleep(HOLD)
        throttled = asyncio.create_task(load.one(late))
        await asyncio.sleep(1.9)
        assert load.limiter.limit > MOST // 2
        await asyncio.sleep(0.5)
        assert load.limiter.limit == MOST // 2
        await throttled
        await load.end()

    run_virtual(main)


def test_hanging_namespace_does_not_delay_others() -> None:
    async def main() -> None:
        load = Load(takes(lambda: 0.005))
        load.crowd("slow", answer=takes(lambda: 10.0))
        await asyncio.sleep(60)
        FLOW.set("other")
        waits = [await load.one() for _ in range(200)]
        assert sorted(waits)[197] <= 0.006
        await load.end()

    run_virtual(main)


def test_request_beside_a_crowd_waits_one_turn() -> None:
    async def main() -> None:
        load = Load(cores(2, 0.006))
        load.crowd(size=5000)
        await asyncio.sleep(10)
        FLOW.set("other")
        waits = [await load.one() for _ in range(200)]
        assert sorted(waits)[197] <= 1.5 * MOST / 2 * 0.006
        await load.end()

    run_virtual(main)


def test_urgent_requests_and_their_tasks_do_not_wait() -> None:
    async def main() -> None:
        load = Load(takes(lambda: 100.0))
        load.crowd("a")
        load.crowd("b")
        await asyncio.sleep(1)
        assert load.limiter.waiting > 0
        with urgent():
            task = asyncio.create_task(load.one(takes(lambda: 0.004)))
        assert await task == pytest.approx(0.004)
        assert FLOW.get() is None
        await load.end()

    run_virtual(main)


def test_cancelled_waiter_passes_its_slot_on() -> None:
    async def main() -> None:
        it = RequestLimiter(most=MOST)
        flows = [await it.enter() for _ in range(MOST * 3 // 4)]
        waiting = [asyncio.create_task(it.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        assert it.waiting == 3
        waiting[0].cancel()
        it.leave(flows.pop(), sent=0, throttled=False)  # The second has its place now,
        waiting[1].cancel()  # and is cancelled before it knows.
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [task.cancelled() for task in waiting] == [True, True, False]
        for flow in (*flows, waiting[2].result()):
            it.leave(flow, sent=0, throttled=False)
        assert (it.in_flight, it.waiting) == (0, 0)

    run_virtual(main)
