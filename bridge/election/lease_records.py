"""Records on the Lease of an election: annotations by which one holder tells the next what it did.

They are written with the renewals that are made anyway. A holder writes those that it set itself,
and leaves the others as they are; a Lease that is made again gets all that were last seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping


class LeaseRecords:
    """The records, as one candidate of the election knows them."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._own: dict[str, str] = {}
        # Replaced when a renewal has succeeded.
        self._renewed = asyncio.Event()
        self.write_requested = asyncio.Event()
        """Set where a record is not to wait for the next renewal."""

    @property
    def all(self) -> Mapping[str, str]:
        """By annotation: what holders before have left, and what this one has set."""
        return {**self._seen, **self._own}

    @property
    def own(self) -> Mapping[str, str]:
        """What this holder has set."""
        return self._own

    async def write(self, annotation: str, text: str, *, now: bool = False) -> None:
        """Sets a record, and waits until the Lease has it: with the next renewal, or ``now``. Only
        for the holder, while it renews the Lease."""
        self._own[annotation] = text
        while self._seen.get(annotation) != text:
            if now:
                self.write_requested.set()
            await self._renewed.wait()

    def observe(self, found: Mapping[str, str]) -> None:
        """The Lease has these, and is not this candidate's."""
        self._seen = dict(found)
        self._own.clear()

    def confirm(self, found: Mapping[str, str]) -> None:
        """The Lease has these after a renewal of this candidate's."""
        self._seen = dict(found)
        self._renewed.set()
        self._renewed = asyncio.Event()
