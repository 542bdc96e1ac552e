"""Inspects and removes claims in a remote (`bridge.remote_claim.claim_record`), for commands.

`require_own_claim` rejects a leave by a home that was restored or cloned: by then the remote's
objects belong to another bridge. `remove_claim` deletes a claim that was checked,
`remove_claims_of_home` those of a home that no longer exists; both have a UID precondition.
"""

from __future__ import annotations

from collections.abc import Collection

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.election.election_lease import ElectionRecord
from bridge.election.serving_bridge_lookup import read_election
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_place import ClaimPlaces, find_claims
from bridge.remote_claim.claim_record import Claim, HomeRecord
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from translators.object_accessors import Object, metadata, name_of, namespace_of, uid_of
from translators.ownership_labels import LABEL_HOME, LABEL_NODE
from translators.virtual_node_identity import Identity


async def inspect_claim(
    home: KubeClient, remote: KubeClient, identity: Identity, places: ClaimPlaces
) -> tuple[Claim | None, str]:
    """The claim on this home's node (None if there is none, or if it cannot be read), and why the
    claim is not this home's ("" if it is).

    Without the election's Lease home has no record: then only a claim with a holder is not this
    home's. Raises KubeError.
    """
    before = _record(await read_election(home, identity.node))
    found = await find_claims(remote, identity, places, before)
    # A record that was read before the claim may be behind it: the bridge renews both meanwhile.
    election = await read_election(home, identity.node)
    record = _record(election)
    latest: Claim | None = None
    for claim in sorted(found.claims, key=lambda it: it.sequence):
        latest = claim
        if election is None and not claim.holder:
            continue
        if why := claim_record.objection(claim, record):
            return claim, why
    if found.hidden:
        return None, f"{found.hidden[0].namespace} may not be read"
    return latest, ""


def _record(election: ElectionRecord | None) -> HomeRecord:
    """Home's record of the claim."""
    records = election.records if election is not None else {}
    return claim_record.parse_record(records.get(claim_record.ANNOTATION_RECORD))


async def require_own_claim(
    home: KubeClient, remote: KubeClient, identity: Identity, places: ClaimPlaces
) -> Claim | None:
    """The claim on this home's node, None for none. Raises PreflightError if another home of the
    same identity has it, or if that cannot be known, and KubeError."""
    claim, objection = await inspect_claim(home, remote, identity, places)
    name = claim_record.claim_lease_name(identity)
    if claim is None and objection:
        raise PreflightError(
            f"remote: the claim on node {identity.node} (Lease {name}) cannot be read: {objection} "
            "with this credential; nothing was removed. Leave with a credential that may get "
            "Leases there"
        )
    if claim is not None and objection:
        raise PreflightError(
            f"remote: the claim on node {identity.node} (Lease {claim.namespace}/{name}) is not "
            f"this home's: {objection}; nothing was removed. "
            f"{claim_record.rejection_advice(claim, identity)}. Then leave again"
        )
    return claim


async def remove_claim(
    remote: KubeClient, identity: Identity, claim: Claim, places: ClaimPlaces, *, notify: Notify
) -> None:
    """Deletes the claim, and the markers that lead to it. Raises KubeError."""
    name = claim_record.claim_lease_name(identity)
    found = await find_claims(remote, identity, places, HomeRecord())
    for lease in (*found.markers, claim):
        await _delete(remote, lease.namespace, name, lease.uid, notify)


async def remove_claims_of_home(
    remote: KubeClient, home: str, node: str, namespaces: Collection[str], *, notify: Notify
) -> None:
    """Deletes the claims of a home's virtual node, or of all nodes where ``node`` is "", and the
    markers that lead to them; in all namespaces, or where the credential may not list these, in
    kube-node-lease and ``namespaces``. Raises KubeError."""
    labels = f"{LABEL_HOME}={home}" + (f",{LABEL_NODE}={node}" if node else "")
    for lease in await _list_claims(remote, labels, namespaces, notify):
        annotations = metadata(lease).get("annotations") or {}
        if annotations.keys() & {claim_record.ANNOTATION_CLAIM, claim_record.ANNOTATION_MARKER}:
            await _delete(remote, namespace_of(lease), name_of(lease), uid_of(lease), notify)


async def _list_claims(
    remote: KubeClient, labels: str, namespaces: Collection[str], notify: Notify
) -> list[Object]:
    try:
        return (await remote.list(LEASES, labels=labels)).items
    except Forbidden:
        found: list[Object] = []
    for namespace in (LEASE_NAMESPACE, *namespaces):
        try:
            found += (await remote.list(LEASES, namespace=namespace, labels=labels)).items
        except Forbidden:
            text = f"the credential may not list Leases in {namespace}"
            notify(Caveat(f"remote: claims are kept: {text}"))
    return found


async def _delete(remote: KubeClient, namespace: str, name: str, uid: str, notify: Notify) -> None:
    try:
        await remote.delete(LEASES, name, namespace=namespace, uid=uid)
    except Forbidden:
        notify(
            Caveat(
                f"remote: Lease {namespace}/{name} stays: the credential may not delete it; "
                "`bridge rbac remote` prints what to apply there, or delete it with kubectl"
            )
        )
