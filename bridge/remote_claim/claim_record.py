"""The fields, patches and rules of a home's claim on one virtual node's objects in the remote.
Pure.

The election (`bridge.election.elector`) lets one bridge write, but its Lease is at home. Two
clusters with one home's identity (restored from a backup, or cloned) have two such Leases, and each
elects a bridge that treats the other's pods as orphans. The claim is a Lease in the remote, which
both bridges reach:

- Each acquisition has an id of its own, and each renewal the next sequence number. Both are
  recorded at home, on the election's Lease, *before* they are written to the remote.
- So home's record is never behind the claim, unless home was restored or cloned since: then the
  claim has an id that home does not know, or a number that home has not reached (`objection`).
- A claim behind home's record is no objection: the remote was restored, or the last renewal was not
  sent.
- Home's record has the claim's namespace too: kube-node-lease, or a prepared namespace where the
  credential may not write there. Other prepared namespaces have a *marker*, a Lease of the same
  name that leads to the claim (`bridge.remote_claim.claim_place`).
- An objection holds whether or not the other bridge still runs. Only a person overrules it, by the
  id of the claim to take (``--take-over-claim``), which changes with the takeover.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import NamedTuple

from bridge.election.election_lease import (
    ANNOTATION_HOLDER,
    CLAIM_PREFIX,
    Candidate,
    holder_name,
    printable,
)
from bridge.node.node_lease import LEASE_NAMESPACE
from sync.kube.api_resources import LEASES
from translators.derived_names import truncated_name
from translators.object_accessors import Object, metadata, namespace_of, uid_of
from translators.ownership_labels import DOMAIN, owner_labels
from translators.virtual_node_identity import Identity

#: On the election's Lease: home's record, as ``SEQUENCE ID...``, newest id first.
ANNOTATION_RECORD = f"{DOMAIN}/remote-claim"
#: On the claim: ``SEQUENCE ID``. It stays when the claim is released.
ANNOTATION_CLAIM = f"{DOMAIN}/claim"
#: On the claim: "true" if the holder provisions volumes, else "false".
ANNOTATION_VOLUMES = f"{DOMAIN}/claim-volumes"
#: On a marker: ``NAMESPACE ID`` of the claim.
ANNOTATION_MARKER = f"{DOMAIN}/claim-in"
#: Ids in the record. A takeover needs one; with more, a remote restored from a backup is
#: recognised.
REMEMBERED = 8

#: The format of `new_claim_id`.
_CLAIM_ID = re.compile(r"[0-9a-f]{16}")
#: A sequence; Python parses a number of at most 4300 digits.
_SEQUENCE = re.compile(r"[0-9]{1,100}")
#: Precedes the namespace in the record; without one it is that of the Leases of nodes.
_IN = "@"


def claim_lease_name(identity: Identity) -> str:
    return truncated_name(f"{CLAIM_PREFIX}{identity.home_id}.{identity.node}")


def new_claim_id() -> str:
    """A random id of one acquisition, short enough for a command line."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True)
class HomeRecord:
    """Home's record of the claim."""

    sequence: int = 0
    ids: tuple[str, ...] = ()
    """Newest first; empty if home must not take any claim."""
    namespace: str = LEASE_NAMESPACE
    """The namespace of the claim, once there is one."""

    def __str__(self) -> str:
        where = () if self.namespace == LEASE_NAMESPACE else (f"{_IN}{self.namespace}",)
        return " ".join((str(self.sequence), *self.ids, *where))

    @property
    def known_namespace(self) -> str:
        """The namespace of the claim; "" if home never took one."""
        return self.namespace if self.sequence else ""

    def for_acquisition(self, claim: Claim | None, new: str) -> HomeRecord:
        """The record of an acquisition of ``claim`` under a new id."""
        known = (claim.id,) if claim is not None else ()
        ids = dict.fromkeys((new, *known, *self.ids))
        sequence = max(self.sequence, claim.sequence if claim is not None else 0) + 1
        return HomeRecord(sequence, tuple(ids)[:REMEMBERED], self.namespace)

    def for_renewal(self) -> HomeRecord:
        return replace(self, sequence=self.sequence + 1)

    def for_rejection(self) -> HomeRecord:
        """The record of a rejected home: it takes no claim until a person decides."""
        return replace(self, ids=())


def parse_record(text: str | None) -> HomeRecord:
    """Parses the annotation; an empty record if it is missing or malformed."""
    sequence, *words = (text or "").split() or [""]
    if not _SEQUENCE.fullmatch(sequence):
        return HomeRecord()
    ids = tuple(it for it in words if not it.startswith(_IN))
    namespaces = [it.removeprefix(_IN) for it in words if it.startswith(_IN)]
    return HomeRecord(int(sequence), ids, (namespaces or [LEASE_NAMESPACE])[0])


