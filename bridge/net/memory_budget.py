"""Bounds the bytes that the requests of a server hold in memory, bodies and responses alike.

When all together hold more than the limit, the connection that holds most is aborted: callers that
send or leave unread much data end each other, and never a caller with a small request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web


class MemoryBudget:
    """At most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._shares: set[MemoryShare] = set()

    @contextmanager
    def share(self, request: web.BaseRequest) -> Iterator[MemoryShare]:
        """The share of the request while the block runs; empty at first."""
        share = MemoryShare(self, request.transport)
        try:
            yield share
        finally:
            self._release(share)

    def add(self, share: MemoryShare, size: int) -> None:
        """Adds to the total, and aborts connections until it is within the limit."""
        self._total += size
        self._shares.add(share)
        if not share.size:
            self._shares.discard(share)
        while self._total > self._limit:
            largest = max(self._shares, key=lambda it: it.size)
            self._release(largest)
            largest.abort()

    def _release(self, share: MemoryShare) -> None:
        if share in self._shares:
            self._shares.discard(share)
            self._total -= share.size


class MemoryShare:
    """The bytes of one request or connection. The owner holds 0 bytes at the end."""

    __slots__ = ("_budget", "_is_aborted", "_transport", "size")

    def __init__(self, budget: MemoryBudget, transport: asyncio.Transport | None) -> None:
        self._budget = budget
        self._transport = transport
        self._is_aborted = False
        self.size = 0

    def hold(self, size: int) -> None:
        """The request holds these bytes from now on. Raises ConnectionAbortedError if that, or
        another request before, has ended its connection."""
        if not self._is_aborted:
            change, self.size = size - self.size, size
            self._budget.add(self, change)
        if self._is_aborted and size:
            raise ConnectionAbortedError("the requests hold too much memory")

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()
