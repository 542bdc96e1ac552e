"""Runs the programs of the release: from this Python environment, or else from the path."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess

from e2e.clusters.errors import ClusterError
from e2e.clusters.run_command import run
from e2e.release.errors import ReleaseError


def run_tool(
    argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, check: bool = True
) -> CompletedProcess[str]:
    """Runs a program to its end, with ``env`` added to the environment.

    :raises ReleaseError: no such program, or it failed; with the end of its standard error.
    """
    program = Path(sys.executable).parent / str(argv[0])
    try:
        return run([program if program.is_file() else argv[0], *argv[1:]], env=env, check=check)
    except ClusterError as error:
        raise ReleaseError(str(error)) from error
