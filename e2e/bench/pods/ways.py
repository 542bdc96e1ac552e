"""Who runs a load: the remote itself, the least bridge, or the bridge.

`running` starts who is to run home's pods, in a process of its own, and ends it; what it made in
the remote must be gone then, or the run is an error.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

from e2e.bench.pods.api import Api, connect
from e2e.bench.pods.load import Crowd, Lost, Shape
from e2e.bridge import Bridge
from e2e.clusters.model import Cluster

DIRECT, LEAST, BRIDGE = WAYS = ("direct", "least", "bridge")
#: Seconds for caches, watches and connections to come to rest before and after a run.
REST = 2.0
#: How long the remote may need to lose what a bridge made, after home's pods are gone.
LEFTOVER_SECONDS = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both clusters, and clients of their API servers."""

    home: Cluster
    remote: Cluster
    at_home: Api
    in_remote: Api


@dataclass(slots=True)
class Runner:
    """Who runs the pods of home: a process, and the node that it serves."""

    pid: int
    node: str
    bridge: Bridge | None = None

    def restart(self) -> float:
        """Ends the bridge and joins again; seconds until it says that it has joined."""
        assert self.bridge is not None
        self.bridge.stop()
        begin = time.perf_counter()
        self.bridge.start()
        assert self.bridge.process is not None
        self.pid = self.bridge.process.pid
        return time.perf_counter() - begin


@asynccontextmanager
async def connected(clusters: dict[str, Cluster]) -> AsyncIterator[Pair]:
    """Clients of both clusters."""
    home, remote = clusters["home"], clusters["remote"]
    async with connect(home.kubeconfig) as at_home, connect(remote.kubeconfig) as in_remote:
        yield Pair(home, remote, at_home, in_remote)


def name(way: str) -> str:
    """A name that no other run has."""
    return f"{way}-{uuid.uuid4().hex[:6]}"


@asynccontextmanager
async def running(way: str, pair: Pair, shape: Shape) -> AsyncIterator[tuple[Runner | None, Crowd]]:
    """Who runs the pods, None for the remote itself, and the pods; prepared, and not made yet."""
    run = name(way)
    if way == DIRECT:
        crowd = Crowd(pair.in_remote, run, shape)
        await crowd.prepare()
        yield None, crowd
        await crowd.clear()
        return
    crowd = Crowd(pair.at_home, run, shape, node=run)
    await crowd.prepare()
    async with _least(pair, run, shape) if way == LEAST else _bridge(pair, run) as runner:
        yield runner, crowd
        await _nothing_left(pair.in_remote, run)
    await pair.at_home.call("DELETE", f"/api/v1/nodes/{run}")
    await crowd.clear()


@asynccontextmanager
async def _bridge(pair: Pair, node: str) -> AsyncIterator[Runner]:
    with tempfile.TemporaryDirectory() as folder:
        args = ("--name", node, "--home-name", "bench", "--port", "0")
        bridge = Bridge(pair.home, pair.remote, Path(folder, "log"), args)
        bridge.start()
        assert bridge.process is not None
        try:
            yield Runner(bridge.process.pid, node, bridge)
        finally:
            bridge.stop()


@asynccontextmanager
async def _least(pair: Pair, node: str, shape: Shape) -> AsyncIterator[Runner]:
    await pair.at_home.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    # The least bridge makes no namespace, and copies nothing.
    twin = Crowd(pair.in_remote, node, shape)
    await twin.prepare()
    try:
        with _process(pair, node, twin.namespaces[0]) as pid:
            yield Runner(pid, node)
    finally:
        await twin.clear()


@contextmanager
def _process(pair: Pair, node: str, namespace: str) -> Iterator[int]:
    files = (pair.home.kubeconfig, pair.remote.kubeconfig)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "e2e.bench.pods.least",
        *files,
        node,
        namespace,
    ]
    with Popen(command, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise Lost("the least bridge did not start")
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


async def _nothing_left(remote: Api, node: str) -> None:
    for label in (f"cluster-bridge.io/node={node}", f"least={node}"):
        for _ in range(int(LEFTOVER_SECONDS)):
            pods = await remote.call("GET", "/api/v1/pods", query={"labelSelector": label})
            if not pods["items"]:
                break
            await asyncio.sleep(1)
        else:
            raise Lost(f"{len(pods['items'])} pods are left in the remote ({label})")
