"""The program under test: the command `bridge` of one source tree, as child processes.

The tree may be of any revision: only its command line and its requests to API servers are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e import revisions

#: Seconds for one command, or one step of a scenario.
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str


class Running:
    """A command that runs, and its output on both streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ""

    @property
    def pid(self) -> int:
        """The process id, as in the holder of its Leases."""
        return self._process.pid

    def is_asleep(self) -> bool:
        """Whether every thread of the process waits, rather than running or waiting for a CPU."""
        tasks = Path(f"/proc/{self.pid}/task")
        return all(_state(task / "stat") != "R" for task in tasks.iterdir())

    async def read(self) -> None:
        """Collects the output until the process exits."""
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(4096):
            self.output += chunk.decode(errors="replace")

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited by itself."""
        return self._process.returncode is not None


@dataclass(frozen=True, slots=True)
class Product:
    """A source tree, and the folder that is the home directory of its processes."""

    tree: Path
    folder: Path

    def version(self) -> str:
        """The version that the tree has."""
        source = (self.tree / "bridge/base/version.py").read_text(encoding="utf-8")
        line = next(line for line in source.splitlines() if line.startswith("VERSION"))
        return line.partition('"')[2].rstrip('"')

    async def run(self, *args: str, before: str = "") -> Finished:
        """Runs `bridge ARGS` to its end; ``before`` is Python code that runs first."""
        process = await self._start(*args, stderr=asyncio.subprocess.PIPE, before=before)
        async with asyncio.timeout(PATIENCE):
            stdout, stderr = await process.communicate()
        return Finished(process.returncode or 0, stdout.decode(), stderr.decode())

    @asynccontextmanager
    async def running(self, *args: str) -> AsyncIterator[Running]:
        """Runs a command while the block runs; then kills it. It need not be ready yet."""
        process = await self._start(*args, stderr=asyncio.subprocess.STDOUT)
        running = Running(process)
        reading = asyncio.create_task(running.read())
        try:
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await reading

    async def _start(self, *args: str, stderr: int, before: str = "") -> asyncio.subprocess.Process:
        program = revisions.bridge_program(self.tree, before=before)
        return await asyncio.create_subprocess_exec(
            *program.command,
            *args,
            cwd=self.folder,
            # Of the environment of this process, only the search path.
            env={
                "PATH": os.environ["PATH"],
                **program.environment,
                "HOME": str(self.folder),
                "NO_COLOR": "1",
                "COLUMNS": "200",
                "TZ": "UTC",
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
        )


def _state(stat: Path) -> str:
    try:
        return stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:  # the thread has exited
        return "S"
