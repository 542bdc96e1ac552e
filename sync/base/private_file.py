"""Writes files that only this user can read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_private_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically; the new one has mode 0600 and is on the disk. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
