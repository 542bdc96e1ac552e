"""The bridge is killed or terminated at random moments, or killed at writes of volumes, or is
suspended."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from e2e.bridge_process import BridgeFailed
from e2e.faults.bad_responses import NothingMet
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, JoinMode
from e2e.faults.faulty_proxy import Harm, Proxy, Rule

#: Maximum seconds before a kill: about as long as the bridge works on a step of the load.
_MOMENT = 1.5
#: Seconds of a start in which a kill is interesting.
_STARTING = 2.5
#: Number of killed starts in a row.
_ROW = 4
#: Seconds in which the load causes a write of a volume; and of the hold that the kill ends.
_MET_SECONDS, _HELD_SECONDS = 60.0, 30.0
#: The paths of PVCs and PersistentVolumes.
VOLUMES = r"/persistentvolume(claim)?s(/|$)"


@contextmanager
def _killed(stage: Stage) -> Iterator[None]:
    _at_a_random_moment(stage)
    stage.bridge.kill()
    yield
    stage.bridge.start()


@contextmanager
def _terminated(stage: Stage) -> Iterator[None]:
    _at_a_random_moment(stage)
    status = stage.bridge.stop(signal.SIGTERM)
    if status != 0:
        raise BridgeFailed(f"SIGTERM: the bridge ended with {status}, not 0")
    yield
    stage.bridge.start()


@contextmanager
def _killed_at_the_start(stage: Stage) -> Iterator[None]:
    stage.bridge.kill()
    for _ in range(_ROW):
        stage.bridge.launch()
        time.sleep(stage.random.uniform(0.0, _STARTING))
        stage.require_bridge()
        stage.bridge.kill()
        stage.load.step()
    yield
    stage.bridge.start()


@contextmanager
def _terminated_at_the_start(stage: Stage) -> Iterator[None]:
    stage.bridge.kill()
    for _ in range(_ROW):
        stage.bridge.launch()
        time.sleep(stage.random.uniform(0.0, _STARTING))
        # Before its handler is installed, the signal ends the process like any other: any status is
        # fine.
        stage.bridge.stop(signal.SIGTERM)
        stage.load.step()
    yield
    stage.bridge.start()


@contextmanager
def _frozen(stage: Stage) -> Iterator[None]:
    process = stage.bridge.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@contextmanager
def _gone_at_home(stage: Stage) -> Iterator[None]:
    """Kills the bridge and force-deletes pods, of which home then has no record."""
    stage.bridge.kill()
    bridged = stage.bridged
    names = [pod["metadata"]["name"] for pod in bridged.home_pods()]
    free = [name for name in names if not name.startswith("witness-")]
    picked = stage.random.sample(free, k=max(1, len(free) // 2)) if free else []
    if picked:
        bridged.kubectl("delete", "pod", *picked, "--grace-period=0", "--force", check=False)
    yield
    stage.bridge.start()


@contextmanager
def held_writes(*proxies: Proxy, harm: Harm, chance: float = 1.0) -> Iterator[None]:
    """Holds writes of volumes: before they reach an API server (`Harm.DELAY`), or their responses
    (`Harm.HOLD`). `Proxy.hits` counts them."""
    writes = frozenset({"POST", "PUT", "PATCH", "DELETE"})
    seconds = (_HELD_SECONDS, _HELD_SECONDS)
    for proxy in proxies:
        proxy.rules = (Rule(harm, chance, writes, seconds=seconds, path=VOLUMES),)
    try:
        yield
    finally:
        for proxy in proxies:
            proxy.rules = ()


@contextmanager
def _killed_at_a_write(stage: Stage) -> Iterator[None]:
    proxies = (stage.home_proxy, stage.remote_proxy)
    before = sum(proxy.hits for proxy in proxies)

    def met() -> bool:
        return sum(proxy.hits for proxy in proxies) > before

    harm = stage.random.choice((Harm.DELAY, Harm.HOLD))
    with ExitStack() as held:
        # First of some writes, so that later ones of a sequence are met too; then of any.
        for chance in (stage.random.uniform(0.1, 1.0), 1.0):
            if not met():
                held.enter_context(held_writes(*proxies, harm=harm, chance=chance))
                stage.work(_MET_SECONDS, until=met)
        if not met():
            raise NothingMet("no write of a volume met the kill")
        stage.require_bridge()
        stage.bridge.kill()
    yield
    stage.bridge.start()


def _at_a_random_moment(stage: Stage) -> None:
    for _ in range(stage.random.randint(1, 2)):
        stage.load.step()
    time.sleep(stage.random.uniform(0.0, _MOMENT))
    stage.require_bridge()


FAULTS = (
    Fault(
        "bridge: kill -9",
        "the process is killed, a moment after something was asked of it",
        "it is started again",
        _killed,
        seconds=(0.0, 3.0),
        times=4,
        trials=5,
        short=True,
    ),
    Fault(
        "bridge: SIGTERM",
        "the process is asked to end, a moment after something was asked of it",
        "it is started again",
        _terminated,
        seconds=(0.0, 3.0),
        times=4,
        trials=4,
        short=True,
    ),
    Fault(
        "bridge: kill -9 as it starts",
        f"{_ROW} starts in a row are killed, each at another moment",
        "the next one is left alone",
        _killed_at_the_start,
        seconds=(0.0, 1.0),
        trials=3,
        counts=_ROW,
        short=True,
    ),
    Fault(
        "bridge: SIGTERM as it starts",
        f"{_ROW} starts in a row are asked to end, each at another moment",
        "the next one is left alone",
        _terminated_at_the_start,
        seconds=(0.0, 1.0),
        trials=2,
        counts=_ROW,
    ),
    Fault(
        "bridge: kill -9 at a write of a volume",
        "the process is killed while it waits for the response to a write of a PVC or "
        "PersistentVolume, which was done or not",
        "it is started again",
        _killed_at_a_write,
        seconds=(0.0, 2.0),
        times=4,
        trials=3,
        join=JoinMode.PROXY,
    ),
    Fault(
        "bridge: stands still",
        "the process is stopped for a few seconds (SIGSTOP), as with its machine",
        "it goes on (SIGCONT)",
        _frozen,
        seconds=(3.0, 8.0),
    ),
    Fault(
        "bridge: stands still for long",
        "the process is stopped until its Lease is over and its connections are given up",
        "it goes on",
        _frozen,
        seconds=(65.0, 75.0),
    ),
    Fault(
        "bridge: away, and home's pods are force-deleted",
        "the process is killed, and half of home's pods are removed without a word",
        "it is started again",
        _gone_at_home,
        seconds=(1.0, 4.0),
        trials=2,
        short=True,
    ),
)