class Marker(NamedTuple):
    """Where the claim is, and its id when the marker was written."""

    namespace: str
    id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of the claim, or of a marker."""

    namespace: str
    uid: str
    version: str
    id: str
    """The last acquisition's; the Lease's UID, which no home knows, if there is none."""
    sequence: int
    holder: str
    """The identity of the candidate that holds it; "" after a clean stop."""
    holder_name: str
    """The last holder, for messages."""
    renewed: str
    uses_volumes: bool
    """Whether the holder provisions volumes, as far as the claim does not deny it."""
    marker: Marker | None = None
    """Not None for a marker."""


def parse_claim(lease: Object) -> Claim:
    """Reads the Lease; malformed fields are empty or unknown."""
    spec, meta = lease.get("spec") or {}, metadata(lease)
    annotations = meta.get("annotations") or {}
    claimed = parse_record(str(annotations.get(ANNOTATION_CLAIM) or ""))
    namespace, _, marked_id = str(annotations.get(ANNOTATION_MARKER) or "").partition(" ")
    return Claim(
        namespace=namespace_of(lease),
        uid=uid_of(lease),
        version=str(meta.get("resourceVersion") or ""),
        id=claimed.ids[0] if claimed.ids and _CLAIM_ID.fullmatch(claimed.ids[0]) else uid_of(lease),
        sequence=claimed.sequence,
        holder=str(spec.get("holderIdentity") or ""),
        holder_name=holder_name(lease) or "an unknown bridge",
        renewed=printable(spec.get("renewTime") or "") or "an unknown time",
        uses_volumes=annotations.get(ANNOTATION_VOLUMES) != "false",
        marker=Marker(printable(namespace), printable(marked_id)) if namespace else None,
    )


def objection(claim: Claim, record: HomeRecord, *, take_over: str = "") -> str:
    """Why a home with this record must not take or renew the claim; "" if it may."""
    if take_over and take_over == claim.id:
        return ""
    if claim.id not in record.ids:
        return "this home has no record of the bridge that holds it"
    if claim.sequence > record.sequence:
        return "it was renewed after the state that this home is in"
    return ""


def rejection_advice(claim: Claim, identity: Identity) -> str:
    """Possible causes and remedies, for the person whose bridge is rejected."""
    labels = ",".join(f"{name}={value}" for name, value in owner_labels(identity).items())
    return (
        f"another bridge serves node {identity.node}, or did so last: {claim.holder_name}, at "
        f"{claim.renewed}. This happens where home was restored from a backup or cloned, or its "
        "record was deleted. Nothing more is written. To keep the other bridge, do not join here. "
        f"To take over on purpose, stop it and join with --take-over-claim {claim.id}: pods in the "
        f"remote that this home does not know are then deleted (`kubectl get pods -A -l {labels}` "
        "lists all of them there)"
    )


def claim_patch(
    before: Claim | None,
    identity: Identity,
    candidate: Candidate,
    record: HomeRecord,
    *,
    renewed: str,
    seconds: int,
    uses_volumes: bool = False,
) -> Object:
    """The patch, or without a Lease the object, that acquires or renews the claim. UID and
    resourceVersion are preconditions."""
    spec: Object = {
        "holderIdentity": candidate.identity,
        "leaseDurationSeconds": seconds,
        "renewTime": renewed,
    }
    annotations: Object = {ANNOTATION_CLAIM: f"{record.sequence} {record.ids[0]}"}
    if before is not None and before.marker is not None:
        annotations[ANNOTATION_MARKER] = None
    if before is None or (before.id, before.holder) != (record.ids[0], candidate.identity):
        spec["acquireTime"] = renewed
        annotations[ANNOTATION_HOLDER] = candidate.display_name
        annotations[ANNOTATION_VOLUMES] = "true" if uses_volumes else "false"
    meta: Object = {"annotations": annotations}
    if before is not None:
        return {"metadata": {**meta, **_precondition(before)}, "spec": spec}
    meta |= {"name": claim_lease_name(identity), "labels": owner_labels(identity)}
    return LEASES.manifest(meta, spec=spec)


def marker_patch(before: Claim | None, identity: Identity, record: HomeRecord) -> Object:
    """The patch, or without a Lease the object, that makes a marker of it."""
    annotations: Object = {ANNOTATION_MARKER: f"{record.namespace} {record.ids[0]}"}
    if before is None:
        meta = {"name": claim_lease_name(identity), "labels": owner_labels(identity)}
        return LEASES.manifest({**meta, "annotations": annotations}, spec={})
    annotations |= dict.fromkeys((ANNOTATION_CLAIM, ANNOTATION_HOLDER, ANNOTATION_VOLUMES))
    spec = dict.fromkeys(("holderIdentity", "leaseDurationSeconds", "renewTime", "acquireTime"))
    return {"metadata": {"annotations": annotations, **_precondition(before)}, "spec": spec}


def release_patch(before: Claim) -> Object:
    """The patch that clears the holder. The id stays, and with it every objection."""
    return {"metadata": _precondition(before), "spec": {"holderIdentity": None}}


def _precondition(claim: Claim) -> Object:
    """Metadata that limits a patch to this state of the claim."""
    return {"uid": claim.uid, "resourceVersion": claim.version}
