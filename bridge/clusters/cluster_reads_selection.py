"""Finds out which resources the bridge may read in the whole remote.

With prepared namespaces, each such read is used where it is granted; nothing else needs a
ClusterRole. One decision holds for a whole join: a permission that is granted or removed later
counts at the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import asdict

from bridge.rbac import permissions
from sync.cleanup.remote_inventory import ReadScope
from sync.kube.client import KubeClient
from translators.translation_options import ClusterReads

#: The consequence of each missing read, for the person who joins.
SUBSTITUTES: Mapping[str, str] = {
    "nodes": "the capacity is that of --limits, or what quotas of the prepared namespaces allow; "
    "the virtual node has no labels of the remote's nodes, and no pod counts as lost with its node",
    "namespaces": "each prepared namespace is read by its name",
    "pods": "pods are read in the prepared namespaces; requests elsewhere reduce no capacity",
    "priority_classes": "pods have the remote's default priority",
    "resource_quotas": "quotas are read in the prepared namespaces",
}


async def select_cluster_reads(remote: KubeClient, namespaces: Collection[str]) -> ClusterReads:
    """The reads that the credential may do in the whole remote; all if no namespace is prepared.
    Raises KubeError."""
    if not namespaces:
        return ClusterReads()
    reads = permissions.REMOTE_CLUSTER_READS
    granted = await asyncio.gather(
        *(permissions.are_granted(remote, required) for required in reads.values())
    )
    return ClusterReads(**dict(zip(reads, granted, strict=True)))


async def read_scope(remote: KubeClient, namespaces: Collection[str]) -> ReadScope:
    """Where the credential may list. Raises KubeError."""
    return ReadScope(namespaces, await select_cluster_reads(remote, namespaces))


def missing_reads(reads: ClusterReads) -> list[str]:
    """The names of the reads that are not granted."""
    return [name for name, granted in asdict(reads).items() if not granted]
