"""Where the kubelet API's certificate comes from, and that it never ends while the bridge runs.

Three sources; each has a `first` certificate to begin with, and its `run` hands over every later
one, for the connections to come, without a restart:

- `SelfSigned`: made here, and made anew in good time.
- `Files`: read again when they have changed; while they are no pair, the old pair goes on.
- `bridge.certificates.csr_source.Requested`: signed by home.

Renewal is at 70 to 90 % of the lifetime, at random, as in client-go's util/certificate. Nothing
here ends the bridge: what fails is a warning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Protocol

from bridge.certificates.tls_key_pair import (
    CLOCK_SKEW,
    LIFETIME,
    CertificateError,
    TlsKeyPair,
    parse_pem,
    read_files,
)

#: Seconds asleep at most: timers of the loop know nothing of a clock that is set, nor of a suspend.
LOOK = 3600.0
#: Seconds between looks at the files. They are read when two looks saw the same, so that a pair is
#: not taken while one half of it is being replaced.
FILES_LOOK = 20.0
#: Seconds for making a certificate elsewhere, which takes a tenth of one.
MAKING_SECONDS = 10.0
#: Until the next try, where one that was made could not be put to use.
RETRY = timedelta(minutes=1)

Use = Callable[[TlsKeyPair], None]
Now = Callable[[], datetime]
Make = Callable[[str, Sequence[str], datetime], Awaitable[TlsKeyPair]]

log = logging.getLogger(__name__)


class CertificateSource(Protocol):
    """Where a certificate comes from."""

    @property
    def origin(self) -> str:
        """What `first` was, in words: "the kubelet API's certificate is ORIGIN"."""

    async def first(self) -> TlsKeyPair:
        """The one to begin with. Raises CertificateError."""

    async def run(self, use: Use) -> None:
        """Hands every later one to ``use``, which may raise CertificateError. Until cancelled."""


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


def renewal(begin: datetime, end: datetime, rng: random.Random) -> datetime:
    """When to get the next one after one that is good from ``begin`` to ``end``."""
    return begin + (end - begin) * rng.uniform(0.7, 0.9)


async def sleep_until(moment: datetime, now: Now) -> None:
    """Sleeps until the clock says so, also where that is set meanwhile."""
    # NB: no event tells that the clock was set.
    while (left := (moment - now()).total_seconds()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, LOOK))


async def create_self_signed(node_name: str, addresses: Sequence[str], now: datetime) -> TlsKeyPair:
    """One that `bridge.certificates.x509_builder` makes, in a process of its own.

    The key comes over a pipe. Where no process can be started, it is made here.
    """
    with contextlib.suppress(OSError, TimeoutError):
        # -P: what lies in the working folder is not ours.
        command = (sys.executable, "-P", "-m", "bridge.certificates.x509_builder", now.isoformat())
        process = await asyncio.create_subprocess_exec(
            *command, node_name, *addresses, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
        )
        try:
            async with asyncio.timeout(MAKING_SECONDS):
                said, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode == 0 and (pair := parse_pem(said)) is not None:
            return pair
    from bridge.certificates import x509_builder

    return x509_builder.self_signed(node_name, addresses, now=now)


class SelfSignedSource:
    """Certificates that are made and signed here. ``make`` is `self_signed`."""

    def __init__(
        self,
        node_name: str,
        addresses: Sequence[str],
        *,
        now: Now = utc_now,
        make: Make = create_self_signed,
    ) -> None:
        self._node = node_name
        self._addresses = addresses
        self._now = now
        self._make = make
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self._due = now()
        self.origin = "self-signed; API servers that check it need --serving-certificate csr"

    async def first(self) -> TlsKeyPair:
        """A new one."""
        now = self._now()
        self._due = renewal(now - CLOCK_SKEW, now + LIFETIME, self._rng)
        return await self._make(self._node, self._addresses, now)

    async def run(self, use: Use) -> None:
        """Makes the next one in good time."""
        while True:
            await sleep_until(self._due, self._now)
            try:
                use(await self.first())
            except CertificateError as error:
                log.warning("the serving certificate stays as it was: %s", error)
                self._due = self._now() + RETRY


class FileSource:
    """A certificate and its key, in files that somebody else keeps."""

    def __init__(self, certificate: Path, key: Path, *, every: float = FILES_LOOK) -> None:
        self._certificate = certificate
        self._key = key
        self._every = every
        self.origin = f"that of {certificate}"
        self._used: object = None

    async def first(self) -> TlsKeyPair:
        """What they hold now. Raises CertificateError."""
        self._used = self._look()
        return read_files(self._certificate, self._key)

    async def run(self, use: Use) -> None:
        """Takes up what they hold when they have changed. A bad pair is told once."""
        last = self._used
        while True:
            await asyncio.sleep(self._every)
            before, last = last, await asyncio.to_thread(self._look)
            if last == self._used or last != before:
                continue
            self._used = last
            try:
                use(await asyncio.to_thread(read_files, self._certificate, self._key))
            except CertificateError as error:
                log.warning("the serving certificate stays as it was: %s", error)
            else:
                log.info("the serving certificate was read again from %s", self._certificate)

    def _look(self) -> object:
        return [_seen(path) for path in (self._certificate, self._key)]


def _seen(path: Path) -> object:
    """What differs when a file was written or replaced; None when it is not there."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
