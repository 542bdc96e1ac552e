"""What the Lease of an election says, and what follows from it: pure functions.

The Lease is `cluster-bridge-NODE`, beside that of the Node itself. Whoever is its
``holderIdentity`` serves the node, for as long as it renews it. Nobody's wall clock counts: a
candidate takes the Lease from another when it has not seen it change for as long as the Lease is to
last, by its own clock, and writes on condition that it still has not changed (its version).

The Lease outlives the Node: it holds records of what bridges have done in the remote, which the
next bridge needs after somebody has deleted the Node.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sync.kube.resources import LEASES
from translators.identity import DOMAIN
from translators.names import truncated_name
from translators.objects import Object, metadata, uid_of
from translators.timestamps import format_micro_time

#: Seconds that the Lease lasts, until which its holder must have renewed it or writes no more, and
#: between its renewals. As in client-go each is greater than the next: what lies between the first
#: two is for what the holder had sent by then.
LEASE_SECONDS, RENEW_DEADLINE, RENEW_SECONDS = 4, 3.0, 1.3
#: On the Lease, for people: who holds it.
ANNOTATION_HOLDER = f"{DOMAIN}/holder"
#: On a Lease that `bridge leave` holds: the node goes, and its bridges are to end.
ANNOTATION_LEAVING = f"{DOMAIN}/leaving"
#: On the Lease: its holder does not reach the remote; and the candidate that does, and asks for it.
ANNOTATION_REMOTE_LOST, ANNOTATION_REQUESTED_BY = f"{DOMAIN}/remote-lost", f"{DOMAIN}/asked-by"

#: All of them: what else of ours is on the Lease are records.
_ELECTION = frozenset(
    {ANNOTATION_HOLDER, ANNOTATION_LEAVING, ANNOTATION_REMOTE_LOST, ANNOTATION_REQUESTED_BY}
)

_PREFIX = "cluster-bridge-"
#: Characters of a holder that are shown.
_SHOWN = 200


def election_lease_name(node: str) -> str:
    """The Lease by which the bridges of this virtual node elect one of them."""
    return truncated_name(_PREFIX + node, unique=node)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One process that may hold the Lease."""

    identity: str
    """Of this process alone."""
    display_name: str
    """For people."""

    @staticmethod
    def local(address: str = "") -> Candidate:
        """This process, and the address that people find it by."""
        host = socket.gethostname()
        at = f" at {address}" if address else ""
        return Candidate(f"{host}_{uuid.uuid4()}", f"{host} (pid {os.getpid()}){at}")


@dataclass(frozen=True, slots=True)
class ElectionRecord:
    """What the Lease says."""

    uid: str
    version: str
    holder: str
    """"" where nobody holds it."""
    holder_name: str
    duration_seconds: float
    transitions: int
    leaving: bool
    has_owner: bool
    """Whether it goes with another object, as an earlier release had it go with the Node."""
    remote_lost: bool = False
    """Whether its holder does not reach the remote."""
    requested_by: str = ""
    """The candidate that does, and asks for the Lease; "" where there is none."""
    records: Mapping[str, str] = field(default_factory=dict)
    """Its other annotations of ours: the records (`bridge.election.lease_records`)."""


