"""Reads the Lease of an election, and computes the patches that acquire, renew, request and release
it. Pure.

The Lease is `election-NODE` in home's namespace `bridge.node.lease_namespace`. Its
``holderIdentity`` serves the node while it renews the Lease. As in client-go, clocks are never
compared: a candidate takes the Lease over when it has not seen it change for the Lease's duration,
by its own clock, and on condition of the observed resourceVersion.

The Lease outlives the Node: it holds records of what bridges did in the remote, which the next
bridge needs after a user deleted the Node.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sync.kube.api_resources import LEASES
from translators.derived_names import truncated_name
from translators.object_accessors import Object, metadata, uid_of
from translators.ownership_labels import DOMAIN
from translators.timestamps import format_micro_time

#: Seconds: the duration of the Lease; until when its holder must have renewed it, or stops writing;
#: and between renewals. As in client-go each is greater than the next: between the first two,
#: requests in flight end.
LEASE_SECONDS, RENEW_DEADLINE, RENEW_SECONDS = 4, 3.0, 1.3
#: The display name of the holder.
ANNOTATION_HOLDER = f"{DOMAIN}/holder"
#: Set by `bridge leave`: the node is being removed, and its bridges must exit.
ANNOTATION_LEAVING = f"{DOMAIN}/leaving"
#: The holder does not reach the remote; and the candidate that does, and requests the Lease.
ANNOTATION_REMOTE_LOST, ANNOTATION_REQUESTED_BY = f"{DOMAIN}/remote-lost", f"{DOMAIN}/asked-by"

#: All other annotations of the bridge on the Lease are records.
_ELECTION = frozenset(
    {ANNOTATION_HOLDER, ANNOTATION_LEAVING, ANNOTATION_REMOTE_LOST, ANNOTATION_REQUESTED_BY}
)

#: Not the prefix of an installation's objects: kustomize renames every reference to the Secret
#: that it generates, and takes a permission for a Lease of the same name for one.
_PREFIX = "election-"
#: Begins the names of claims in a remote (`bridge.remote_claim.claim_record`), and of no election's
#: Lease, where that remote is a home too.
CLAIM_PREFIX = "cluster-bridge."
#: The most characters of a field in messages.
_MAX_SHOWN = 200


def election_lease_name(node: str) -> str:
    return truncated_name(_PREFIX + node, unique=node)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process that can hold the Lease."""

    identity: str
    """Unique to the process."""
    display_name: str
    """For messages."""

    @staticmethod
    def local(address: str = "") -> Candidate:
        """This process; ``address`` is part of its display name."""
        host = socket.gethostname()
        at = f" at {address}" if address else ""
        return Candidate(f"{host}_{uuid.uuid4()}", f"{host} (pid {os.getpid()}){at}")


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """The content of the Lease."""

    uid: str
    version: str
    holder: str
    """"" for none."""
    holder_name: str
    duration_seconds: float
    transitions: int
    leaving: bool
    remote_lost: bool = False
    """Whether the holder does not reach the remote."""
    requested_by: str = ""
    """The candidate that reaches the remote and requests the Lease; "" for none."""
    records: Mapping[str, str] = field(default_factory=dict)
    """All other annotations of the bridge (`bridge.election.elector.LeaseRecords`)."""

    def is_same_version(self, other: ElectionRecord) -> bool:
        """Whether the Lease was not written between the two reads."""
        return (self.uid, self.version) == (other.uid, other.version)


def parse_lease(lease: Object) -> ElectionRecord:
    """Reads the Lease; malformed fields are empty."""
    spec, meta = lease.get("spec") or {}, metadata(lease)
    annotations = meta.get("annotations") or {}
    return ElectionRecord(
        uid=uid_of(lease),
        version=str(meta.get("resourceVersion") or ""),
        holder=str(spec.get("holderIdentity") or ""),
        holder_name=holder_name(lease),
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        leaving=ANNOTATION_LEAVING in annotations,
        remote_lost=ANNOTATION_REMOTE_LOST in annotations,
        requested_by=str(annotations.get(ANNOTATION_REQUESTED_BY) or ""),
        records={
            name: str(value)
            for name, value in annotations.items()
            if name.startswith(f"{DOMAIN}/") and name not in _ELECTION
        },
    )


