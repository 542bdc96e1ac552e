"""Child processes of tests, which do not outlive the test's block."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.virtual_time_loop import poll_in_real_time


@contextmanager
def child_process(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a program, with the options of `subprocess.Popen` and pipes for text; a program that
    still runs at the end of the block, as after a timeout of the test, is killed."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def piped_command(
    *command: str | Path, **options: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Starts a program with pipes to its input and from its output. The end of the block kills it,
    with all that it has started, and closes the pipes."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, start_new_session=True, **options
    )
    try:
        yield process
    finally:
        kill_group(process)
        with contextlib.suppress(ConnectionError):
            await process.communicate()


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills a program of `piped_command` with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether the process has ended; another one may have to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def recorded_pids(path: Path) -> list[int]:
    """The process ids that a script has written; none without the file."""
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


async def wait_until_ended(pids: Sequence[int]) -> None:
    """Waits for processes of any parent. Raises TimeoutError after 20 s."""
    await poll_in_real_time(lambda: all(map(has_ended, pids)))
