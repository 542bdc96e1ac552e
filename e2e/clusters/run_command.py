"""Runs a program to its end.

`run` raises `CommandFailed` with the command and the end of its standard error; it uses no shell,
so no argument needs quoting.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.clusters.errors import CommandFailed, MissingTool

# Enough lines of an error to show its cause, few enough for a terminal.
ERROR_LINES = 20


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    input: str | None = None,  # noqa: A002 - as in subprocess.run
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `argv` and returns its output as text; `env` is added to the environment.

    :raises CommandFailed: it ended with an error and `check` is set, or it timed out.
    :raises MissingTool: there is no such program.
    """
    command = [str(part) for part in argv]
    try:
        done = subprocess.run(
            command,
            check=False,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **env} if env else None,
        )
    except FileNotFoundError as error:
        raise MissingTool(f"{command[0]} is not installed", where=shlex.join(command)) from error
    except subprocess.TimeoutExpired as error:
        raise CommandFailed(
            f"{command[0]} did not end within {timeout:g} s", where=shlex.join(command)
        ) from error
    if check and done.returncode != 0:
        raise CommandFailed(
            f"{command[0]} ended with {done.returncode}: {last_lines(done.stderr or done.stdout)}",
            where=shlex.join(command),
        )
    return done


def last_lines(text: str, count: int = ERROR_LINES) -> str:
    """The last `count` lines of `text`."""
    return "\n".join(text.strip().splitlines()[-count:])
