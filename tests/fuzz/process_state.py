"""Measures a process under test: its memory, descriptors and tasks, its logged errors, and the
longest step of its event loop.

Memory is measured after collecting garbage, and without what the C library keeps of freed memory:
in 36,000 exchanges with a hostile remote that was up to 20 MiB, and the objects of Python did not
increase.

uvloop calls its callbacks where no Python code can measure them. So a process runs either on the
product's loop, or `measured` on asyncio's, with the same code of the bridge in its callbacks.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bridge.base.garbage_collection import freeze_imports, reduce_collections

#: The last argument of a process that is measured.
MEASURED = "measured"
#: Errors that are reported with the state.
MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class State:
    """Memory, descriptors and tasks of the process."""

    resident: int
    """Bytes of resident memory."""
    peak: int
    """The most bytes of resident memory so far."""
    descriptors: int
    """Open files and sockets, without the pooled connections to API servers."""
    tasks: int
    threads: int
    errors: list[str]
    """Log records at level ERROR or with a traceback, so far."""
    longest_step: float
    """CPU seconds of the longest callback of the loop since the first state; 0 if not measured."""
    longest_what: str
    """That callback, or its task."""
    longest_collection: float
    """CPU seconds of the longest garbage collection."""


class ErrorRecorder(logging.Handler):
    """Keeps errors and tracebacks."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        if (record.levelno >= logging.ERROR or record.exc_info) and len(self.errors) < MAX_ERRORS:
            self.errors.append(text)


class LoopSteps:
    """Measures every callback of asyncio's loops, those of sockets included, and the garbage
    collections of either loop, in CPU time of the thread: other processes do not count.

    Callbacks are measured without collections: asyncio's connections are garbage in cycles, which
    uvloop's are not.
    """

    def __init__(self) -> None:
        self.longest, self.what = 0.0, ""
        self.longest_collection = 0.0
        self.ignores_current = False
        """Whether the current callback does not count; set by itself."""
        self._collecting = self._collected = 0.0
        gc.callbacks.append(self._collector)

    def install(self) -> None:
        """Begins to measure callbacks."""
        run = asyncio.Handle._run  # noqa: SLF001  # every callback passes here

        def timed(handle: Any) -> None:
            self._collected = 0.0
            # None later if it cancels its own handle.
            callback = handle._callback  # noqa: SLF001
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began - self._collected
            if took > self.longest and not self.ignores_current:
                self.longest, self.what = took, repr(getattr(callback, "__self__", callback))[:300]
            self.ignores_current = False

        asyncio.Handle._run = timed  # type: ignore[assignment,method-assign]  # noqa: SLF001

    def _collector(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
            return
        took = time.thread_time() - self._collecting
        self._collected += took
        if not self.ignores_current:
            self.longest_collection = max(took, self.longest_collection)


class ProcessState:
    """The state of this process. ``pooled``: the ports of API servers to which it keeps
    connections."""

    def __init__(self, pooled: set[int], *, measured: bool) -> None:
        self._pooled = pooled
        self._recorder = ErrorRecorder()
        self._steps = LoopSteps()
        self._has_begun = False
        logging.getLogger().addHandler(self._recorder)
        self._is_measured = measured
        if measured:
            self._steps.install()

    def read(self) -> State:
        if not self._has_begun:  # what came before is the start
            self._has_begun = True
            self._steps.longest = self._steps.longest_collection = 0.0
        self._steps.ignores_current = True
        gc.collect()
        return_free_memory()
        self._steps.ignores_current = self._is_measured
        resident, peak = resident_and_peak()
        numbers = [int(file.name) for file in Path("/proc/self/fd").iterdir()]
        return State(
            resident,
            peak,
            descriptors=sum(_peer_port(number) not in self._pooled for number in numbers),
            tasks=len(asyncio.all_tasks()),
            threads=len(list(Path("/proc/self/task").iterdir())),
            errors=self._recorder.errors,
            longest_step=self._steps.longest,
            longest_what=self._steps.what,
            longest_collection=self._steps.longest_collection,
        )


def return_free_memory() -> None:
    """Returns freed memory to the system, where the C library can: allocations above it keep it
    in the process otherwise."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def resident_and_peak() -> tuple[int, int]:
    """Bytes of resident memory: now, and the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return int(status["VmRSS"].split()[0]) * 1024, int(status["VmHWM"].split()[0]) * 1024


def _peer_port(descriptor: int) -> int:
    """The port at the other end of a TCP connection; 0 for other descriptors."""
    try:
        if not Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as sock:
            peer = sock.getpeername()
    except OSError:  # closed, or not connected
        return 0
    return int(peer[1]) if isinstance(peer, tuple) else 0


def run(main: Coroutine[Any, Any, None], *, measured: bool) -> None:
    """Runs the process as the bridge does, or on asyncio's loop if it is ``measured``."""
    reduce_collections()
    freeze_imports()
    factory = asyncio.new_event_loop if measured else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def print_line(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)
