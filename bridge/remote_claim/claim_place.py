"""Finds the claim of a virtual node among the namespaces of the remote that may have it.

The claim is in kube-node-lease where the credential may write Leases there, else in the first
prepared namespace by name. It stays where it was made as long as that is one of these, whatever the
permissions and prepared namespaces of later joins. So that two bridges of one home never hold two
claims in different namespaces:

- Home records the namespace with the claim (`bridge.remote_claim.claim_record.HomeRecord`).
- Every other prepared namespace, and kube-node-lease where it may be written, gets a marker that
  names the namespace.
- A bridge looks into all of these before it takes a claim, and moves one that it holds in another
  namespace. A claim that it is led to and may not
  read is *hidden*: the bridge does not run until a person grants the permission, or states the id
  of that claim with ``--take-over-claim``.

Not found is a claim of which neither home nor a readable namespace knows: one in kube-node-lease
that a bridge without prepared namespaces took after the state that this home is in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from bridge.node.node_lease import LEASE_NAMESPACE, request_lease
from bridge.rbac import permissions
from bridge.remote_claim import claim_record
from bridge.remote_claim.claim_record import Claim, HomeRecord
from sync.kube.api_errors import Forbidden, MalformedResponse, NotFound
from sync.kube.client import KubeClient
from translators.virtual_node_identity import Identity

#: Timeout of a request, in seconds.
REQUEST_SECONDS = 5.0
#: Namespaces to which markers lead and that are not known otherwise. A bridge leaves one at most.
MAX_FOLLOWED = 8


@dataclass(frozen=True, slots=True)
class ClaimPlaces:
    """The namespaces in which a bridge looks for the claim."""

    preferred: str = LEASE_NAMESPACE
    """Where a new claim is made."""
    others: tuple[str, ...] = ()
    """Where a marker is made."""

    @property
    def all(self) -> tuple[str, ...]:
        """All of them."""
        return (self.preferred, *self.others)


class HiddenClaim(NamedTuple):
    """A claim that the credential may not read; its id as far as it is known, else ""."""

    namespace: str
    id: str


@dataclass(frozen=True, slots=True)
class FoundLeases:
    """The result of a search."""

    claims: list[Claim]
    markers: list[Claim]
    hidden: list[HiddenClaim]

    def at(self, namespace: str) -> Claim | None:
        """The claim or marker in the namespace."""
        both = (*self.claims, *self.markers)
        return next((it for it in both if it.namespace == namespace), None)

    @property
    def latest(self) -> Claim | None:
        """The claim with the highest number; None if there is none."""
        return max(self.claims, key=lambda it: it.sequence, default=None)

    def undecided(self, take_over: str) -> HiddenClaim | None:
        """A hidden claim that is not the one to take over; None if there is none."""
        return next((it for it in self.hidden if not it.id or it.id != take_over), None)


async def select_claim_places(remote: KubeClient, prepared: Collection[str]) -> ClaimPlaces:
    """The namespaces for this credential, whatever the order of ``prepared``. Raises KubeError."""
    if not prepared:
        return ClaimPlaces()
    names = tuple(sorted(prepared))
    if await permissions.are_granted(remote, permissions.REMOTE_CLAIM):
        return ClaimPlaces(LEASE_NAMESPACE, names)
    return ClaimPlaces(names[0], names[1:])


async def find_claims(
    remote: KubeClient, identity: Identity, places: ClaimPlaces, record: HomeRecord
) -> FoundLeases:
    """Reads the Leases of the claim's name in all places, in the namespace that home recorded, and
    in those to which markers lead. Raises KubeError: MalformedResponse if the markers lead to more
    than `MAX_FOLLOWED` others."""
    found = FoundLeases([], [], [])
    last_id = record.ids[0] if record.ids else ""
    # The id of the claim to look for in each namespace, as far as it is known.
    led = dict.fromkeys(places.all, "")
    if record.known_namespace:
        led[record.known_namespace] = last_id
    limit = len(led) + MAX_FOLLOWED
    seen = set[str]()
    while names := [it for it in led if it not in seen]:
        seen.update(names)
        leases = await asyncio.gather(*(_read(remote, identity, name) for name in names))
        for name, lease in zip(names, leases, strict=True):
            if isinstance(lease, Forbidden):
                found.hidden.append(HiddenClaim(name, led[name]))
            elif lease is not None and lease.marker is not None:
                found.markers.append(lease)
                led.setdefault(*lease.marker)
            elif lease is not None:
                found.claims.append(lease)
        if len(led) > limit:
            raise MalformedResponse(
                f"markers of the claim lead to more than {MAX_FOLLOWED} namespaces",
                side=remote.side,
                what=f"Lease {claim_record.claim_lease_name(identity)}",
            )
    return found


def namespace_of_claim(found: FoundLeases, record: HomeRecord, places: ClaimPlaces) -> str:
    """The namespace of the claim to take: the recorded one, the latest, or a new one."""
    recorded = found.at(record.known_namespace)
    if recorded is not None and recorded.marker is None:
        return recorded.namespace
    return found.latest.namespace if found.latest is not None else places.preferred


async def write_markers(
    reader: KubeClient,
    writer: KubeClient,
    identity: Identity,
    namespaces: Collection[str],
    record: HomeRecord,
) -> Claim | None:
    """Makes the Leases in these namespaces lead to the claim that home holds by ``record``, also
    stale claims of this home. Returns a claim that is another home's instead, if one was made
    meanwhile. Raises KubeError."""
    others = [it for it in namespaces if it != record.namespace]
    if not others:
        return None
    found = await find_claims(reader, identity, ClaimPlaces(others[0], tuple(others[1:])), record)
    for claim in found.claims:
        if claim.namespace != record.namespace and claim_record.objection(claim, record):
            return claim
    for namespace in others:
        existing = found.at(namespace)
        marker = existing.marker if existing is not None else None
        if marker == (record.namespace, record.ids[0]):
            continue
        is_new = existing is None
        await request_lease(
            writer,
            "POST" if is_new else "PATCH",
            "" if is_new else claim_record.claim_lease_name(identity),
            namespace=namespace,
            seconds=REQUEST_SECONDS,
            body=claim_record.marker_patch(existing, identity, record),
        )
    return None


async def _read(remote: KubeClient, identity: Identity, namespace: str) -> Claim | Forbidden | None:
    name = claim_record.claim_lease_name(identity)
    try:
        lease = await request_lease(
            remote, "GET", name, namespace=namespace, seconds=REQUEST_SECONDS
        )
    except NotFound:
        return None
    except Forbidden as error:
        return error
    return claim_record.parse_claim(lease)


def hidden_message(hidden: HiddenClaim, identity: Identity, places: ClaimPlaces) -> str:
    """Why a hidden claim keeps the bridge from running, and what to do."""
    name = claim_record.claim_lease_name(identity)
    text = (
        f"remote: the claim on node {identity.node} is in Lease {hidden.namespace}/{name}, which "
        "this credential may not read, so another bridge could serve the node unnoticed; grant "
        f"get, create and patch of Leases in {hidden.namespace}"
    )
    if not hidden.id:
        return text
    return (
        f"{text}, or, if no other bridge serves the node (that of a restored or cloned home, for "
        f"instance), join with --take-over-claim {hidden.id}: the claim then moves to namespace "
        f"{places.preferred}"
    )
