"""How long the callbacks of an event loop keep it from others."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any
from unittest.mock import patch


class LoopSteps:
    """The callbacks of all loops of this thread while `measured`, without those of sockets: how
    long they keep the loop from others, in CPU time of the thread. Other processes of the machine
    do not count, nor does the collection of the garbage of a whole run of tests."""

    def __init__(self) -> None:
        self.longest = 0.0
        """CPU seconds of the longest callback."""
        self.what = ""
        """That callback, or its task."""

    def reset(self) -> None:
        self.longest, self.what = 0.0, ""

    @contextmanager
    def measured(self) -> Iterator[None]:
        loops = asyncio.BaseEventLoop
        soon, at = loops.call_soon, loops.call_at

        def call_soon(
            loop: asyncio.BaseEventLoop,
            callback: Callable[..., Any],
            *args: Any,
            context: Context | None = None,
        ) -> asyncio.Handle:
            return soon(loop, self._timed(callback), *args, context=context)

        def call_at(
            loop: asyncio.BaseEventLoop,
            when: float,
            callback: Callable[..., Any],
            *args: Any,
            context: Context | None = None,
        ) -> asyncio.TimerHandle:
            return at(loop, when, self._timed(callback), *args, context=context)

        gc.disable()
        try:
            with (
                patch.object(loops, "call_soon", call_soon),
                patch.object(loops, "call_at", call_at),
            ):
                yield
        finally:
            gc.enable()

    def _timed(self, callback: Callable[..., Any]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            began = time.thread_time()
            callback(*args)
            took = time.thread_time() - began
            if took > self.longest:
                self.longest, self.what = took, repr(getattr(callback, "__self__", callback))

        return timed
