"""Inspects and removes claims in a remote (`bridge.remote_claim.claim_record`), for commands.

`require_own_claim` rejects a leave by a home that was restored or cloned: by then the remote's
objects belong to another bridge. `remove_claim` deletes a claim that was checked,
`remove_claims_of_home` those of a home that no longer exists; both have a UID precondition.
"""

from __future__ import annotations

from bridge.base.command_error import PreflightError
from bridge.base.progress_lines import Caveat
from bridge.clusters.connection import Notify
from bridge.election.serving_bridge_lookup import read_election
from bridge.node.node_lease import LEASE_NAMESPACE
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_record import Claim
from sync.kube.api_errors import Forbidden
from sync.kube.api_resources import LEASES
from sync.kube.client import KubeClient
from translators.object_accessors import metadata, name_of, uid_of
from translators.ownership_labels import LABEL_HOME, LABEL_NODE
from translators.virtual_node_identity import Identity


async def inspect_claim(
    home: KubeClient, remote: KubeClient, identity: Identity
) -> tuple[Claim | None, str]:
    """The claim on this home's node (None if there is none), and why the claim is not this home's
    ("" if it is).

    Without the election's Lease home has no record: then only a claim with a holder is not this
    home's. Raises KubeError.
    """
    name = claim_record.claim_lease_name(identity)
    found = await remote.find(LEASES, name, namespace=LEASE_NAMESPACE)
    if found is None:
        return None, ""
    claim = claim_record.parse_claim(found)
    election = await read_election(home, identity.node)
    if election is None and not claim.holder:
        return claim, ""
    records = election.records if election is not None else {}
    record = claim_record.parse_record(records.get(claim_record.ANNOTATION_RECORD))
    return claim, claim_record.objection(claim, record)


async def require_own_claim(
    home: KubeClient, remote: KubeClient, identity: Identity
) -> Claim | None:
    """The claim on this home's node, None for none. Raises PreflightError if another home of the
    same identity has it, and KubeError."""
    claim, objection = await inspect_claim(home, remote, identity)
    if claim is not None and objection:
        raise PreflightError(
            f"remote: the claim on node {identity.node} (Lease {LEASE_NAMESPACE}/"
            f"{claim_record.claim_lease_name(identity)}) is not this home's: {objection}; nothing "
            f"was removed. {claim_record.rejection_advice(claim, identity)}. Then leave again"
        )
    return claim


async def remove_claim(
    remote: KubeClient, identity: Identity, claim: Claim, *, notify: Notify
) -> None:
    """Deletes the claim. Raises KubeError."""
    await _delete(remote, claim_record.claim_lease_name(identity), claim.uid, notify)


async def remove_claims_of_home(
    remote: KubeClient, home: str, node: str, *, notify: Notify
) -> None:
    """Deletes the claims of a home's virtual node, or of all nodes where ``node`` is "". Raises
    KubeError."""
    labels = f"{LABEL_HOME}={home}" + (f",{LABEL_NODE}={node}" if node else "")
    try:
        found = (await remote.list(LEASES, namespace=LEASE_NAMESPACE, labels=labels)).items
    except Forbidden:
        notify(
            Caveat("remote: claims are kept: the credential may not list Leases in kube-node-lease")
        )
        return
    for lease in found:
        if claim_record.ANNOTATION_CLAIM in (metadata(lease).get("annotations") or {}):
            await _delete(remote, name_of(lease), uid_of(lease), notify)


async def _delete(remote: KubeClient, name: str, uid: str, notify: Notify) -> None:
    try:
        await remote.delete(LEASES, name, namespace=LEASE_NAMESPACE, uid=uid)
    except Forbidden:
        notify(
            Caveat(
                f"remote: Lease {LEASE_NAMESPACE}/{name} stays: the credential may not delete it; "
                "`bridge rbac remote` prints what to apply there, or delete it with kubectl"
            )
        )
