"""An ownership record of remote namespaces, kept in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sync.namespaces.namespace_ownership import OwnershipEntries


class MemoryRecord:
    """The record of one virtual node, which outlives engines."""

    def __init__(self, *, fresh: bool = False) -> None:
        self.own: frozenset[str] | None = None
        self.others: frozenset[str] = frozenset()
        self.fresh = fresh
        self.adopts = False
        self.peers: list[MemoryRecord] = []
        """The records of other virtual nodes of the home."""
        self.answers = asyncio.Event()
        """Writes wait for this event."""
        self.answers.set()
        self.writes = 0

    async def read(self) -> OwnershipEntries:
        """The entries that were written last."""
        others = self.others.union(*(it.own or () for it in self.peers))
        return OwnershipEntries(self.own, others, fresh=self.fresh, adopts=self.adopts)

    async def write(self, entries: Collection[str]) -> None:
        """Replaces the entries."""
        await asyncio.sleep(0.002)
        await self.answers.wait()
        self.own = frozenset(entries)
        self.writes += 1
