"""Reads the source volume of a transfer in the background, for the digests of its files.

The read begins as soon as the source's pod runs, while the target's still starts, and goes on
beside the copy. That no file has changed since then is verified after the copy, by the times of
change (ctime), which no program can set, and which change with each write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.base.command_error import PreflightError
from bridge.volumes import transfer_shell
from bridge.volumes.content_scan import ContentScan
from bridge.volumes.progress_meter import Meter
from sync.kube.client import KubeClient
from translators.object_accessors import Object


class SourceRead:
    """The content of the source volume, as far as it is known."""

    def __init__(
        self, home: KubeClient, pod: Object, meter: Meter, entries: ContentScan, digest: str
    ) -> None:
        self.pod = pod
        self.entries = entries
        """All entries, without digests."""
        self.digest = digest
        """The program that computes digests."""
        self._home = home
        self._meter = meter
        self._contents = asyncio.create_task(self._read())

    async def contents(self) -> ContentScan:
        """All entries with digests. Raises PreflightError and KubeError."""
        return await asyncio.shield(self._contents)

    async def check_unchanged(self) -> None:
        """Raises PreflightError if an entry has changed since `reading` began, and KubeError."""
        now = await _entries(self._home, self.pod, self._meter)
        if not now.equals(self.entries):
            raise PreflightError(
                "home: the source changed while it was copied; it keeps its data, and nothing was "
                "moved. Stop what writes to the volume, and run the command again"
            )

    async def stop(self) -> None:
        self._contents.cancel()
        await asyncio.wait({self._contents})
        if not self._contents.cancelled():
            self._contents.exception()  # It was raised by `contents`, or an earlier failure counts.

    async def _read(self) -> ContentScan:
        return await transfer_shell.repeated(
            self._meter,
            lambda: transfer_shell.scan(self._home, self.pod, self.digest),
        )


@asynccontextmanager
async def reading(home: KubeClient, pod: Object, meter: Meter) -> AsyncIterator[SourceRead]:
    """Lists the source's entries, and reads their contents in the background for the duration of
    the block. Raises PreflightError and KubeError."""
    entries = await _entries(home, pod, meter)
    digest = await transfer_shell.repeated(meter, lambda: transfer_shell.fastest_digest(home, pod))
    source = SourceRead(home, pod, meter, entries, digest)
    try:
        yield source
    finally:
        await source.stop()


async def _entries(home: KubeClient, pod: Object, meter: Meter) -> ContentScan:
    return await transfer_shell.repeated(meter, lambda: transfer_shell.scan(home, pod))
