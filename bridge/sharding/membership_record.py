"""The record of a replica on home's Lease of shards, and what a replica knows of the others. Pure.

The Lease `shards` in home's namespace `bridge.node.lease_namespace` has an annotation for each
replica. One Lease for all, because RBAC can limit a permission to objects of known names alone, and
replicas have none. A replica writes its own annotation, by a merge patch without a precondition.

As in an election, clocks are never compared: a replica is live while its record changes within
`LEASE_SECONDS` of the observer's clock. Every field is checked: others may write the Lease too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from bridge.election.election_lease import printable
from bridge.fleet.fleet_report import Standing
from bridge.rbac.permissions import SHARDS_LEASE
from sync.kube.api_resources import LEASES
from translators.object_accessors import Object, metadata
from translators.ownership_labels import DOMAIN

NAME = SHARDS_LEASE
#: Begins the annotation of a replica; its id follows.
PREFIX = f"shard.{DOMAIN}/"
#: Seconds until a replica counts as gone whose record does not change; until one that cannot renew
#: its own has been away; and between renewals, after which such a one keeps what it knows.
LEASE_SECONDS, RENEW_DEADLINE, RENEW_SECONDS = 4.0, 3.0, 1.3
#: The most replicas and characters of a record that are read: all annotations of an object together
#: have 256 KiB.
MAX_REPLICAS, MAX_RECORD = 64, 200_000


@dataclass(frozen=True, slots=True)
class Member:
    """One replica."""

    name: str
    """For messages."""
    remotes: Mapping[str, Standing]
    """Every named remote in its configuration, by key."""

    def keys(self, *standings: Standing) -> frozenset[str]:
        """The remotes with one of these standings."""
        return frozenset(key for key, it in self.remotes.items() if it in standings)


def record_text(member: Member, *, renewal: int) -> str:
    """The value of the annotation; ``renewal`` differs each time."""
    grouped: dict[str, list[str]] = {}
    for key, standing in sorted(member.remotes.items()):
        grouped.setdefault(standing, []).append(key)
    content = {"name": member.name, "renewal": renewal, **grouped}
    return json.dumps(content, separators=(",", ":"))


def parse_record(text: object) -> Member | None:
    """The replica of the annotation; None if it is malformed."""
    if not isinstance(text, str) or len(text) > MAX_RECORD:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    remotes: dict[str, Standing] = {}
    for standing in get_args(Standing):
        keys = content.get(standing, [])
        if not isinstance(keys, list):
            return None
        remotes.update((key, standing) for key in keys if isinstance(key, str))
    return Member(printable(content.get("name") or ""), remotes)


def patch(values: Mapping[str, str | None]) -> Object:
    """The merge patch that writes records by replica; None removes one."""
    return {"metadata": {"annotations": {PREFIX + key: it for key, it in values.items()}}}


def new_lease(values: Mapping[str, str]) -> Object:
    """The Lease, where there is none."""
    annotations = {PREFIX + key: it for key, it in values.items()}
    return LEASES.manifest({"name": NAME, "annotations": annotations}, spec={})


@dataclass(slots=True)
class _Seen:
    text: object
    at: float
    """When the record last changed, by the observer's clock."""
    member: Member | None
    is_renewed: bool
    """Whether the observer saw it appear or change, unlike one that may have crashed before."""


@dataclass(slots=True)
class Observer:
    """A replica's knowledge of the others."""

    own: str
    """The id of the observer."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _has_observed: bool = False

    @property
    def is_aware(self) -> bool:
        """Whether there is a record of another replica, live or not."""
        return bool(self._seen)

    def observe(self, lease: Object | None, *, now: float) -> None:
        """Reads the Lease."""
        annotations = metadata(lease or {}).get("annotations") or {}
        found = {
            name.removeprefix(PREFIX): text
            for name, text in annotations.items()
            if name.startswith(PREFIX) and name != PREFIX + self.own
        }
        for key in self._seen.keys() - found.keys():
            del self._seen[key]
        for key in sorted(found)[:MAX_REPLICAS]:
            before, text = self._seen.get(key), found[key]
            if before is None or before.text != text:
                is_renewed = self._has_observed or before is not None
                self._seen[key] = _Seen(text, now, parse_record(text), is_renewed)
        self._has_observed = True

    def forgive(self, *, now: float) -> None:
        """Restarts the time of all replicas: this one was away, and saw no renewal."""
        for it in self._seen.values():
            it.at = now

    def live(self, *, now: float) -> Mapping[str, Member]:
        """The other replicas that renew their records, by id."""
        return {
            key: it.member
            for key, it in self._seen.items()
            if it.member is not None and it.is_renewed and now - it.at <= LEASE_SECONDS
        }

    def gone(self, *, now: float, seconds: float) -> list[str]:
        """The ids of records that did not change for that long."""
        return [key for key, it in self._seen.items() if now - it.at > seconds]
