"""A child process of a test, which does not outlive the test's block."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def child_process(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Starts a program, with the options of `subprocess.Popen` and pipes for text; a program that
    still runs at the end of the block, as after a timeout of the test, is killed."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
