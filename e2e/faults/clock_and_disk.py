"""Faults of the bridge's machine: its clock and its disk."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, JoinMode

_HOUR = 3600.0
_CHUNK = 4096


@contextmanager
def _stepped(stage: Stage, *, ahead: float) -> Iterator[None]:
    """Steps the clock while the bridge runs, and restarts the bridge before the clock is right."""
    stage.clock.put(ahead)
    try:
        stage.work(stage.random.uniform(8.0, 14.0))  # long enough for a renewal of the Lease
        stage.bridge.stop()
        stage.bridge.start()
        yield
    finally:
        stage.clock.put(0.0)


@contextmanager
def _jumping(stage: Stage) -> Iterator[None]:
    try:
        for _ in range(8):
            stage.clock.put(stage.random.uniform(-300.0, 300.0))
            stage.work(stage.random.uniform(0.5, 2.0))
        yield
    finally:
        stage.clock.put(0.0)


@contextmanager
def _full(stage: Stage) -> Iterator[None]:
    """Fills the disk of the bridge's log, certificate and temporary files."""
    ballast = stage.disk / "ballast"
    fill(ballast)
    try:
        stage.work(stage.random.uniform(2.0, 4.0))
        _approve(stage)  # the certificate that is now issued cannot be stored
        yield
    finally:
        ballast.unlink(missing_ok=True)


def fill(file: Path) -> int:
    """Writes until the disk is full to the last byte; returns the number of bytes."""
    size = 0
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while True:
            size += out.write(bytes(_CHUNK))
    return size


def _approve(stage: Stage) -> None:
    found = stage.home.kubectl("get", "certificatesigningrequests", "-o", "name").stdout.split()
    for name in found:
        if stage.bridged.node in name:
            args = ("certificate", "approve", name.rpartition("/")[2])
            stage.home.kubectl(*args, check=False)


FAULTS = (
    *(
        Fault(
            f"clock: {abs(hours):.0f} h {'ahead' if hours > 0 else 'behind'}",
            "the bridge's wall clock steps while it runs, and it is restarted meanwhile",
            "the clock steps back",
            partial(_stepped, ahead=hours * _HOUR),
            join=JoinMode.CLOCK,
            seconds=(3.0, 6.0),
        )
        for hours in (2.0, -2.0)
    ),
    Fault(
        "clock: jumping",
        "the bridge's wall clock steps eight times, by up to five minutes",
        "the clock steps back",
        _jumping,
        join=JoinMode.CLOCK,
        seconds=(1.0, 3.0),
        counts=8,
    ),
    Fault(
        "disk: full",
        "the disk for the bridge's log, --cert-dir and TMPDIR is full while it runs, also when "
        "its certificate is signed",
        "there is room again",
        _full,
        join=JoinMode.SMALL_DISK,
        seconds=(8.0, 15.0),
    ),
)
