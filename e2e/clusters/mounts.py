"""The mount table of this machine."""

from __future__ import annotations

from pathlib import Path

from e2e.clusters.run_command import run

MOUNTS = Path("/proc/self/mountinfo")


def unmount_below(folder: Path) -> None:
    """Unmounts everything at or below a folder, the latest mount first."""
    points = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    for point in reversed(points):
        # The kernel writes a space as \\040.
        path = Path(point.replace("\\040", " "))
        if path.is_relative_to(folder):
            run(["umount", "--lazy", path], check=False)
