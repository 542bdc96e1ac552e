"""The ordered history of changes, which watches follow.

One counter assigns the resource versions of all changes of all resources. Objects in events are
immutable: a write creates another object.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from sync.kube.api_resources import Object
from tests.fakeapi import api_errors
from tests.fakeapi.resource_registry import Kind


@dataclass(frozen=True, slots=True)
class Change:
    """One write: ``old`` is None for a create, ``new`` is None for a removal."""

    revision: int
    kind: Kind
    namespace: str
    old: Object | None
    new: Object | None
    last: Object
    """The object in a watch event: the new one, or the last state with the version of the
    removal."""


@dataclass(slots=True, eq=False)
class Follower:
    """One reader of the history."""

    pending: deque[Change | Object] = field(default_factory=deque)
    """Changes, and events that are no changes, such as bookmarks, in order."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class History:
    """The changes since the last compaction, and their followers."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        """Watches from versions before this one get 410."""
        self._changes: list[Change] = []
        self._followers: set[Follower] = set()

    def record(self, change: Change) -> None:
        """Adds a change and notifies all followers."""
        self._changes.append(change)
        for follower in self._followers:
            follower.pending.append(change)
            follower.wake.set()

    def follow(self, since: int) -> Follower:
        """A follower of all changes after the version. Raises ApiErrorResponse: 410 if the version
        is compacted, 504 if it is in the future."""
        if since < self.compacted:
            raise api_errors.expired(f"too old resource version: {since} ({self.compacted})")
        if since > self.revision:
            raise api_errors.too_new(since, self.revision)
        follower = Follower(deque(c for c in self._changes if c.revision > since))
        if follower.pending:
            follower.wake.set()
        self._followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """Removes a follower."""
        self._followers.discard(follower)

    def compact(self) -> None:
        """Drops all changes up to now."""
        self._changes.clear()
        self.compacted = self.revision
