"""Several bridges of one node of the same home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault


@contextmanager
def _cloned_bridge(stage: Stage) -> Iterator[None]:
    """A clone of the bridge stands by, takes over when the bridge is killed, and is killed, too."""
    clone = replace(stage.bridge, log=stage.folder / "clone.log", process=None)
    clone.start(until="standing by")
    try:
        stage.work(stage.random.uniform(0.5, 2.0))
        stage.bridge.kill()
        yield
        stage.bridge.start(until="standing by")
    finally:
        clone.kill()


FAULTS = (
    Fault(
        "bridge: a clone with the same credentials",
        "a second bridge with the same options stands by, and takes over when the first is killed",
        "the clone is killed, and the first takes over",
        _cloned_bridge,
        seconds=(6.0, 10.0),
        short=True,
    ),
)