def parse_lease(lease: Object) -> ElectionRecord:
    """What it says, whatever somebody has written there."""
    spec, meta = lease.get("spec") or {}, metadata(lease)
    annotations = meta.get("annotations") or {}
    holder = str(spec.get("holderIdentity") or "")
    said = str(annotations.get(ANNOTATION_HOLDER) or "") or holder.partition("_")[0]
    return ElectionRecord(
        uid=uid_of(lease),
        version=str(meta.get("resourceVersion") or ""),
        holder=holder,
        holder_name="".join(letter for letter in said if letter.isprintable())[:_SHOWN],
        duration_seconds=float(spec.get("leaseDurationSeconds") or 0),
        transitions=int(spec.get("leaseTransitions") or 0),
        leaving=ANNOTATION_LEAVING in annotations,
        has_owner=bool(meta.get("ownerReferences")),
        remote_lost=ANNOTATION_REMOTE_LOST in annotations,
        requested_by=str(annotations.get(ANNOTATION_REQUESTED_BY) or ""),
        records={
            name: str(value)
            for name, value in annotations.items()
            if name.startswith(f"{DOMAIN}/") and name not in _ELECTION
        },
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """What a candidate knows of the Lease."""

    record: ElectionRecord | None
    """None: it does not exist."""
    free_at: float
    """When it may be taken, by the candidate's clock."""
    holder_is_live: bool = False
    """Whether its holder was seen to renew it."""


def observe(
    previous: Observation | None,
    record: ElectionRecord | None,
    *,
    candidate: str,
    now: float,
    node_exists: bool,
) -> Observation:
    """What is known after the Lease was seen so. ``served``: there is a Node of the name, so that a
    Lease that is missing at the first look may have been deleted under another bridge."""
    if record is None:
        if previous is None:
            return Observation(None, now + LEASE_SECONDS if node_exists else now)
        return Observation(None, previous.free_at)  # Its holder may not know yet.
    if record.holder in ("", candidate):
        return Observation(record, now)
    known = previous.record if previous is not None else None
    if previous is not None and known is not None and _same(known, record):
        return previous
    alive = known is not None and known.holder == record.holder
    return Observation(record, now + max(record.duration_seconds, LEASE_SECONDS), alive)


def _same(one: ElectionRecord, other: ElectionRecord) -> bool:
    return (one.uid, one.version) == (other.uid, other.version)


def holder_patch(
    before: ElectionRecord | None,
    candidate: Candidate,
    *,
    remote_lost: bool = False,
    records: Mapping[str, str] | None = None,
) -> Object:
    """The patch, or without a Lease the object, that makes it the candidate's, or renews it. With
    its UID and version, it meets no other state. ``lost``: the candidate does not reach the remote.
    ``notes``: the records that it is to have, by annotation."""
    now = format_micro_time(datetime.now(UTC))
    spec: Object = {
        "holderIdentity": candidate.identity,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": now,
    }
    meta: Object = {}
    there = before.records if before is not None else {}
    marks: Object = {
        name: value for name, value in (records or {}).items() if there.get(name) != value
    }
    if before is None or before.holder != candidate.identity:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = before.transitions + 1 if before is not None else 0
        marks[ANNOTATION_HOLDER] = candidate.display_name
        if before is not None and before.leaving:
            marks[ANNOTATION_LEAVING] = None
    if remote_lost != (before is not None and before.remote_lost):
        marks[ANNOTATION_REMOTE_LOST] = "true" if remote_lost else None
    if before is not None and before.requested_by and not remote_lost:
        marks[ANNOTATION_REQUESTED_BY] = None
    if marks:
        meta["annotations"] = marks
    if before is not None and before.has_owner:
        meta["ownerReferences"] = None
    return _patch(before, meta, spec)


def release_patch(before: ElectionRecord) -> Object:
    """The patch that makes it nobody's."""
    gone: Object = {ANNOTATION_HOLDER: None}
    for there, name in (
        (before.leaving, ANNOTATION_LEAVING),
        (before.remote_lost, ANNOTATION_REMOTE_LOST),
        (before.requested_by, ANNOTATION_REQUESTED_BY),
    ):
        if there:
            gone[name] = None
    return _patch(before, {"annotations": gone}, {"holderIdentity": None})


def request_patch(before: ElectionRecord, candidate: Candidate) -> Object:
    """The patch by which a candidate asks the holder for it."""
    return _patch(before, {"annotations": {ANNOTATION_REQUESTED_BY: candidate.identity}}, {})


def leave_patch(before: ElectionRecord, candidate: Candidate) -> Object:
    """As `held`, by a `bridge leave`, of which all bridges of the node are to know."""
    patch = holder_patch(before, candidate)
    annotations = {ANNOTATION_HOLDER: candidate.display_name, ANNOTATION_LEAVING: "true"}
    patch["metadata"]["annotations"] = annotations
    return patch


def _patch(before: ElectionRecord | None, meta: Object, spec: Object) -> Object:
    if before is not None:
        return {
            "metadata": {**meta, "uid": before.uid, "resourceVersion": before.version},
            "spec": spec,
        }
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": meta,
        "spec": spec,
    }
