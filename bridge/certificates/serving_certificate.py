"""Sources of the kubelet API's serving certificate, and its rotation without a restart.

A `CertificateSource` returns its `first` certificate; its `run` passes every later one on, which
the server uses for new connections:

- `SelfSignedSource` creates and renews self-signed certificates.
- `FileSource` reloads files when they change; an invalid pair leaves the previous one in use.
- `bridge.certificates.csr.CsrSource` has home sign certificates.

Renewal happens at 70 to 90 % of the validity, at random, as in client-go's util/certificate. A
failure is logged as a warning and retried; it never ends the bridge.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from bridge.certificates.tls_key_pair import (
    CLOCK_SKEW,
    LIFETIME,
    CertificateError,
    TlsKeyPair,
    read_files,
)
from bridge.certificates.x509_builder import self_signed

#: Maximum sleep in seconds: the event loop's timers ignore clock changes and suspends.
MAX_SLEEP = 3600.0
#: Seconds between checks of the files. Changed files are read after two equal checks, so that a
#: half-replaced pair is not used.
FILES_INTERVAL = 20.0
#: Delay before the next certificate where one could not be loaded.
RETRY = timedelta(minutes=1)

UseCertificate = Callable[[TlsKeyPair], None]
Clock = Callable[[], datetime]

log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    """Provides the serving certificate and its replacements."""

    @property
    def origin(self) -> str:
        """Completes the sentence "the kubelet API's certificate is ..." for `first`'s result."""

    async def first(self) -> TlsKeyPair:
        """The certificate to start with. Raises CertificateError."""

    async def run(self, use: UseCertificate) -> None:
        """Passes later certificates to ``use``, which may raise CertificateError. Runs until
        cancelled."""


def utc_now() -> datetime:
    return datetime.now(UTC)


def renewal_time(begin: datetime, end: datetime, rng: random.Random) -> datetime:
    """When to renew a certificate that is valid from ``begin`` to ``end``."""
    return begin + (end - begin) * rng.uniform(0.7, 0.9)


async def sleep_until(moment: datetime, now: Clock) -> None:
    """Sleeps until the wall clock reaches ``moment``, also when the clock is changed."""
    # There is no event for a change of the clock.
    while (left := (moment - now()).total_seconds()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, MAX_SLEEP))


class SelfSignedSource:
    """Creates self-signed certificates."""

    def __init__(self, node_name: str, addresses: Sequence[str], *, now: Clock = utc_now) -> None:
        self._node = node_name
        self._addresses = addresses
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self._due = now()
        self.origin = (
            "self-signed; API servers that verify it need --serving-certificate auto or csr"
        )

    async def first(self) -> TlsKeyPair:
        now = self._now()
        self._due = renewal_time(now - CLOCK_SKEW, now + LIFETIME, self._rng)
        return self_signed(self._node, self._addresses, now=now)

    async def run(self, use: UseCertificate) -> None:
        while True:
            await sleep_until(self._due, self._now)
            try:
                use(await self.first())
            except CertificateError as error:
                log.warning("the previous serving certificate stays in use: %s", error)
                self._due = self._now() + RETRY


class FileSource:
    """A certificate and its key in files that something else maintains."""

    def __init__(self, certificate: Path, key: Path, *, interval: float = FILES_INTERVAL) -> None:
        self._certificate = certificate
        self._key = key
        self._interval = interval
        self.origin = f"that of {certificate}"
        self._used: object = None

    async def first(self) -> TlsKeyPair:
        """The current content of the files. Raises CertificateError."""
        self._used = self._fingerprint()
        return read_files(self._certificate, self._key)

    async def run(self, use: UseCertificate) -> None:
        """Reloads the files when they change. An invalid pair is logged once."""
        last = self._used
        while True:
            await asyncio.sleep(self._interval)
            before, last = last, await asyncio.to_thread(self._fingerprint)
            if last == self._used or last != before:
                continue
            self._used = last
            try:
                use(await asyncio.to_thread(read_files, self._certificate, self._key))
            except CertificateError as error:
                log.warning("the previous serving certificate stays in use: %s", error)
            else:
                log.info("the serving certificate was reloaded from %s", self._certificate)

    def _fingerprint(self) -> object:
        return [_file_fingerprint(path) for path in (self._certificate, self._key)]


def _file_fingerprint(path: Path) -> object:
    """Changes when the file is written or replaced; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
