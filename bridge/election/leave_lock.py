"""`bridge leave` among the bridges of a node: it takes their lease, so that none of them writes.

- `served_by` finds out whether one of them serves the node: by seeing it renew the lease, not by
  anybody's wall clock. That takes a moment, and `LEASE_SECONDS` where it has crashed just now.
- `taken` holds the lease while its block runs, with a mark by which those bridges know that the
  node goes: each ends and says so. The block begins when whoever held the lease can write no more.
  After it the lease is deleted; where the block fails it is given back, so that the next leave, or
  join, need not wait.
- A bridge that is cut off from home all that while knows nothing of it. It writes nothing either,
  but makes the node again when home is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.election import election_record
from bridge.election.election_record import Candidate, ElectionRecord
from bridge.node.lease import LEASE_NAMESPACE
from sync.kube.client import KubeClient
from sync.kube.errors import Conflict, KubeError, NotFound
from sync.kube.resources import LEASES
from sync.kube.write_fence import clock
from translators.objects import Object

log = logging.getLogger(__name__)

#: Seconds between looks at a lease that somebody may renew.
LOOK_SECONDS = 0.3
#: Attempts to take a lease that its holder renews.
ATTEMPTS = 10


async def find_serving_bridge(home: KubeClient, node: str) -> str | None:
    """Who serves the node, "" where nobody does; None where no bridge has had such a lease. Raises
    KubeError."""
    record = await _get(home, node)
    if record is None:
        return None
    seen = election_record.observe(None, record, candidate="", now=clock(), node_exists=True)
    while clock() < seen.free_at:
        await asyncio.sleep(LOOK_SECONDS)
        now = await _get(home, node)
        if now is None or not now.holder:
            return ""
        if (now.uid, now.version) != (record.uid, record.version):
            return now.holder_name
    return ""


@asynccontextmanager
async def hold_lease_for_leave(
    home: KubeClient, node: str, *, notify: Callable[[str], None]
) -> AsyncIterator[None]:
    """The lease is ours while the block runs; where there is none, nothing is done. Raises
    KubeError."""
    me = Candidate.local()
    mine = await _take(home, node, me, notify)
    if mine is None:
        yield
        return
    lease = _Lease(home, node, me, mine)
    keeping = asyncio.create_task(lease.keep(), name="election-left")
    try:
        yield
    except BaseException:
        await _ended(keeping)
        await lease.give_back()
        raise
    await _ended(keeping)
    await home.delete(LEASES, lease.name, namespace=LEASE_NAMESPACE, uid=mine.uid)


async def _take(
    home: KubeClient, node: str, me: Candidate, told: Callable[[str], None]
) -> ElectionRecord | None:
    """The lease, which is ours from now on, once its holder can write no more."""
    for attempt in range(1, ATTEMPTS + 1):
        record = await _get(home, node)
        if record is None:
            return None
        try:
            mine = await _patch(home, node, election_record.leave_patch(record, me))
        except (Conflict, NotFound):
            if attempt == ATTEMPTS:
                raise
            continue
        if record.holder:
            told(
                f"home: the bridge of {record.holder_name} has lost the lease of node "
                f"{node}, and ends"
            )
            await asyncio.sleep(election_record.LEASE_SECONDS)
        return mine
    raise AssertionError("there is a first attempt")


class _Lease:
    """One that is held by this leave."""

    def __init__(self, home: KubeClient, node: str, me: Candidate, mine: ElectionRecord) -> None:
        self.name = election_record.election_lease_name(node)
        self._home = home
        self._node = node
        self._me = me
        self._mine = mine

    async def keep(self) -> None:
        """Renews it until cancelled. What fails is tried again: a leave goes on without."""
        while True:
            await asyncio.sleep(election_record.RENEW_SECONDS)
            try:
                self._mine = await _patch(
                    self._home, self._node, election_record.leave_patch(self._mine, self._me)
                )
            except KubeError as error:
                log.info("the lease of the election was not renewed: %s", error)

    async def give_back(self) -> None:
        """It is nobody's. Best effort."""
        with contextlib.suppress(KubeError):
            await _patch(self._home, self._node, election_record.release_patch(self._mine))


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _get(home: KubeClient, node: str) -> ElectionRecord | None:
    try:
        return election_record.parse_lease(
            await home.get(
                LEASES, election_record.election_lease_name(node), namespace=LEASE_NAMESPACE
            )
        )
    except NotFound:
        return None


async def _patch(home: KubeClient, node: str, patch: Object) -> ElectionRecord:
    name = election_record.election_lease_name(node)
    return election_record.parse_lease(
        await home.patch(LEASES, name, patch, namespace=LEASE_NAMESPACE)
    )
