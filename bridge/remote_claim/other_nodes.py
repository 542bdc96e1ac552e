"""Finds another home cluster of the same identity that serves a virtual node of another name.

A home cluster that was restored or cloned has the PersistentVolumes of the original. A bridge of
the clone under another node name has a claim of its own, so that nothing keeps it from the
original's remote PVCs: it would mount them next to the original's pods, and delete them with its
own objects.

A bridge that provisions volumes therefore reads, before it registers its Node, the claims on the
other nodes that use the same namespaces in the remote or have provisioned PVCs there. A claim to
which the home cluster's record objects (`bridge.remote_claim.claim_record.objection`), and which is
renewed while the bridge watches, is that of another home cluster. A claim that is not renewed may
be one of a node that was removed by force. The claim of a bridge that provisions no volumes is no
obstacle: that bridge neither mounts nor deletes any.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from bridge.election.serving_bridge_lookup import read_election
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_keeper import OBSERVE_SECONDS, ClaimRejected
from bridge.remote_claim.claim_place import ClaimPlaces, find_claims
from bridge.remote_claim.claim_record import Claim, HomeRecord, parse_record
from sync.kube.api_errors import Forbidden
from sync.kube.client import KubeClient
from translators.virtual_node_identity import Identity


async def require_own_bridges(
    home: KubeClient,
    remote: KubeClient,
    identity: Identity,
    places: ClaimPlaces,
    nodes: Iterable[str],
) -> None:
    """Raises ClaimRejected if a bridge of another home cluster of this identity provisions volumes
    for one of the other ``nodes`` now, and KubeError."""
    others = [replace(identity, node=node) for node in sorted(nodes)]
    checks = (_problem(home, remote, other, places) for other in others)
    for problem in await asyncio.gather(*checks):
        if problem:
            raise ClaimRejected(problem)


async def _problem(
    home: KubeClient, remote: KubeClient, other: Identity, places: ClaimPlaces
) -> str:
    """Why the claim on the node ``other`` belongs to another home cluster; "" if it does not, or
    is not renewed."""
    first = await _read_claim(remote, other, places)
    if first is None:
        return ""
    why = await _objection(home, other, first)
    if not why:
        return ""
    await asyncio.sleep(OBSERVE_SECONDS)
    latest = await _read_claim(remote, other, places)
    if latest is None or latest.version == first.version:
        return ""
    return (
        f"remote: a bridge of another home cluster with the same identity serves node "
        f"{other.node}: {latest.holder_name}, at {latest.renewed} (Lease {latest.namespace}/"
        f"{claim_record.claim_lease_name(other)}): {why}. This happens after restoring the home "
        "cluster from a backup, or cloning it: both home clusters would use and delete the same "
        "volumes. Stop one of the two bridges, or join with --storage none"
    )


async def _read_claim(remote: KubeClient, other: Identity, places: ClaimPlaces) -> Claim | None:
    """The claim that a bridge with volumes holds; None if none does."""
    found = (await find_claims(remote, other, places, HomeRecord())).latest
    return found if found is not None and found.holder and found.uses_volumes else None


async def _objection(home: KubeClient, other: Identity, claim: Claim) -> str:
    # The record is written before the claim, and is read after it: it is not behind.
    try:
        election = await read_election(home, other.node)
    except Forbidden:
        return (
            "the credential is not permitted to read the home cluster's record of it; `bridge rbac "
            "home` prints what to grant"
        )
    records = election.records if election is not None else {}
    return claim_record.objection(claim, parse_record(records.get(claim_record.ANNOTATION_RECORD)))
