"""An event loop with virtual time: its clock jumps to the next timer when nothing else can happen.

The loop of the tests. Work takes no time, however slow the machine is; only timers do. So a test
runs with the product's own timeouts, and a pause of the machine cannot make one expire.

Sockets between parts of one process work: the kernel has delivered what was sent on the loopback
interface when `send` returns, or shortly after it, where a thread of the kernel does the rest.
So the loop really waits for a moment before it jumps, longer before a longer jump (`_grace`).

Threads and child processes take real time: while a function of the executor, a child process of
`subprocess_exec`, or a thread that was started since the loop exists, has not ended, the loop waits
as asyncio's does, and its clock advances by the duration of the wait.

A wait that no timer and none of these can end raises, instead of hanging. So do tasks that do not
let the clock advance for `MAX_STANDSTILL` real seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import selectors
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

import pytest

from sync.base.clock import SimulatedTime

T = TypeVar("T")

#: Seconds that a jump of the clock is longer than the real wait before it, at least.
_JUMP_PER_GRACE = 100
#: The bounds of that wait in seconds: the shortest of `epoll`, and enough for a busy machine.
_MIN_GRACE, _MAX_GRACE = 0.001, 0.02
#: The wait in seconds if no timer ends it, before nothing counts as able to; and while the kernel
#: holds data back (Nagle's algorithm), which it sends after at most 40 ms. It also holds data back
#: from a peer that does not read; so the loop waits once for the same data.
_LAST_GRACE = 0.2
#: Less than the timeout of a test: pytest-timeout cannot end a test while another task runs.
MAX_STANDSTILL = 45.0
#: The size of the data in a socket that the kernel has not sent; `SIOCOUTQNSD` of Linux.
_SIOCOUTQNSD = 0x894B


class _Selector(selectors.DefaultSelector):
    """Advances the loop's clock by the requested wait instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        # Not 0, at which a time is the same as none.
        self.now = 1000.0
        self.is_busy_elsewhere: Callable[[], bool] = lambda: False
        self._unsent: dict[int, int] = {}
        # A virtual time, and the real time at which the clock reached it.
        self._standing_since = 0.0, 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._check_standstill()
            return ready
        if self.is_busy_elsewhere():
            began = time.monotonic()
            # Not longer: nothing reports the end of a thread.
            ready = super().select(min(timeout or 1.0, 0.01))
            self.now += time.monotonic() - began
            return ready
        if ready := super().select(self._grace(timeout)):
            return ready
        if timeout is None:
            raise RuntimeError(f"nothing can end the wait of {_task_names()}")
        self.now += timeout
        return []

    def _check_standstill(self) -> None:
        real = time.monotonic()
        if self._standing_since[0] != self.now:
            self._standing_since = self.now, real
        elif real - self._standing_since[1] > MAX_STANDSTILL:
            self._standing_since = self.now, real
            raise RuntimeError(f"time stands still: {_task_names()}")

    def _grace(self, timeout: float | None) -> float:
        """The real seconds within which a socket can become ready."""
        if len(self.get_map()) == 1:
            return 0.0  # only the loop's own
        before, self._unsent = self._unsent, dict(self._find_unsent())
        if timeout is None or any(before.get(fd) != size for fd, size in self._unsent.items()):
            return _LAST_GRACE
        return min(max(timeout / _JUMP_PER_GRACE, _MIN_GRACE), _MAX_GRACE)

    def _find_unsent(self) -> Iterator[tuple[int, int]]:
        """The sockets with data that the kernel has not sent, and its size."""
        for key in self.get_map().values():
            with contextlib.suppress(OSError):
                (size,) = struct.unpack("i", fcntl.ioctl(key.fd, _SIOCOUTQNSD, bytes(4)))
                if size:
                    yield key.fd, size


def _task_names() -> str:
    names = sorted(task.get_name() for task in asyncio.all_tasks(asyncio.get_running_loop()))
    return ", ".join(names) or "the loop"


class VirtualLoop(SimulatedTime, asyncio.SelectorEventLoop):
    """Use with `asyncio.Runner`, or `run_virtual`. Tests get it from `tests/conftest.py`."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._virtual.is_busy_elsewhere = self._is_busy_elsewhere
        # Timers are due up to now plus this resolution, which must stay representable after months.
        self._clock_resolution = 1e-6
        self._executor_jobs = 0
        self._children: list[asyncio.SubprocessTransport] = []
        self._threads_before = set(threading.enumerate())

    def time(self) -> float:
        """The virtual time."""
        return self._virtual.now

    def hold(self, seconds: float) -> None:
        """Advances the clock, as if the caller took so long."""
        self._virtual.now += seconds

    def _is_busy_elsewhere(self) -> bool:
        started = set(threading.enumerate()) - self._threads_before
        if self._executor_jobs or any(map(_is_foreign, started)):
            return True
        self._children = [child for child in self._children if child.get_returncode() is None]
        return bool(self._children)

    def run_in_executor(  # type: ignore[override]  # typeshed has variadic generics
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """As asyncio's; counts the job until its result has arrived or is no longer awaited."""
        future: asyncio.Future[T] = super().run_in_executor(executor, func, *args)
        self._executor_jobs += 1
        future.add_done_callback(self._job_ended)
        return future

    def _job_ended(self, _: asyncio.Future[Any]) -> None:
        self._executor_jobs -= 1

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        """As asyncio's."""
        transport, protocol = await super().subprocess_exec(*args, **options)
        self._children.append(transport)
        return transport, protocol

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        """As asyncio's."""
        transport, protocol = await super().subprocess_shell(*args, **options)
        self._children.append(transport)
        return transport, protocol


def _is_foreign(thread: threading.Thread) -> bool:
    """Whether a thread is not one of the loop's executor, whose jobs are counted."""
    return not thread.name.startswith("asyncio_")


async def poll(condition: Callable[[], object], *, timeout: float = 120.0) -> None:
    """Waits until the condition is true, which has no event. Looks less often with time, since each
    look costs a real millisecond. Raises TimeoutError."""
    interval = 0.004
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(interval)
            interval = min(1.2 * interval, 0.25)


async def poll_in_real_time(condition: Callable[[], object], *, timeout: float = 20.0) -> None:
    """As `poll`, for processes that another process started, and for what they write: the loop's
    clock does not wait for them. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.to_thread(time.sleep, 0.01)


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main()`` in a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a test, by name: virtual unless the test is marked `real_time`."""
    if item.get_closest_marker("real_time"):
        return {"asyncio": asyncio.new_event_loop}
    return {"virtual": VirtualLoop}
