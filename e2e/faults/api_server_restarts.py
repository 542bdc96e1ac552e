"""API servers that restart, lose their certificate or their watch history, or hang."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from e2e.clusters.cluster import API_SERVER, Cluster
from e2e.clusters.native import NativeControl
from e2e.clusters.native_control_plane import ETCD
from e2e.clusters.run_command import run
from e2e.faults.environment import Stage
from e2e.faults.fault_model import Fault, JoinMode

_ETCD = "http://127.0.0.1:2379/v3"


@contextmanager
def _stopped(stage: Stage, *, side: str, grace: float) -> Iterator[None]:
    """Stops the API server; requests of the load meanwhile may fail."""
    cluster = getattr(stage, side)
    stage.load.lenient = True
    cluster.stop_component(API_SERVER, grace=grace)
    try:
        yield
    finally:
        cluster.start_api_server()
        stage.load.lenient = False


@contextmanager
def _hangs(stage: Stage, *, side: str) -> Iterator[None]:
    """The server accepts connections and does not answer. The load pauses, since it would hang."""
    cluster = getattr(stage, side)
    cluster.suspend_component(API_SERVER)
    try:
        stage.sleep(stage.random.uniform(4.0, 12.0))
    finally:
        cluster.resume_component(API_SERVER)
    yield


@contextmanager
def _rolling(stage: Stage) -> Iterator[None]:
    """Restarts both API servers in turn, twice, with load in between."""
    stage.load.lenient = True
    try:
        for side in ("remote", "home", "remote", "home"):
            with _stopped(stage, side=side, grace=stage.random.choice((0.0, 10.0))):
                pass
            stage.load.lenient = True
            stage.work(stage.random.uniform(0.5, 3.0))
    finally:
        stage.load.lenient = False
    yield


@contextmanager
def _forgetful(stage: Stage, *, side: str) -> Iterator[None]:
    """The resource versions of the bridge's watches expire while it is disconnected.

    Compaction alone is not enough: an API server serves watches from its cache, which is empty
    after a restart.
    """
    cluster = getattr(stage, side)
    stage.packets.drop(cluster)
    stage.load.lenient = True
    try:
        stage.work(stage.random.uniform(2.0, 5.0))
        compact(cluster)
        cluster.stop_component(API_SERVER, grace=0)
        cluster.start_api_server()
        stage.work(1.0)
    finally:
        stage.packets.heal()
        stage.load.lenient = False
    yield


@contextmanager
def _etcd_restarts(stage: Stage, *, side: str) -> Iterator[None]:
    cluster = getattr(stage, side)
    stage.load.lenient = True
    cluster.stop_component(ETCD, grace=0)
    try:
        yield
    finally:
        cluster.start_component(ETCD)
        cluster.start_api_server()
        stage.load.lenient = False


@contextmanager
def _rotated(stage: Stage, *, side: str) -> Iterator[None]:
    """The kubeconfig has the server's new CA some seconds later, as with an administrator."""
    proxy = {"home": stage.home_proxy, "remote": stage.remote_proxy}[side]
    proxy.rotate()
    try:
        stage.work(stage.random.uniform(3.0, 8.0))
    finally:
        proxy.publish()
    yield


def compact(cluster: Cluster) -> int:
    """Compacts etcd to its current revision, and returns that."""
    control = cluster.control
    assert isinstance(control, NativeControl)
    inside = ["nsenter", f"--net={control.site.network.path}", "--"]

    def ask(path: str, body: dict[str, object]) -> dict[str, object]:
        curl = ["curl", "--silent", "--show-error", "--fail", "--data", json.dumps(body)]
        found: dict[str, object] = json.loads(run([*inside, *curl, f"{_ETCD}/{path}"]).stdout)
        return found

    header = ask("kv/range", {"key": "AA==", "limit": 1})["header"]
    assert isinstance(header, dict)
    revision = int(header["revision"])
    ask("kv/compaction", {"revision": revision, "physical": True})
    return revision


def _restart(side: str, *, how: str, grace: float, short: bool = False) -> Fault:
    return Fault(
        f"{side}: API server, {how}",
        f"the API server is ended ({how}), and is away for some seconds",
        "it is started again",
        partial(_stopped, side=side, grace=grace),
        seconds=(0.0, 6.0),
        native=True,
        short=short,
    )


FAULTS = (
    _restart("remote", how="kill -9", grace=0.0, short=True),
    _restart("home", how="kill -9", grace=0.0),
    _restart("remote", how="SIGTERM", grace=10.0),
    _restart("home", how="SIGTERM", grace=10.0, short=True),
    Fault(
        "both: API servers, one after the other",
        "each API server is restarted twice, in turn, while the bridge works",
        "they are started again",
        _rolling,
        seconds=(0.0, 1.0),
        native=True,
        counts=4,
    ),
    *(
        Fault(
            f"{side}: watches get 410",
            "while the bridge is cut off, etcd is compacted and the API server restarted, so that "
            "no watch can go on where it was",
            "the packet rules are removed",
            partial(_forgetful, side=side),
            seconds=(0.0, 1.0),
            native=True,
            packets=True,
        )
        for side in ("remote", "home")
    ),
    *(
        Fault(
            f"{side}: API server hangs",
            "the API server is stopped (SIGSTOP) for 4 to 12 s: it takes connections and answers "
            "nothing",
            "it goes on (SIGCONT)",
            partial(_hangs, side=side),
            seconds=(0.0, 1.0),
            native=True,
        )
        for side in ("remote", "home")
    ),
    *(
        Fault(
            f"{side}: CA rotated",
            "the API server's certificate is signed by a new CA and connections are cut; the "
            "kubeconfig names the new CA 3 to 8 s later",
            "by itself",
            partial(_rotated, side=side),
            seconds=(20.0, 30.0),
            join=JoinMode.PROXY,
        )
        for side in ("remote", "home")
    ),
    Fault(
        "remote: etcd, kill -9",
        "the remote's etcd is killed; its API server answers with errors",
        "it is started again",
        partial(_etcd_restarts, side="remote"),
        seconds=(1.0, 6.0),
        native=True,
    ),
)
