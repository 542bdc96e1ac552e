"""Files that only this user can read, on the disk and in memory, and the directory that keeps them
across restarts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def state_directory(*parts: str) -> Path:
    """The directory of these names below ``XDG_STATE_HOME`` (XDG Base Directory Specification),
    which may not exist. Raises OSError if the user has no home directory."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise FileNotFoundError(None, "the user has no home directory", "~") from error
    return Path(state, *parts)


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


@contextlib.contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory, in no directory, which ends with the block or the process.
    Raises OSError."""
    with os.fdopen(os.memfd_create("private", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
