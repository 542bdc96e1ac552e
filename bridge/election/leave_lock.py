"""Holds the Lease of a node's election during `bridge leave`, so that no bridge serves the node.

`hold_lease_for_leave` marks the Lease while its block runs: the node's bridges exit with
`NodeLeft`. The block starts when the previous holder can no longer write. Afterwards the Lease is
deleted; if the block fails it is released, so that the next leave or join need not wait.

A bridge that is cut off from home during all this does not notice, and does not write either. It
creates the node again when home is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bridge.base.progress_lines import Waiting
from bridge.election import election_lease
from bridge.election.election_lease import Candidate, ElectionRecord
from bridge.election.serving_bridge_lookup import read_election
from bridge.node import lease_namespace
from sync.base.background_task import cancel_and_wait
from sync.kube.api_errors import Conflict, KubeError, NotFound
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from translators.object_accessors import Object

log = logging.getLogger(__name__)

#: Attempts to take a Lease that its holder renews.
ATTEMPTS = 10


@asynccontextmanager
async def hold_lease_for_leave(
    home: KubeClient, node: str, *, notify: Callable[[str], None]
) -> AsyncIterator[None]:
    """Holds the Lease while the block runs; does nothing if there is no Lease. Raises KubeError."""
    candidate = Candidate.local()
    acquired = await _acquire(home, node, candidate, notify)
    if acquired is None:
        yield
        return
    held = acquired

    async def renew_until_cancelled() -> None:
        nonlocal held
        while True:
            await asyncio.sleep(election_lease.RENEW_SECONDS)
            try:
                held = await _patch(home, node, election_lease.leave_patch(held, candidate))
            except KubeError as error:  # A leave continues without the Lease.
                log.info("the election Lease was not renewed: %s", error)

    renewal = asyncio.create_task(renew_until_cancelled(), name="election-left")
    try:
        yield
    except BaseException:
        await cancel_and_wait(renewal)
        with contextlib.suppress(KubeError):
            await _patch(home, node, election_lease.release_patch(held))
        raise
    await cancel_and_wait(renewal)
    name = election_lease.election_lease_name(node)
    await home.delete(LEASES, name, namespace=lease_namespace.NAMESPACE, uid=held.uid)


async def _acquire(
    home: KubeClient, node: str, candidate: Candidate, notify: Callable[[str], None]
) -> ElectionRecord | None:
    """The Lease, held by this process, once the previous holder can no longer write; None without a
    Lease."""
    for attempt in range(1, ATTEMPTS + 1):
        record = await read_election(home, node)
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
                Waiting(
                    f"home: the bridge of {record.holder_name} has lost the lease of node {node}, "
                    "and ends"
                )
            )
            await asyncio.sleep(election_lease.LEASE_SECONDS)
        return held
    raise AssertionError("there is a first attempt")


async def _patch(home: KubeClient, node: str, patch: Object) -> ElectionRecord:
    name = election_lease.election_lease_name(node)
    return election_lease.parse_lease(
        await home.patch(LEASES, name, patch, namespace=lease_namespace.NAMESPACE)
    )
