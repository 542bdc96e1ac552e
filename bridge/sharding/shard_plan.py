"""Decides which remotes one replica runs, from the records of all replicas. Pure.

A replica runs the remotes that are assigned to it, and keeps one that it serves until the replica
that should serve it stands by with full caches: releasing the node's election Lease then hands the
node over without a gap. Of all others it has nothing in memory. It takes over from a live replica a
few remotes at a time, and all at once after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from bridge.fleet.fleet_report import Standing
from bridge.sharding.assignment import assign
from bridge.sharding.membership_record import Member

#: Remotes that a replica takes over from live ones at the same time: each fills its caches.
MAX_MOVES = 4


@dataclass(frozen=True, slots=True)
class Share:
    """The remotes that one replica runs."""

    run: frozenset[str]
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Names of the replicas that serve, or should serve, the other remotes."""


def plan_share(
    own: str,
    members: Mapping[str, Member],
    running: Set[str],
    *,
    stalled: Set[str] = frozenset(),
) -> Share:
    """The share of the replica ``own``, one of the live ``members``, which runs ``running`` now.

    ``stalled``: remotes whose takeover takes long, and delays no other.
    """
    offers = {key: frozenset(it.remotes) for key, it in members.items()}
    unable = {key: it.keys("unable", "lost") for key, it in members.items()}
    assigned = assign(offers, unable)
    mine, others = members[own], {key: it for key, it in members.items() if key != own}
    served = {key: id_ for id_, it in others.items() for key in it.keys("serving")}
    left = {key: id_ for id_, it in others.items() for key in it.keys("left")}
    moves = len(
        [
            key
            for key in running
            if assigned.get(key) == own
            and key in served
            and key not in stalled
            and mine.remotes.get(key) == "starting"
        ]
    )
    run: set[str] = set()
    elsewhere: dict[str, str] = {}
    for key in mine.remotes:
        owner = assigned[key]
        if key in left and key not in running:
            elsewhere[key] = members[left[key]].name
        elif owner != own:
            if key in running and _keeps(mine.remotes[key], members[owner].remotes[key]):
                run.add(key)
            else:
                elsewhere[key] = members[served.get(key, owner)].name
        elif key in running or key not in served:
            run.add(key)
        elif moves < MAX_MOVES:
            moves += 1
            run.add(key)
        else:
            elsewhere[key] = members[served[key]].name
    return Share(frozenset(run), elsewhere)


def _keeps(mine: Standing, owner: Standing) -> bool:
    """Whether a replica keeps a remote that another one should serve."""
    return mine in ("serving", "lost", "left") and owner not in ("ready", "serving")
