"""Assigns remotes to replicas by rendezvous hashing. Pure.

Each remote ranks the replicas by a hash of both names, and goes to the first. A replica has at most
its fair share, rounded up: what exceeds it goes to the next in the remote's rank. All replicas
compute the same result from the same members. When a replica comes or goes, about its share moves.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Set


def assign(
    offers: Mapping[str, Set[str]], unable: Mapping[str, Set[str]] | None = None
) -> Mapping[str, str]:
    """The replica of each remote.

    ``offers``: the remotes in the configuration of each live replica. ``unable``: those that a
    replica has just failed to serve; they go to the next in rank that is able, whatever its share,
    and move no other remote. Where no replica is able, the first keeps the remote.
    """
    takers: dict[str, list[str]] = {}
    for replica, remotes in offers.items():
        for remote in remotes:
            takers.setdefault(remote, []).append(replica)
    failing = unable or {}
    share = -(-len(takers) // max(len(offers), 1))
    load = Counter[str]()
    assigned: dict[str, str] = {}
    # In the order of a hash, so that no remote loses its first choice by its name.
    for remote in sorted(takers, key=lambda it: (_hash(it), it)):
        ranked = rank(remote, takers[remote])
        first = next((it for it in ranked if load[it] < share), ranked[0])
        load[first] += 1
        able = (it for it in (first, *ranked) if remote not in failing.get(it, ()))
        assigned[remote] = next(able, first)
    return assigned


def rank(remote: str, replicas: Iterable[str]) -> list[str]:
    """The replicas in the order in which the remote prefers them."""
    return sorted(replicas, key=lambda it: (_hash(it, remote), it), reverse=True)


def _hash(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode()).digest()
