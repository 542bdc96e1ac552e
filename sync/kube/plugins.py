"""Ends the credential plugins (``users[].user.exec``) that a kubeconfig's reader has started.

The `kubernetes` package starts a plugin and waits for it; where that wait is cancelled, the process
stays, as long as it hangs: after a limit of time, and after the bridge itself has ended. `watch`
has the package start its processes here, and whatever of them still runs at the end of a block of
`ended` is killed, with all that it has started.

A plugin that may ask a person stays in the terminal's group of processes, where Ctrl-C reaches it
as well; it is then killed alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any
from weakref import WeakSet

#: Seconds for a process that was killed to be gone.
REAPED = 0.5

#: Processes that are not in the terminal's group.
_OWN_GROUP: WeakSet[asyncio.subprocess.Process] = WeakSet()
_started: ContextVar[list[asyncio.subprocess.Process] | None] = ContextVar(
    "started_plugins", default=None
)


@contextlib.asynccontextmanager
async def ended() -> AsyncIterator[None]:
    """Kills what plugins of this task still run when the block ends, however it does."""
    processes: list[asyncio.subprocess.Process] = []
    token = _started.set(processes)
    try:
        yield
    finally:
        _started.reset(token)
        for process in processes:
            await _end(process)


def watch(exec_provider: ModuleType) -> None:
    """Has `kubernetes.aio.config.exec_provider` start its processes here: of `asyncio`, which it
    imports as a whole, it gets one with a `create_subprocess_exec` of ours."""
    view = ModuleType("asyncio")
    view.__dict__.update(vars(asyncio))
    view.create_subprocess_exec = _start  # type: ignore[attr-defined]
    exec_provider.asyncio = view  # type: ignore[attr-defined]


async def _start(*command: str, **options: Any) -> asyncio.subprocess.Process:
    own_group = not (sys.stdin and sys.stdin.isatty())
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, **options, start_new_session=own_group)
    )
    try:
        return await asyncio.shield(starting)
    finally:
        # Cancelled just now it has begun all the same, and may have started others.
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:
            _note(starting.result(), own_group=own_group)


def _note(process: asyncio.subprocess.Process, *, own_group: bool) -> None:
    if own_group:
        _OWN_GROUP.add(process)
    processes = _started.get()
    if processes is not None:
        processes.append(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    outputs = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    # One that has ended can have left others behind, which hold what it was to write to.
    if process.returncode is None or not all(stream.at_eof() for stream in outputs):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if process in _OWN_GROUP:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REAPED):
                await process.wait()
    # Its pipes stay open where something that it has started still holds them.
    process._transport.close()  # type: ignore[attr-defined]  # there is no other way
