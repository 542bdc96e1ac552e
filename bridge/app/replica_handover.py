"""Runs one replica of a virtual node: it stands by, serves, and hands the node over.

Each term takes these steps, again and again until cancelled:

1. The informers fill the caches and keep them current. Nothing is written: the clients of engine
   and node controller are behind a write fence (`sync.kube.leader_write_fence`), which is closed.
2. The replica stands by until it holds the node's lease (`bridge.election.elector`).
3. The fence opens, and the replica acquires the claim in the remote
   (`bridge.remote_claim.claim_keeper`). Where another home of the same identity holds the claim,
   the bridge ends before any other write.
4. The Node is registered (or, if another replica recorded another network mode on it, a term with
   that mode begins) and the controllers start. Where another replica served the node before,
   they start once the caches have that replica's last writes.
5. While the lease cannot be renewed, the fence is closed and all else continues; while the claim
   cannot be renewed, a second fence closes for the remote alone. When another replica acquires the
   lease, or is to get it because it reaches the remote and this one does not, the term ends with
   all its state, which would be stale in the next term.

At the end of a term, the node's Lease and the claim are released, and then the election's Lease,
within `RELEASE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from bridge.app.kubelet_api_setup import NodeKubelet
from bridge.election.elector import LeaderElector, LeadershipLost
from bridge.election.remote_reachability import RemoteReachability
from bridge.node.node_controller import NodeController
from bridge.remote_claim.claim_keeper import RemoteClaim
from sync.base.exception_summary import first_leaf
from sync.engine.engine import Engine
from sync.kube.api_errors import KubeError, NotLeaderError
from sync.kube.leader_write_fence import Fence
from sync.runtime.log_fields import key_fields, name_fields

changes = logging.getLogger("cluster-bridge.changes")

#: Seconds for releasing leases and claim: a stop must not hang on a cluster that does not answer.
RELEASE_SECONDS = 3.0
#: Delay in seconds before another attempt to register the Node.
REGISTER_SECONDS = 0.5


class TermOutdated(Exception):
    """Raised if another replica recorded an option other than the one that this term uses."""


@dataclass(frozen=True, slots=True)
class ReplicaTerm:
    """The parts of one term; all their writes pass its fences."""

    engine: Engine
    node: NodeController
    fence: Fence
    claim: RemoteClaim
    reachability: RemoteReachability
    before_serving: Callable[[], Awaitable[None]]
    """Reads home's own address ranges, which pods of the remote cannot have. Raises TermOutdated if
    the parts no longer fit, ClaimRejected if another home cluster of the same identity provisions
    volumes in the remote, and KubeError."""
    remove_stale_objects: Callable[[], Awaitable[None]]
    """Removes objects of a previous replica that this one would not update. Raises KubeError."""


async def run_replica(
    first: ReplicaTerm,
    next_term: Callable[[], ReplicaTerm],
    *,
    kubelet: NodeKubelet,
    election: LeaderElector,
    notify: Callable[[str], None],
) -> NoReturn:
    """Runs terms until cancelled. Raises NodeLeft, ClaimRejected, and the errors of the parts."""
    term = first
    while True:
        try:
            await _run_term(term, kubelet, election, notify)
        except* (LeadershipLost, TermOutdated) as ended:
            notify(str(first_leaf(ended)))
        term = next_term()
        kubelet.use_engine(term.engine, term.node.node)


async def _run_term(
    term: ReplicaTerm,
    kubelet: NodeKubelet,
    election: LeaderElector,
    notify: Callable[[str], None],
) -> NoReturn:
    """Runs one term. Raises LeadershipLost in a group."""
    engine, node, fence, claim = term.engine, term.node, term.fence, term.claim
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.watch(), name="engine-watch")
            group.create_task(claim.observe(), name="claim-look")
            await engine.synced()
            outdated = await election.acquire(fence, reachability=term.reachability)
            fence.on_change(lambda is_open: _on_lease_fence(term, is_open=is_open))
            renewing = election.renew_until_lost(fence, reachability=term.reachability)
            group.create_task(renewing, name="election")
            await claim.acquire()
            claim.fence.on_change(lambda is_open: _on_claim_fence(term, is_open=is_open))
            group.create_task(claim.renew_until_lost(), name="claim")
            await _register(term, retry=outdated)
            notify(f"home: node {node.name} is registered; Ctrl-C stops, workloads go on")
            kubelet.certificate_demand.node_registered.set()
            group.create_task(node.run(), name="node")
            if outdated:
                await engine.refresh()
            group.create_task(engine.work(), name="engine-work")
        raise AssertionError("a term ends with an error, or is cancelled")
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_SECONDS):
                await asyncio.gather(node.release(), claim.release())
                fence.close()
                await election.release()
        fence.close()


async def _register(term: ReplicaTerm, *, retry: bool) -> None:
    """Registers the Node, whose status then names this replica. Raises NodeTaken and
    TermOutdated.

    Without ``retry`` (no other replica has served the node, so a user waits for the result), it
    raises KubeError instead of trying again, unless an outage of home has interrupted it.
    """
    node = term.node
    while True:
        try:
            await term.before_serving()
            await term.remove_stale_objects()
            await node.register()
        except KubeError as error:
            # A failure after the fence has closed is the same outage, and no reason to end.
            retry = retry or isinstance(error, NotLeaderError)
            if not retry:
                raise
            fields = key_fields("Node", node.name, error)
            changes.warning("node %s: cannot register it yet: %s", node.name, error, extra=fields)
            await asyncio.sleep(REGISTER_SECONDS)
        else:
            return


def _on_lease_fence(term: ReplicaTerm, *, is_open: bool) -> None:
    name, fields = term.node.name, name_fields("Node", term.node.name, cluster="home")
    if is_open:
        changes.info("node %s: the lease is renewed, and work goes on", name, extra=fields)
        term.engine.retry_now()
        term.node.retry_now()
    else:
        message = "node %s: nothing is written while the lease cannot be renewed"
        changes.warning(message, name, extra=fields)


def _on_claim_fence(term: ReplicaTerm, *, is_open: bool) -> None:
    name, fields = term.node.name, name_fields("Node", term.node.name, cluster="remote")
    if is_open:
        changes.info("node %s: writes to the remote are allowed again", name, extra=fields)
        term.engine.retry_now()
    elif term.fence.is_open:
        message = "node %s: no writes to the remote until the claim there is renewed"
        changes.warning(message, name, extra=fields)
