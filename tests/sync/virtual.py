"""An event loop whose clock is not the wall's: it jumps to the next timer when nothing is ready.

For what only waits for timers. A wait that nothing can ever end raises instead of hanging.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Clock:
    """Seconds since the loop was made."""

    def __init__(self) -> None:
        self.now = 0.0


class _Selector(selectors.DefaultSelector):
    """Does not wait: lets the time pass that it was asked to wait."""

    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits, and no timer is set that could end it")
            self._clock.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use with `asyncio.Runner`, or `run_virtual`."""

    def __init__(self) -> None:
        self._virtual = _Clock()
        super().__init__(_Selector(self._virtual))
        # What is due is looked for up to now and this much more, which has to be more than nothing
        # after months too.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time."""
        return self._virtual.now

    def hold(self, seconds: float) -> None:
        """As if this call took so long."""
        self._virtual.now += seconds


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs ``main()`` in a loop of its own with virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
