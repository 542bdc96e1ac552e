"""Processes that a test runs beside the clusters, such as a controller of home.

Each has a session of its own, so that Ctrl-C in the terminal does not reach it, and appends its
output to a file. `running` ends it with the block, whatever the process does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Seconds from SIGTERM to SIGKILL.
GRACE_SECONDS = 15.0


@contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    grace: float = GRACE_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command for the block. ``env`` is added to the environment."""
    process = start(command, log, env=env)
    try:
        yield process
    finally:
        end(process, grace=grace)


def start(
    command: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts the command; the caller calls `end`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], *, grace: float = GRACE_SECONDS) -> bool:
    """Terminates a process of `start`, and kills it and its children after ``grace`` seconds.
    Returns, after its end, whether SIGTERM was enough."""
    process.terminate()
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return True
