"""How commands use the election of a node: find its serving bridge, and hold its Lease for a leave.

- `find_serving_bridge` watches for a renewal of the Lease, and compares no clocks. That takes a
  moment, or `LEASE_SECONDS` after a crash.
- `hold_lease_for_leave` holds the Lease while its block runs, marked so that the node's bridges
  exit with `NodeLeft`. The block starts when the previous holder can no longer write. Afterwards
  the Lease is deleted; if the block fails it is released, so that the next leave or join need not
  wait.
- A bridge that is cut off from home during all this does not notice, and does not write either. It
  creates the node again when home is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.election import election_lease
from bridge.election.election_lease import Candidate, ElectionRecord
from bridge.node.node_lease import LEASE_NAMESPACE
from sync.kube.api_errors import Conflict, KubeError, NotFound
from sync.kube.client import KubeClient
from sync.kube.resources import LEASES
from sync.kube.write_fence import clock
from translators.objects import Object

log = logging.getLogger(__name__)

#: Seconds between two reads of a Lease that may be renewed.
POLL_SECONDS = 0.3
#: Attempts to take a Lease that its holder renews.
ATTEMPTS = 10


async def find_serving_bridge(home: KubeClient, node: str) -> str | None:
    """The display name of the bridge that serves the node, "" for none; None where the node never
    had an election. Raises KubeError."""
    record = await _get(home, node)
    if record is None:
        return None
    seen = election_lease.observe(None, record, candidate="", now=clock(), node_exists=True)
    while clock() < seen.free_at:
        await asyncio.sleep(POLL_SECONDS)
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
    """Holds the Lease while the block runs; without a Lease it does nothing. Raises KubeError."""
    candidate = Candidate.local()
    held = await _acquire(home, node, candidate, notify)
    if held is None:
        yield
        return
    lease = _HeldLease(home, node, candidate, held)
    renewal = asyncio.create_task(lease.renew_until_cancelled(), name="election-left")
    try:
        yield
    except BaseException:
        await _cancel(renewal)
        await lease.release()
        raise
    await _cancel(renewal)
    await home.delete(LEASES, lease.name, namespace=LEASE_NAMESPACE, uid=held.uid)


async def _acquire(
    home: KubeClient, node: str, candidate: Candidate, notify: Callable[[str], None]
) -> ElectionRecord | None:
    """The Lease, held by this process, once the previous holder can no longer write; None without a
    Lease."""
    for attempt in range(1, ATTEMPTS + 1):
        record = await _get(home, node)
        if record is None:
            return None
        try:
            held = await _patch(home, node, election_lease.leave_patch(record, candidate))
        except (Conflict, NotFound):
            if attempt == ATTEMPTS:
                raise
            continue
        if record.holder:
            notify(
                f"home: the bridge of {record.holder_name} has lost the lease of node "
                f"{node}, and ends"
            )
            await asyncio.sleep(election_lease.LEASE_SECONDS)
        return held
    raise AssertionError("there is a first attempt")


class _HeldLease:
    """The Lease while this leave holds it."""

    def __init__(
        self, home: KubeClient, node: str, candidate: Candidate, held: ElectionRecord
    ) -> None:
        self.name = election_lease.election_lease_name(node)
        self._home = home
        self._node = node
        self._candidate = candidate
        self._held = held

    async def renew_until_cancelled(self) -> None:
        """Renews the Lease; failures are retried, since a leave continues without it."""
        while True:
            await asyncio.sleep(election_lease.RENEW_SECONDS)
            try:
                self._held = await _patch(
                    self._home, self._node, election_lease.leave_patch(self._held, self._candidate)
                )
            except KubeError as error:
                log.info("the election Lease was not renewed: %s", error)

    async def release(self) -> None:
        """Clears the holder. Best effort."""
        with contextlib.suppress(KubeError):
            await _patch(self._home, self._node, election_lease.release_patch(self._held))


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _get(home: KubeClient, node: str) -> ElectionRecord | None:
    try:
        return election_lease.parse_lease(
            await home.get(
                LEASES, election_lease.election_lease_name(node), namespace=LEASE_NAMESPACE
            )
        )
    except NotFound:
        return None


async def _patch(home: KubeClient, node: str, patch: Object) -> ElectionRecord:
    name = election_lease.election_lease_name(node)
    return election_lease.parse_lease(
        await home.patch(LEASES, name, patch, namespace=LEASE_NAMESPACE)
    )
