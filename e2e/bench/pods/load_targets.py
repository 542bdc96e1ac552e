"""Who runs a load: the remote itself, the least bridge, or the bridge.

`running` starts who is to run home's pods, in a process of its own, and ends it; what it made in
the remote must be gone then, or the run is an error. A run that fails is cleaned up after as well,
so that the next one finds clusters with nothing of it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

from e2e import bridge_process as bridge_command
from e2e.bench.pods.audit_log import BRIDGE as BRIDGE_AGENT
from e2e.bench.pods.audit_log import LEAST as LEAST_AGENT
from e2e.bench.pods.audit_log import Requests
from e2e.bench.pods.benchmark_client import BenchmarkClient, connect
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bridge_process import Bridge
from e2e.clusters.cluster import Cluster

DIRECT, LEAST, BRIDGE = WAYS = ("direct", "least", "bridge")
AGENTS = {LEAST: LEAST_AGENT, BRIDGE: BRIDGE_AGENT}
#: Seconds for caches, watches and connections to come to rest before and after a run.
REST = 2.0
#: How long the remote may need to lose what a bridge made, after home's pods are gone.
LEFTOVER_SECONDS = 60.0
#: What a bridge's `{home}` stands for in the names of remote namespaces.
HOME_NAME = "bench"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ClusterPair:
    """Both clusters, and clients of their API servers."""

    home: Cluster
    remote: Cluster
    at_home: BenchmarkClient
    in_remote: BenchmarkClient

    def requests(self, way: str) -> dict[str, Requests]:
        """Counts of what one way asks from now on, of each side; of none for the remote itself."""
        logs = {"home": self.home.audit_log, "remote": self.remote.audit_log}
        if (agent := AGENTS.get(way)) is None:
            return {}
        return {side: Requests(log, agent) for side, log in logs.items() if log is not None}


@dataclass(slots=True)
class Runner:
    """Who runs the pods of home: a process, and the node that it serves."""

    pid: int
    node: str
    bridge: Bridge | None = None

    def stop(self) -> None:
        """Ends the bridge; what it runs goes on."""
        assert self.bridge is not None
        self.bridge.stop()

    def start(self) -> float:
        """Joins again; seconds until the bridge says that it has joined."""
        assert self.bridge is not None
        begin = time.perf_counter()
        self.bridge.start()
        assert self.bridge.process is not None
        self.pid = self.bridge.process.pid
        return time.perf_counter() - begin


@asynccontextmanager
async def connected(clusters: dict[str, Cluster]) -> AsyncIterator[ClusterPair]:
    """Clients of both clusters."""
    home, remote = clusters["home"], clusters["remote"]
    async with connect(home.kubeconfig) as at_home, connect(remote.kubeconfig) as in_remote:
        yield ClusterPair(home, remote, at_home, in_remote)


def name(way: str) -> str:
    """A name that no other run has."""
    return f"{way}-{uuid.uuid4().hex[:6]}"


def remote_namespace(namespace: str) -> str:
    """Where the bridge has the pods of one of home's namespaces."""
    return f"{namespace}-{HOME_NAME}"


@asynccontextmanager
async def running(
    way: str, pair: ClusterPair, shape: Shape, *options: str
) -> AsyncIterator[tuple[Runner | None, Crowd]]:
    """Who runs the pods, None for the remote itself, and the pods; prepared, and not made yet.

    ``options`` are the bridge's, beside those that it always has.

    :raises Lost: something of it is left in the remote, although the pods were deleted.
    """
    run = name(way)
    if way == DIRECT:
        crowd = Crowd(pair.in_remote, run, shape)
        try:
            await crowd.prepare()
            yield None, crowd
        finally:
            await crowd.forget()
        return
    crowd = Crowd(pair.at_home, run, shape, node=run)
    try:
        await crowd.prepare()
        async with (
            _least(pair, run, shape) if way == LEAST else _bridge(pair, run, options)
        ) as runner:
            yield runner, crowd
            await _nothing_left(pair.in_remote, run, "pods")
        # Copies linger; leaving has removed them.
        await _nothing_left(pair.in_remote, run, "configmaps", "secrets")
    finally:
        await crowd.forget()


@asynccontextmanager
async def _bridge(pair: ClusterPair, node: str, options: Sequence[str]) -> AsyncIterator[Runner]:
    with tempfile.TemporaryDirectory() as folder:
        args = ("--name", node, "--home-name", HOME_NAME, "--port", "0", *options)
        bridge = Bridge(pair.home, pair.remote, Path(folder, "log"), args)
        try:
            # In a thread: it waits, and the watches of this process go on meanwhile.
            await asyncio.to_thread(bridge.start)
            assert bridge.process is not None
            yield Runner(bridge.process.pid, node, bridge)
            bridge.stop()
        finally:
            bridge.kill()
            await asyncio.to_thread(_leave, pair, node)


def _leave(pair: ClusterPair, node: str) -> None:
    """Removes the node, and what lingers of it in the remote: namespaces, and copies in them."""
    bridge_command.run(
        *("leave", "--name", node, "--yes", "--force", "--kubeconfig", pair.remote.kubeconfig),
        home=pair.home,
    )


@asynccontextmanager
async def _least(pair: ClusterPair, node: str, shape: Shape) -> AsyncIterator[Runner]:
    await pair.at_home.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    # The least bridge makes no namespace, and copies nothing.
    twin = Crowd(pair.in_remote, node, shape)
    try:
        await twin.prepare()
        with _process(pair, node, twin.namespaces[0]) as pid:
            yield Runner(pid, node)
    finally:
        await twin.forget()
        await pair.at_home.call("DELETE", f"/api/v1/nodes/{node}")


@contextmanager
def _process(pair: ClusterPair, node: str, namespace: str) -> Iterator[int]:
    files = (pair.home.kubeconfig, pair.remote.kubeconfig)
    command: list[str | Path] = [
        *(sys.executable, "-m", "e2e.bench.pods.minimal_bridge"),
        *(*files, node, namespace),
    ]
    with Popen(command, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise PodsLost("the least bridge did not start")
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


async def _nothing_left(remote: BenchmarkClient, node: str, *kinds: str) -> None:
    """Waits until none of these kinds is left of this node's. Raises Lost."""
    for kind in kinds:
        for label in (f"cluster-bridge.io/node={node}", f"least={node}"):
            for _ in range(int(LEFTOVER_SECONDS)):
                found = await remote.call("GET", f"/api/v1/{kind}", query={"labelSelector": label})
                if not found["items"]:
                    break
                await asyncio.sleep(1)
            else:
                raise PodsLost(f"{len(found['items'])} {kind} are left in the remote ({label})")
