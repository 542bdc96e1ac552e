"""Faults of the network between the bridge and one or both API servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from e2e.clusters.cluster import Cluster
from e2e.faults.bridge_network_namespace import BridgeNetwork
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, Strike

#: Starts a fault of the connection to one cluster.
Break = Callable[[BridgeNetwork, Cluster], None]

#: The bridge detects a dead peer after 25 s and reports an outage 15 s later; a Lease lasts 40 s,
#: and home's controller-manager waits 50 s for a node.
_SHORT, _LONG = (3.0, 9.0), (65.0, 75.0)


@contextmanager
def _broken(stage: Stage, *, sides: Sequence[str], what: Break) -> Iterator[None]:
    for side in sides:
        what(stage.packets, getattr(stage, side))
    try:
        yield
    finally:
        stage.packets.heal()


def _silent(line: BridgeNetwork, cluster: Cluster) -> None:
    line.drop(cluster)


def _unheard(line: BridgeNetwork, cluster: Cluster) -> None:
    line.drop(cluster, received=False)


def _deaf(line: BridgeNetwork, cluster: Cluster) -> None:
    line.drop(cluster, sent=False)


def _lossy(line: BridgeNetwork, cluster: Cluster) -> None:
    line.lose(cluster, 0.15)


def _on(side: str, what: Break) -> Strike:
    return partial(_broken, sides=(side,), what=what)


@contextmanager
def _connections_end(stage: Stage) -> Iterator[None]:
    """Resets every connection, several times, while new ones are opened."""
    for cluster in (stage.home, stage.remote, stage.home, stage.remote):
        stage.packets.end_connections(cluster)
        stage.work(stage.random.uniform(0.2, 1.5))
    stage.require_bridge()
    yield


@contextmanager
def _narrow(stage: Stage) -> Iterator[None]:
    stage.packets.slow(96)
    try:
        yield
    finally:
        stage.packets.heal()


@contextmanager
def _flapping(stage: Stage) -> Iterator[None]:
    for _ in range(6):
        side = stage.random.choice((stage.home, stage.remote))
        what = stage.random.choice((_silent, _unheard, _deaf, BridgeNetwork.reset))
        what(stage.packets, side)
        stage.work(stage.random.uniform(0.2, 2.0))
        stage.packets.heal()
        stage.work(stage.random.uniform(0.2, 1.0))
    yield


def _each_side(
    name: str, effect: str, what: Break, seconds: tuple[float, float], *, short: bool = False
) -> tuple[Fault, Fault]:
    """The fault on the remote's side, and on home's."""
    remote, home = (
        Fault(
            f"{side}: {name}",
            f"{effect}, for {seconds[0]:.0f} to {seconds[1]:.0f} s",
            "the packet rules are removed",
            _on(side, what),
            seconds=seconds,
            packets=True,
            short=short,
        )
        for side in ("remote", "home")
    )
    return remote, home


_LOST = "what the bridge and the API server send each other is dropped without a word"
_UNHEARD = "what the bridge sends is dropped, and what it is sent arrives"
_DEAF = "what the bridge is sent is dropped, and what it sends arrives"
_RESET = "every packet is answered with a reset"

FAULTS = (
    *_each_side("cut", _LOST, _silent, _SHORT, short=True),
    *_each_side("cut for long", _LOST, _silent, _LONG),
    *_each_side("cut one way, out", _UNHEARD, _unheard, _SHORT),
    *_each_side("cut one way, in", _DEAF, _deaf, _SHORT),
    Fault(
        "remote: cut one way for long, in",
        f"{_DEAF}, for {_LONG[0]:.0f} to {_LONG[1]:.0f} s",
        "the packet rules are removed",
        _on("remote", _deaf),
        seconds=_LONG,
        packets=True,
    ),
    *_each_side("resets", _RESET, BridgeNetwork.reset, _SHORT),
    *_each_side("losses", "15 of 100 packets are lost, each way", _lossy, (8.0, 15.0)),
    Fault(
        "both: connections end",
        "every connection is reset, twice with each API server, while the bridge works",
        "by itself",
        _connections_end,
        seconds=(0.0, 1.0),
        packets=True,
        short=True,
    ),
    Fault(
        "both: cut",
        f"{_LOST}, with both API servers",
        "the packet rules are removed",
        partial(_broken, sides=("home", "remote"), what=_silent),
        seconds=_SHORT,
        packets=True,
    ),
    Fault(
        "both: flapping",
        "six cuts of all kinds, of either side, each for a second or two",
        "the packet rules are removed",
        _flapping,
        seconds=(0.0, 1.0),
        packets=True,
    ),
    Fault(
        "both: a narrow line",
        "the bridge can send 96 kbit/s, and packets queue for up to 2 s",
        "the queue is removed",
        _narrow,
        seconds=(8.0, 15.0),
        packets=True,
    ),
)
