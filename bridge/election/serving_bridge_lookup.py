"""Finds the bridge that serves a node, for commands.

A bridge serves the node while it renews the election's Lease. `find_serving_bridge` watches for a
renewal and compares no clocks. That takes a moment, or `LEASE_SECONDS` after a crash.
"""

from __future__ import annotations

import asyncio

from bridge.election import election_lease
from bridge.election.election_lease import ElectionRecord
from bridge.node import lease_namespace
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from sync.kube.leader_write_fence import clock

#: Seconds between two reads of a Lease that may be renewed.
POLL_SECONDS = 0.3


async def find_serving_bridge(home: KubeClient, node: str) -> str | None:
    """The display name of the bridge that serves the node, "" for none; None if the node never
    had an election. Raises KubeError."""
    record = await read_election(home, node)
    if record is None:
        return None
    seen = election_lease.observe(None, record, candidate="", now=clock(), node_exists=True)
    while clock() < seen.free_at:
        await asyncio.sleep(POLL_SECONDS)
        now = await read_election(home, node)
        if now is None or not now.holder:
            return ""
        if not now.is_same_version(record):
            return now.holder_name
    return ""


async def read_election(home: KubeClient, node: str) -> ElectionRecord | None:
    """The election's Lease, None if there is none. Raises KubeError."""
    name = election_lease.election_lease_name(node)
    lease = await home.find(LEASES, name, namespace=lease_namespace.NAMESPACE)
    return election_lease.parse_lease(lease) if lease is not None else None
