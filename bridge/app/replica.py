"""One of the bridges that were started for a virtual node: stands by, or serves it.

A life goes so, again and again until cancelled:

1. The caches fill, and are kept from then on. Nothing is written: the clients that the engine and
   the node have are behind a fence (`sync.kube.write_fence`), which is shut.
2. The bridge stands by until the node's lease is its own (`bridge.election.elector`).
3. Then the fence is open, and the bridge takes the claim in the remote
   (`bridge.remote_claim.claim_keeper`). Where another home of the same identity has the claim, the
   bridge ends before it writes anything else.
4. The Node is registered, and the controllers work. Where another bridge served the node until
   then, they wait until the caches have what that one did last.
5. While the lease cannot be renewed the fence is shut, and all else stays as it is. While the claim
   cannot be renewed, a second fence shuts off the remote alone. When another bridge has taken the
   lease, or is to have it since it reaches the remote and this one does not, the life ends, with
   all that it knew: that is not the state to decide by when its turn comes again.

At the end the node's Lease and the claim are given back, and then the Lease of the election, for
`RELEASE_SECONDS` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from bridge.app.node_kubelet import NodeKubelet
from bridge.election.elector import LeaderElector, LeadershipLost
from bridge.election.reachability import RemoteReachability
from bridge.node.controller import NodeController
from bridge.remote_claim.claim_keeper import RemoteClaim
from sync.base.exceptions import first_leaf
from sync.engine.engine import Engine
from sync.kube.errors import KubeError, NotLeaderError
from sync.kube.write_fence import Fence
from sync.runtime.log_fields import key_fields, name_fields

changes = logging.getLogger("cluster-bridge.changes")

#: Seconds for the last writes; a stop must not hang on a cluster that is away.
RELEASE_SECONDS = 3.0
#: Seconds until the next try to register the Node.
REGISTER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ReplicaTerm:
    """What decides and writes, from one standing by to the next; all behind one fence."""

    engine: Engine
    node: NodeController
    fence: Fence
    claim: RemoteClaim
    way: RemoteReachability
    tidy: Callable[[], Awaitable[None]]
    """Removes what a bridge of before has left that this one would not look after. May raise
    KubeError."""


async def run_replica(
    first: ReplicaTerm,
    again: Callable[[], ReplicaTerm],
    *,
    api: NodeKubelet,
    election: LeaderElector,
    report: Callable[[str], None],
) -> NoReturn:
    """Lives until cancelled, with what ``again`` makes after the first life. Raises NodeLeft,
    ClaimRefused, and what a part raises."""
    life = first
    while True:
        try:
            await _live(life, election, report)
        except* LeadershipLost as lost:
            report(str(first_leaf(lost)))
        life = again()
        api.use_engine(life.engine, life.node.node)


async def _live(
    life: ReplicaTerm, election: LeaderElector, told: Callable[[str], None]
) -> NoReturn:
    """One life. Raises Lost, in a group."""
    engine, node, fence, claim = life.engine, life.node, life.fence, life.claim
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.watch(), name="engine-watch")
            group.create_task(claim.observe(), name="claim-look")
            await engine.synced()
            outdated = await election.acquire(fence, reachability=life.way)
            fence.on_change(lambda is_open: _fence_changed(life, is_open=is_open))
            group.create_task(
                election.renew_until_lost(fence, reachability=life.way), name="election"
            )
            await claim.acquire()
            claim.fence.on_change(lambda is_open: _claim_changed(life, is_open=is_open))
            group.create_task(claim.renew_until_lost(), name="claim")
            await _register(life, alone=not outdated)
            told(f"home: node {node.name} is registered; Ctrl-C stops, workloads go on")
            group.create_task(node.run(), name="node")
            if outdated:
                await engine.refresh()
            group.create_task(engine.work(), name="engine-work")
        raise AssertionError("a life ends with an error, or is cancelled")
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await asyncio.gather(node.release(), claim.release())
                fence.close()
                await election.release()
        fence.close()


async def _register(life: ReplicaTerm, *, alone: bool) -> None:
    """Has home know the Node, which tells then what it is served by. What fails is tried again, but
    where nobody else has served the node: then a person waits, and is to be told. Raises
    NodeTaken."""
    node = life.node
    while True:
        try:
            await life.tidy()
            await node.register()
        except KubeError as error:
            if alone and not isinstance(error, NotLeaderError):
                raise
            fields = key_fields("Node", node.name, error)
            changes.warning(
                "node %s: it cannot be registered yet: %s", node.name, error, extra=fields
            )
            await asyncio.sleep(REGISTER_SECONDS)
        else:
            return


def _fence_changed(life: ReplicaTerm, *, is_open: bool) -> None:
    name, fields = life.node.name, name_fields("Node", life.node.name, cluster="home")
    if is_open:
        changes.info("node %s: the lease is renewed, and work goes on", name, extra=fields)
        life.engine.retry_now()
        life.node.retry_now()
    else:
        said = "node %s: nothing is written while the lease cannot be renewed"
        changes.warning(said, name, extra=fields)


def _claim_changed(life: ReplicaTerm, *, is_open: bool) -> None:
    name, fields = life.node.name, name_fields("Node", life.node.name, cluster="remote")
    if is_open:
        changes.info("node %s: writes to the remote are allowed again", name, extra=fields)
        life.engine.retry_now()
    elif life.fence.is_open:
        said = "node %s: the remote is not written to until the claim there is renewed"
        changes.warning(said, name, extra=fields)
