"""Serving certificates that home signs (`bridge.certificates.csr`): asked for, waited for, renewed.

Until somebody approves the request, and where it is refused, a self-signed one is served. What home
issued is kept in a folder, so that a restart needs no approval. A request waits as long as it
exists; one that home's controllers have removed (after a day) is made again. A certificate that
ends before the next one is there goes on: who checks it refuses a self-signed one too. What fails
is a warning, and is tried ever more seldom.

A bridge imports this only when it is to have such a certificate
(`bridge.certificates.x509_builder`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime

from bridge.certificates.cert_dir import CertDir
from bridge.certificates.certificate_sources import Now, Use, renewal, sleep_until, utc_now
from bridge.certificates.csr import Issued, Pending, Rejected, build_csr, csr_outcome, generate_key
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, server_context
from bridge.certificates.x509_builder import missing_names, self_signed, validity
from sync.base.backoff import Backoff
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.client import KubeClient
from sync.kube.errors import AlreadyExists, KubeError
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS
from translators.objects import name_of

#: Seconds that a request may be pending before a person is asked: approvers need less.
HINT_AFTER = 2.0
#: Seconds before home is asked again after a failure, and at most.
RETRY_FIRST, RETRY_CAP = 2.0, 300.0
#: Seconds before another request after one that was refused, and at most: each is for a person.
ASK_FIRST, ASK_CAP = 60.0, 4 * 3600.0

log = logging.getLogger(__name__)


def _until(pair: TlsKeyPair) -> str:
    return f"{validity(pair)[1]:%F %R} UTC"


class _NotIssued(Exception):
    """A request that will not be answered by a certificate of use."""


class CsrSource:
    """Certificates that home signs. ``told`` gets what a person has to know or to do."""

    def __init__(
        self,
        home: KubeClient,
        node_name: str,
        addresses: Sequence[str],
        folder: CertDir,
        *,
        report: Callable[[str], None],
        now: Now = utc_now,
    ) -> None:
        self._home = home
        self._node = node_name
        self._addresses = addresses
        self._folder = folder
        self._told = report
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self.origin = "self-signed until home has signed one"
        self._due: datetime | None = None  # when the one that home issued is to be renewed
        self._trouble = Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        self._refusals = Backoff(first=ASK_FIRST, cap=ASK_CAP)

    async def first(self) -> TlsKeyPair:
        """What home issued before, where that is still good; else one of our own.

        Raises CertificateError when the folder cannot be used.
        """
        self._folder.prepare()
        kept = self._folder.current()
        if kept is not None and not self._fault(kept):
            self._due = renewal(*validity(kept), self._rng)
            self.origin = f"one of home's, good until {_until(kept)}"
            return kept
        return self_signed(self._node, self._addresses, now=self._now())

    async def run(self, use: Use) -> None:
        """Asks for one, waits for it, and asks for the next in good time."""
        while True:
            if self._due is not None:
                await sleep_until(self._due, self._now)
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
        self._due = renewal(*validity(pair), self._rng)
        self._trouble.reset()
        self._refusals.reset()
        self._told(
            f"home: the kubelet API's certificate is one of home's, good until {_until(pair)}"
        )
        return 0.0

    async def _asked(self) -> TlsKeyPair:
        """One that home has signed. Raises KubeError, CertificateError and _NotIssued."""
        key = self._folder.pending() or generate_key()
        try:
            request = build_csr(key, self._node, self._addresses)
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
        if isinstance(answer, Rejected):
            self._folder.forget_pending()
            raise _NotIssued(f"certificate signing request {name} {answer.reason}")
        pair = TlsKeyPair(answer.certificate, key)
        if fault := self._fault(pair):
            self._folder.forget_pending()
            raise _NotIssued(f"what was issued for certificate signing request {name} {fault}")
        return pair

    async def _answer(self, name: str) -> Issued | Rejected:
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
                    answer = csr_outcome(found) if found is not None else None
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

    def _fault(self, pair: TlsKeyPair) -> str:
        """Why it is of no use, or nothing."""
        try:
            server_context(pair, client_ca="")
            missing = missing_names(pair, self._node, self._addresses)
            end = validity(pair)[1]
        except CertificateError as error:
            return f"cannot be used: {error}"
        if missing:
            return f"is not good for {', '.join(missing)}"
        return "has expired" if end <= self._now() else ""