def holder_name(lease: Object) -> str:
    """The last holder, for messages; "" for none."""
    name = (metadata(lease).get("annotations") or {}).get(ANNOTATION_HOLDER)
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    return printable(name or holder.partition("_")[0])


def printable(text: object) -> str:
    """The text of a field for messages, without control characters and not too long."""
    return "".join(letter for letter in str(text) if letter.isprintable())[:_MAX_SHOWN]


@dataclass(frozen=True, slots=True)
class Observation:
    """A candidate's knowledge of the Lease."""

    record: ElectionRecord | None
    """None if the Lease does not exist."""
    free_at: float
    """When it may be taken over, by the candidate's clock."""
    holder_is_live: bool = False
    """Whether the candidate saw the holder renew it."""


def observe(
    previous: Observation | None,
    record: ElectionRecord | None,
    *,
    candidate: str,
    now: float,
    node_exists: bool,
) -> Observation:
    """The candidate's knowledge after it has read the Lease as ``record``. ``node_exists``: a Node
    of the name exists, so that a Lease that is missing at the first read may have been deleted
    while a bridge held it."""
    if record is None:
        if previous is None:
            return Observation(None, now + LEASE_SECONDS if node_exists else now)
        return Observation(None, previous.free_at)  # The holder may not have noticed the deletion.
    if record.holder in ("", candidate):
        return Observation(record, now)
    known = previous.record if previous is not None else None
    if previous is not None and known is not None and known.is_same_version(record):
        return previous
    alive = known is not None and known.holder == record.holder
    return Observation(record, now + max(record.duration_seconds, LEASE_SECONDS), alive)


def holder_patch(
    before: ElectionRecord | None,
    candidate: Candidate,
    *,
    remote_lost: bool = False,
    records: Mapping[str, str] | None = None,
) -> Object:
    """The patch, or without a Lease the object, that acquires or renews it. UID and resourceVersion
    are preconditions. ``remote_lost``: the candidate does not reach the remote. ``records``: by
    annotation."""
    now = format_micro_time(datetime.now(UTC))
    spec: Object = {
        "holderIdentity": candidate.identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": now,
    }
    meta: Object = {}
    known_records = before.records if before is not None else {}
    annotations: Object = {
        name: value for name, value in (records or {}).items() if known_records.get(name) != value
    }
    if before is None or before.holder != candidate.identity:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = before.transitions + 1 if before is not None else 0
        annotations[ANNOTATION_HOLDER] = candidate.display_name
        if before is not None and before.leaving:
            annotations[ANNOTATION_LEAVING] = None
    if remote_lost != (before is not None and before.remote_lost):
        annotations[ANNOTATION_REMOTE_LOST] = "true" if remote_lost else None
    if before is not None and before.requested_by and not remote_lost:
        annotations[ANNOTATION_REQUESTED_BY] = None
    if annotations:
        meta["annotations"] = annotations
    return _patch(before, meta, spec)


def release_patch(before: ElectionRecord) -> Object:
    return _patch(before, {"annotations": dict.fromkeys(_ELECTION)}, {"holderIdentity": None})


def request_patch(before: ElectionRecord, candidate: Candidate) -> Object:
    """The patch by which a candidate requests the Lease from its holder."""
    return _patch(before, {"annotations": {ANNOTATION_REQUESTED_BY: candidate.identity}}, {})


def leave_patch(before: ElectionRecord, candidate: Candidate) -> Object:
    """`holder_patch` for a `bridge leave`, which all bridges of the node then observe."""
    patch = holder_patch(before, candidate)
    annotations = {ANNOTATION_HOLDER: candidate.display_name, ANNOTATION_LEAVING: "true"}
    patch["metadata"]["annotations"] = annotations
    return patch


def _patch(before: ElectionRecord | None, meta: Object, spec: Object) -> Object:
    if before is not None:
        meta = {**meta, "uid": before.uid, "resourceVersion": before.version}
        return {"metadata": meta, "spec": spec}
    return LEASES.manifest(meta, spec=spec)
