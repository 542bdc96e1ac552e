"""Where the kubelet API's certificate comes from, and that it never ends while the bridge runs.

Three sources; each has a `first` certificate to begin with, and its `run` hands over every later
one, for the connections to come, without a restart:

- `SelfSigned`: made here, and made anew in good time.
- `Files`: read again when they have changed; while they are no pair, the old pair goes on.
- `Requested`: signed by home (`bridge.kubelet.signing`). Until somebody approves the request, and
  where it is refused, a self-signed one is served. What home issued is kept in a folder, so that a
  restart needs no approval.

Renewal is at 70 to 90 % of the lifetime, at random, as in client-go's util/certificate. A request
waits as long as it exists; one that home's controllers have removed (after a day) is made again.
A certificate that ends before the next one is there goes on: who checks it refuses a self-signed
one too. Nothing here ends the bridge: what fails is a warning, and is tried ever more seldom.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bridge.kubelet.certdir import CertDir
from bridge.kubelet.certificate import (
    CertificateError,
    ServingCertificate,
    from_files,
    lacking,
    lifetime,
    self_signed,
    server_context,
)
from bridge.kubelet.signing import Issued, Pending, Refused, new_key, outcome, signing_request
from sync.backoff import Backoff
from sync.informer import Informer
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, KubeError
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from sync.store import Key
from translators.types import name_of

#: Seconds asleep at most: timers of the loop know nothing of a clock that is set, nor of a suspend.
LOOK = 3600.0
#: Seconds between looks at the files. They are read when two looks saw the same, so that a pair is
#: not taken while one half of it is being replaced.
FILES_LOOK = 20.0
#: Seconds that a request may be pending before a person is asked: approvers need less.
HINT_AFTER = 2.0
#: Seconds before home is asked again after a failure, and at most.
RETRY_FIRST, RETRY_CAP = 2.0, 300.0
#: Seconds before another request after one that was refused, and at most: each is for a person.
ASK_FIRST, ASK_CAP = 60.0, 4 * 3600.0

Use = Callable[[ServingCertificate], None]
Now = Callable[[], datetime]

log = logging.getLogger(__name__)


class ServingSource(Protocol):
    """Where a certificate comes from."""

    @property
    def origin(self) -> str:
        """What `first` was, in words: "the kubelet API's certificate is ORIGIN"."""

    def first(self) -> ServingCertificate:
        """The one to begin with. Raises CertificateError."""

    async def run(self, use: Use) -> None:
        """Hands every later one to ``use``, which may raise CertificateError. Until cancelled."""


def state_folder(home_id: str, node_name: str) -> Path:
    """Where programs keep what is to outlive them (XDG Base Directory Specification).

    Raises CertificateError where the user has no home.
    """
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise CertificateError("this user has no home folder; give --cert-dir") from error
    return Path(state, "cluster-bridge", "serving", home_id, node_name)


def _until(pair: ServingCertificate) -> str:
    return f"{lifetime(pair)[1]:%F %R} UTC"


def _now() -> datetime:
    return datetime.now(UTC)


def renewal(pair: ServingCertificate, rng: random.Random) -> datetime:
    """When to get the next one."""
    begin, end = lifetime(pair)
    return begin + (end - begin) * rng.uniform(0.7, 0.9)


async def _sleep_until(moment: datetime, now: Now) -> None:
    # NB: no event tells that the clock was set.
    while (left := (moment - now()).total_seconds()) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left, LOOK))


class SelfSigned:
    """Certificates that are made and signed here."""

    def __init__(self, node_name: str, addresses: Sequence[str], *, now: Now = _now) -> None:
        self._node = node_name
        self._addresses = addresses
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self._pair = self._made()
        self.origin = "self-signed; API servers that check it need --serving-certificate csr"

    def _made(self) -> ServingCertificate:
        return self_signed(self._node, self._addresses, now=self._now())

    def first(self) -> ServingCertificate:
        """A new one."""
        return self._pair

    async def run(self, use: Use) -> None:
        """Makes the next one in good time."""
        while True:
            await _sleep_until(renewal(self._pair, self._rng), self._now)
            self._pair = self._made()
            use(self._pair)


class Files:
    """A certificate and its key, in files that somebody else keeps."""

    def __init__(self, certificate: Path, key: Path, *, every: float = FILES_LOOK) -> None:
        self._certificate = certificate
        self._key = key
        self._every = every
        self.origin = f"that of {certificate}"
        self._used: object = None

    def first(self) -> ServingCertificate:
        """What they hold now. Raises CertificateError."""
        self._used = self._look()
        return from_files(self._certificate, self._key)

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
                use(await asyncio.to_thread(from_files, self._certificate, self._key))
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


class _NotIssued(Exception):
    """A request that will not be answered by a certificate of use."""


class Requested:
    """Certificates that home signs. ``told`` gets what a person has to know or to do."""

    def __init__(
        self,
        home: KubeClient,
        node_name: str,
        addresses: Sequence[str],
        folder: CertDir,
        *,
        told: Callable[[str], None],
        now: Now = _now,
    ) -> None:
        self._home = home
        self._node = node_name
        self._addresses = addresses
        self._folder = folder
        self._told = told
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self.origin = "self-signed until home has signed one"
        self._due: datetime | None = None  # when the one that home issued is to be renewed
        self._trouble = Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        self._refusals = Backoff(first=ASK_FIRST, cap=ASK_CAP)

    def first(self) -> ServingCertificate:
        """What home issued before, where that is still good; else one of our own.

        Raises CertificateError when the folder cannot be used.
        """
        self._folder.prepare()
        kept = self._folder.current()
        if kept is not None and not self._fault(kept):
            self._due = renewal(kept, self._rng)
            self.origin = f"one of home's, good until {_until(kept)}"
            return kept
        return self_signed(self._node, self._addresses, now=self._now())

    async def run(self, use: Use) -> None:
        """Asks for one, waits for it, and asks for the next in good time."""
        while True:
            if self._due is not None:
                await _sleep_until(self._due, self._now)
            await asyncio.sleep(await self._renewed(use))

    async def _renewed(self, use: Use) -> float:
        """Tries it; how many seconds to wait before the next step."""
        try:
            pair = await self._asked()
            use(pair)
            await asyncio.to_thread(self._folder.keep, pair)
        except _NotIssued as error:
            wait = self._refusals.next()
            log.warning("home: %s; another is made in %.0f s", error, wait)
            return wait
        except (KubeError, CertificateError) as error:
            wait = self._trouble.next()
            log.warning("the serving certificate: %s; next try in %.0f s", error, wait)
            return wait
        self._due = renewal(pair, self._rng)
        self._trouble.reset()
        self._refusals.reset()
        self._told(
            f"home: the kubelet API's certificate is one of home's, good until {_until(pair)}"
        )
        return 0.0

    async def _asked(self) -> ServingCertificate:
        """One that home has signed. Raises KubeError, CertificateError and _NotIssued."""
        key = self._folder.pending() or new_key()
        try:
            request = signing_request(key, self._node, self._addresses)
        except CertificateError:
            self._folder.forget_pending()  # the next try is with another
            raise
        await asyncio.to_thread(self._folder.keep_pending, key)
        name = name_of(request)
        try:
            await self._home.create(CERTIFICATE_SIGNING_REQUESTS, request)
        except AlreadyExists:
            log.info("certificate signing request %s is taken up again", name)
        answer = await self._answer(name)
        if isinstance(answer, Refused):
            self._folder.forget_pending()
            raise _NotIssued(f"certificate signing request {name} {answer.why}")
        pair = ServingCertificate(answer.certificate, key)
        if fault := self._fault(pair):
            self._folder.forget_pending()
            raise _NotIssued(f"what was issued for certificate signing request {name} {fault}")
        return pair

    async def _answer(self, name: str) -> Issued | Refused:
        """Waits for what becomes of the request. Raises _NotIssued when it is removed."""
        selector = f"metadata.name={name}"
        informer = Informer(self._home, CERTIFICATE_SIGNING_REQUESTS, fields=selector)
        changed = asyncio.Event()
        informer.on_change(lambda *_: changed.set())
        hint = asyncio.get_running_loop().call_later(HINT_AFTER, self._hint, name)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(informer.run(), name=f"request {name}")
                await informer.synced.wait()
                while True:
                    changed.clear()
                    found = informer.store.get(Key("", name))
                    answer = outcome(found) if found is not None else None
                    if not isinstance(answer, Pending):
                        break
                    await changed.wait()
                watching.cancel()
        finally:
            hint.cancel()
        if answer is None:
            raise _NotIssued(f"certificate signing request {name} was removed")
        return answer

    def _hint(self, name: str) -> None:
        self._told(
            f"home: waiting for the approval of certificate signing request {name}: "
            f"kubectl certificate approve {name}"
        )

    def _fault(self, pair: ServingCertificate) -> str:
        """Why it is of no use, or nothing."""
        try:
            server_context(pair, client_ca="")
            missing = lacking(pair, self._node, self._addresses)
            end = lifetime(pair)[1]
        except CertificateError as error:
            return f"cannot be used: {error}"
        if missing:
            return f"is not good for {', '.join(missing)}"
        return "has expired" if end <= self._now() else ""
