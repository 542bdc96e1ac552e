"""An event loop with virtual time: the clock jumps to the next timer when no task is ready.

For tests of code that only waits for timers. A wait that no timer can end raises instead of
hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock:
    """Seconds since the creation of the loop."""

    def __init__(self) -> None:
        self.now = 0.0


class _Selector(selectors.DefaultSelector):
    """Advances the clock by the requested wait instead of waiting."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits, and no timer can end that")
            self._clock.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use with `asyncio.Runner`, or `run_virtual`."""

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(_Selector(self._virtual))
        # Timers are due up to now plus this resolution, which must stay representable after months.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time."""
        return self._virtual.now

    def hold(self, seconds: float) -> None:
        """Advances the clock, as if the caller took so long."""
        self._virtual.now += seconds


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main()`` in a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
