"""Records on the Lease of an election: annotations by which a holder passes state to the next.

They are written with the renewals. A holder writes the records that it set, and keeps the others; a
Lease that is created again gets all records last seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping


class LeaseRecords:
    """The records that one candidate knows."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._own: dict[str, str] = {}
        # Replaced after each successful renewal.
        self._renewed = asyncio.Event()
        self.write_requested = asyncio.Event()
        """Set when a record must not wait for the next renewal."""

    @property
    def all(self) -> Mapping[str, str]:
        """By annotation: the records of earlier holders, and of this one."""
        return {**self._seen, **self._own}

    @property
    def own(self) -> Mapping[str, str]:
        """The records that this holder set."""
        return self._own

    async def write(self, annotation: str, text: str, *, now: bool = False) -> None:
        """Sets a record and waits until it is on the Lease: at the next renewal, or ``now``. Only
        for the holder, while it renews the Lease."""
        self._own[annotation] = text
        while self._seen.get(annotation) != text:
            if now:
                self.write_requested.set()
            await self._renewed.wait()

    def observe(self, records: Mapping[str, str]) -> None:
        """The records of a Lease that this candidate does not hold."""
        self._seen = dict(records)
        self._own.clear()

    def confirm(self, records: Mapping[str, str]) -> None:
        """The records of the Lease after this candidate's renewal."""
        self._seen = dict(records)
        self._renewed.set()
        self._renewed = asyncio.Event()
