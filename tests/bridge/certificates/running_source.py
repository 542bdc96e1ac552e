"""Runs a certificate source and records the certificates that it passes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from bridge.certificates.serving_certificate import CertificateSource
from bridge.certificates.tls_key_pair import TlsKeyPair, server_context

NODE, ADDRESS = "virtual", "192.0.2.7"
START = datetime(2026, 1, 1, tzinfo=UTC)


class UsedPairs(list[TlsKeyPair]):
    """The certificates that a source has passed on, each loaded as by the server."""

    def __call__(self, pair: TlsKeyPair) -> None:
        server_context(pair, client_ca="")
        self.append(pair)


@asynccontextmanager
async def running_source(source: CertificateSource) -> AsyncIterator[UsedPairs]:
    """Runs the source while the block runs."""
    used = UsedPairs()
    task = asyncio.create_task(source.run(used))
    try:
        yield used
    finally:
        task.cancel()
        (error,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(error, asyncio.CancelledError), error
