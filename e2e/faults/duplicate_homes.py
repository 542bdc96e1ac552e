"""Several bridges of one node: of the same home, or of a restored copy of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from e2e.bridge_process import REJECTED_SECONDS, Bridge, BridgeFailed
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault
from e2e.restored_home import restored, saved


@contextmanager
def _restored_home(stage: Stage) -> Iterator[None]:
    """Starts the restored home's bridge twice, while the load changes the original home."""
    data = saved(stage.home, stage.folder / f"etcd-{os.urandom(3).hex()}" / "etcd")
    stage.work(stage.random.uniform(4.0, 8.0))
    with restored(stage.home, data, stage.bridge.home) as (_, its):
        second = replace(stage.bridge, home=its, log=stage.folder / "restored.log", process=None)
        try:
            _refused(second)
            yield
            _refused(second)
        finally:
            second.kill()


def _refused(bridge: Bridge) -> None:
    bridge.launch()
    status = bridge.wait_for_exit(seconds=REJECTED_SECONDS)
    if status != 1 or "--take-over-claim" not in bridge.log.read_text():
        raise BridgeFailed(
            f"a restored home's bridge ended with {status}, not by the claim; see {bridge.log}"
        )


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
        "home: restored beside the original",
        "a copy of home as it was some seconds ago runs beside it, and a bridge with the same "
        "credentials is started there, twice",
        "the copy ends; its bridge was refused",
        _restored_home,
        seconds=(2.0, 6.0),
        native=True,
    ),
    Fault(
        "bridge: a clone with the same credentials",
        "a second bridge with the same options stands by, and takes over when the first is killed",
        "the clone is killed, and the first takes over",
        _cloned_bridge,
        seconds=(6.0, 10.0),
        short=True,
    ),
)
