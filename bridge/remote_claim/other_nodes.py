"""Finds another home of the same identity that serves a virtual node of another name.

A home that was restored or cloned has the PersistentVolumes of the original. A bridge of that home
under another node name has a claim of its own, so that nothing keeps it from the original's remote
PVCs: it would mount them next to the original's pods, and delete them with its own objects.

A bridge that provisions volumes therefore reads, before it writes anything, the claims on the other
nodes that use this home's namespaces and PVCs in the remote. A claim to which home's record objects
(`bridge.remote_claim.claim_record.objection`), and which is renewed while the bridge watches, is
that of another home. A claim that is not renewed may be one of a node that was removed by force.
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
    """Raises ClaimRejected if a bridge of another home of this identity serves one of the other
    ``nodes`` now, and KubeError."""
    others = [replace(identity, node=it) for it in sorted(nodes)]
    for problem in await asyncio.gather(*(_problem(home, remote, it, places) for it in others)):
        if problem:
            raise ClaimRejected(problem)


async def _problem(
    home: KubeClient, remote: KubeClient, other: Identity, places: ClaimPlaces
) -> str:
    """Why the claim on the node ``other`` is not this home's; "" if it is, or is not renewed."""
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
        f"remote: a bridge of another home with this home's identity serves node {other.node}: "
        f"{latest.holder_name}, at {latest.renewed} (Lease {latest.namespace}/"
        f"{claim_record.claim_lease_name(other)}): {why}. This happens where home was restored "
        "from a backup or cloned: both homes would use and delete the same volumes. Stop one of "
        "the two bridges, or join with --storage none"
    )


async def _read_claim(remote: KubeClient, other: Identity, places: ClaimPlaces) -> Claim | None:
    """The claim that a bridge holds; None if none does."""
    found = (await find_claims(remote, other, places, HomeRecord())).latest
    return found if found is not None and found.holder else None


async def _objection(home: KubeClient, other: Identity, claim: Claim) -> str:
    # Home's record is written before the claim, and is read after it: it is not behind.
    try:
        election = await read_election(home, other.node)
    except Forbidden:
        return "this home's record of it may not be read; `bridge rbac home` prints what to grant"
    records = election.records if election is not None else {}
    return claim_record.objection(claim, parse_record(records.get(claim_record.ANNOTATION_RECORD)))
