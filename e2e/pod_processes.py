"""Finds the processes of a pod's containers on this machine, even of an image without a shell."""

from __future__ import annotations

import contextlib
from pathlib import Path

from e2e.kubectl import Json


def processes(pod: Json) -> list[int]:
    """The process IDs. No other pod on this machine may have the pod's name."""
    host = f"HOSTNAME={pod['metadata']['name']}".encode()
    found = []
    for process in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):
            if host in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found
