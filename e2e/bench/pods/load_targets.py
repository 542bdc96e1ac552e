"""The targets of a load: the remote itself, the minimal bridge, or the bridge.

`running` starts the process that runs home's pods, and ends it; afterwards none of its objects may
be left in the remote, or the run fails. A failed run is cleaned up, too, so that the next one finds
clean clusters.
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

from e2e import bridge_process
from e2e.bench.pods.audit_log import BRIDGE as BRIDGE_AGENT
from e2e.bench.pods.audit_log import LEAST as LEAST_AGENT
from e2e.bench.pods.audit_log import Requests
from e2e.bench.pods.benchmark_client import BenchmarkClient, connect
from e2e.bench.pods.pod_load import Crowd, PodsLost, Shape
from e2e.bench.pods.process_usage import account
from e2e.bridge_process import INSTALLED, Bridge, Program
from e2e.clusters.cluster import Cluster

DIRECT, LEAST, BRIDGE = LOAD_TARGETS = ("direct", "least", "bridge")
AGENTS = {LEAST: LEAST_AGENT, BRIDGE: BRIDGE_AGENT}
#: Seconds for caches, watches and connections to settle before and after a run.
REST = 2.0
#: Share of a core below which a process counts as idle.
AT_REST = 0.02
#: Seconds for the remote to delete a bridge's objects after home's pods are deleted.
LEFTOVER_SECONDS = 60.0
#: The value of `{home}` in the names of remote namespaces.
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
        """Counters of a target's requests to each side from now on; empty for the remote itself."""
        logs = {"home": self.home.audit_log, "remote": self.remote.audit_log}
        if (agent := AGENTS.get(way)) is None:
            return {}
        return {side: Requests(log, agent) for side, log in logs.items() if log is not None}


@dataclass(slots=True)
class Runner:
    """The process that runs home's pods, and its node."""

    pid: int
    node: str
    bridge: Bridge | None = None

    def stop(self) -> None:
        """Stops the bridge; its pods continue."""
        assert self.bridge is not None
        self.bridge.stop()

    def start(self) -> float:
        """Joins again; seconds until the bridge reports that it is registered."""
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
    """A unique name."""
    return f"{way}-{uuid.uuid4().hex[:6]}"


def remote_namespace(namespace: str) -> str:
    """The remote namespace of a home namespace."""
    return f"{namespace}-{HOME_NAME}"


@asynccontextmanager
async def running(
    way: str, pair: ClusterPair, shape: Shape, *options: str, program: Program = INSTALLED
) -> AsyncIterator[tuple[Runner | None, Crowd]]:
    """The runner (None for the remote itself), and the load, prepared but without pods.

    ``options`` are additional options of the bridge, ``program`` is its command.

    :raises PodsLost: objects are left in the remote after the pods were deleted.
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
            _least(pair, run, shape) if way == LEAST else bridge(pair, run, options, program)
        ) as runner:
            yield runner, crowd
            await _nothing_left(pair.in_remote, run, "pods")
        # Copies linger until `leave` removes them.
        await _nothing_left(pair.in_remote, run, "configmaps", "secrets")
    finally:
        await crowd.forget()


@asynccontextmanager
async def bridge(
    pair: ClusterPair, node: str, options: Sequence[str] = (), program: Program = INSTALLED
) -> AsyncIterator[Runner]:
    """A bridge with this virtual node, which leaves afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        args = ("--name", node, "--home-name", HOME_NAME, "--port", "0", *options)
        made = Bridge(pair.home, pair.remote, Path(folder, "log"), args)
        made.use(program)
        try:
            # In a thread, since it blocks and watches of this process must continue.
            await asyncio.to_thread(made.start)
            assert made.process is not None
            yield Runner(made.process.pid, node, made)
            made.stop()
        finally:
            made.kill()
            await asyncio.to_thread(_leave, pair, node)


def _leave(pair: ClusterPair, node: str) -> None:
    """Removes the node and its lingering namespaces and copies in the remote."""
    bridge_process.run(
        *("leave", node, "--yes", "--force", "--kubeconfig", pair.remote.kubeconfig),
        home=pair.home,
    )


@asynccontextmanager
async def _least(pair: ClusterPair, node: str, shape: Shape) -> AsyncIterator[Runner]:
    await pair.at_home.call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    # The minimal bridge creates no namespace and copies nothing.
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
            raise PodsLost("the minimal bridge did not start")
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


async def idle(runner: Runner | None) -> None:
    """Waits until the process has finished deferred work and is idle for a while."""
    await asyncio.sleep(REST)
    while True:
        before = account(runner.pid).cpu if runner else 0.0
        await asyncio.sleep(REST)
        if runner is None or account(runner.pid).cpu - before < AT_REST * REST:
            return


async def _nothing_left(remote: BenchmarkClient, node: str, *kinds: str) -> None:
    """Waits until none of these resources is left of the node. Raises PodsLost."""
    for kind in kinds:
        for label in (f"cluster-bridge.io/node={node}", f"least={node}"):
            for _ in range(int(LEFTOVER_SECONDS)):
                found = await remote.call("GET", f"/api/v1/{kind}", query={"labelSelector": label})
                if not found["items"]:
                    break
                await asyncio.sleep(1)
            else:
                raise PodsLost(f"{len(found['items'])} {kind} are left in the remote ({label})")
