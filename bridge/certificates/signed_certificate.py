"""One certificate of a node that home signs: requested, approved, stored, and renewed in time.

`SignedCertificate` keeps the certificate in a `CertificateStore`, so that a restart needs no
approval. Replicas that share the store make one request together, and each uses the certificate
that another has stored; a certificate that was lost from the store is requested again. It waits as
long as its request exists and creates it again after home's controllers have removed it (after a
day). A pending request is reported within `REPORT_SECONDS`, with the command that approves it,
unless the `Approver` or home approves it. An issued certificate stays in use past its expiry until
the next one is issued. A failure is logged as a warning and retried with backoff.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from bridge.base.progress_lines import Waiting
from bridge.certificates import signing_request
from bridge.certificates.certificate_kinds import CertificateKind
from bridge.certificates.csr_approval import Approver, NotOwnRequestError
from bridge.certificates.serving_certificate import (
    Clock,
    UseCertificate,
    renewal_time,
    sleep_until,
    utc_now,
)
from bridge.certificates.signing_outcome import (
    WAITING_FOR_APPROVAL,
    Issued,
    Rejected,
    conditions_of,
    csr_outcome,
)
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, server_context
from bridge.certificates.x509_builder import missing_names, validity
from sync.base.background_task import background_task
from sync.base.backoff import Backoff
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import AlreadyExists, KubeError, Unauthorized
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from sync.kube.client import KubeClient
from translators.object_accessors import name_of

#: First and longest delay in seconds after a failed API request.
RETRY_FIRST, RETRY_CAP = 2.0, 300.0
#: Seconds before a pending request is reported: kube-controller-manager takes a fraction of one to
#: approve what its roles permit (a bootstrap token's request, a renewal).
REPORT_SECONDS = 1.0
#: How often a key is stored while the store changes in between.
ATTEMPTS = 5
#: First and longest delay in seconds before another CertificateSigningRequest after a denied one:
#: a person has to look at each.
RECREATE_FIRST, RECREATE_CAP = 60.0, 4 * 3600.0

log = logging.getLogger(__name__)


class CertificateStore(Protocol):
    """Keeps the certificate and the key of a pending request. Methods raise CertificateError and
    KubeError."""

    async def prepare(self) -> None:
        """Checks that the store can be written."""

    async def current(self) -> TlsKeyPair | None:
        """The issued certificate with its key, or None."""

    async def keep(self, pair: TlsKeyPair) -> None:
        """Stores an issued certificate and removes the key of its request, unless another replica
        has stored the certificate or a later one."""

    async def pending(self) -> bytes | None:
        """The key of the pending request, or None."""

    async def keep_pending(self, key: bytes) -> bool:
        """Stores the key of a request before the request is created. False, and nothing is stored,
        if another replica has changed the store since `pending`."""

    async def forget_pending(self, key: bytes) -> None:
        """Removes this key of a pending request; the next request gets a new key."""

    async def wait_until_other(self, known: TlsKeyPair | None) -> None:
        """Returns once the store holds another certificate than ``known``, or none."""


class _NotIssuedError(Exception):
    """The request will not lead to a usable certificate."""


class SignedCertificate:
    """A certificate of one kind for one node; without ``addresses``, a client certificate.

    ``notify`` gets progress and instructions for the user. ``fallback`` is another client of home,
    for a request when home no longer accepts the credential of the first.
    """

    def __init__(
        self,
        home: KubeClient,
        kind: CertificateKind,
        node_name: str,
        addresses: Sequence[str],
        store: CertificateStore,
        *,
        approver: Approver,
        notify: Callable[[str], None],
        now: Clock = utc_now,
        fallback: KubeClient | None = None,
    ) -> None:
        self._home, self._fallback = home, fallback
        self._requester = home
        self._kind = kind
        self._node = node_name
        self._addresses = addresses
        self._store = store
        self._approver = approver
        self._notify = notify
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self.valid_until = ""
        """The end of the last certificate's validity, for people."""
        self._known: TlsKeyPair | None = None
        """The certificate in use, or the last one that the store had."""
        self._renew_at: datetime | None = None  # None: home has issued none
        self._failures = Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        self._rejections = Backoff(first=RECREATE_FIRST, cap=RECREATE_CAP)

    async def stored(self) -> TlsKeyPair | None:
        """The stored certificate if it is still usable. Raises CertificateError and KubeError."""
        await self._store.prepare()
        self._known = pair = await self._store.current()
        if pair is None or self._defect(pair):
            return None
        self._plan_renewal(pair)
        return pair

    async def obtain(self) -> TlsKeyPair:
        """Requests a certificate, again after each failure, and stores it."""
        issued: list[TlsKeyPair] = []
        while True:
            delay = await self._renew(issued.append)
            if issued:
                return issued[0]
            await asyncio.sleep(delay)

    async def run(self, use: UseCertificate) -> None:
        """Requests a certificate unless one is `stored`, and renews it in time, until cancelled."""
        while True:
            if self._renew_at is not None:
                await self._until_due_or_replaced(self._renew_at)
            await asyncio.sleep(await self._renew(use))

    async def _until_due_or_replaced(self, due: datetime) -> None:
        """Returns when the renewal is due, or the store holds another certificate, or none."""
        waiting = sleep_until(due, self._now)
        watching = self._store.wait_until_other(self._known)
        async with (
            background_task(waiting, name="certificate-due") as due_task,
            background_task(watching, name="certificate-replaced") as replaced_task,
        ):
            await asyncio.wait({due_task, replaced_task}, return_when=asyncio.FIRST_COMPLETED)

    async def _renew(self, use: UseCertificate) -> float:
        """Makes one attempt; returns the delay in seconds before the next step."""
        try:
            pair = await self._request()
            use(pair)
            self._known = pair
            await self._store.keep(pair)
        except _NotIssuedError as error:
            delay = self._rejections.next()
            log.warning("home: %s; another request follows in %.0f s", error, delay)
            return delay
        except (KubeError, CertificateError) as error:
            is_first = self._requester is self._home
            if isinstance(error, Unauthorized) and is_first and self._fallback is not None:
                self._requester = self._fallback
                return 0.0
            delay = self._failures.next()
            log.warning("cannot renew %s: %s; retry in %.0f s", self._kind.title, error, delay)
            return delay
        self._requester = self._home
        until = self._plan_renewal(pair)
        self._failures.reset()
        self._rejections.reset()
        self._notify(f"home: {self._kind.title} is signed by home, valid until {until}")
        return 0.0

    def _plan_renewal(self, pair: TlsKeyPair) -> str:
        """Sets when to renew the certificate; returns the end of its validity, for people."""
        begin, end = validity(pair)
        self._renew_at = renewal_time(begin, end, self._rng)
        self.valid_until = f"{end:%F %R} UTC"
        return self.valid_until

    async def _request(self) -> TlsKeyPair:
        """A certificate signed by home: one that another replica has stored, or the outcome of a
        request. Raises KubeError, CertificateError, _NotIssuedError."""
        await self._store.prepare()
        for _ in range(ATTEMPTS):
            # In this order: `keep_pending` detects every change after `pending`.
            pending = await self._store.pending()
            stored = await self._store.current()
            if stored not in (None, self._known) and not self._defect(stored):
                return stored
            key, request = await self._build_request(pending)
            if await self._store.keep_pending(key):
                break
        else:
            raise CertificateError(f"home: {self._store} was changed before each write")
        name = name_of(request)
        try:
            await self._requester.create(CERTIFICATE_SIGNING_REQUESTS, request)
        except AlreadyExists:
            log.info("home: certificate signing request %s exists already; waiting for it", name)
        outcome = await self._wait_for_outcome(request)
        if isinstance(outcome, Rejected):
            await self._store.forget_pending(key)
            raise _NotIssuedError(f"certificate signing request {name} {outcome.reason}")
        pair = TlsKeyPair(outcome.certificate, key)
        if defect := self._defect(pair):
            await self._store.forget_pending(key)
            raise _NotIssuedError(f"the certificate of signing request {name} {defect}")
        return pair

    async def _build_request(self, pending: bytes | None) -> tuple[bytes, Object]:
        """The key, which is ``pending`` or a new one, and a request with it. Raises KubeError and
        CertificateError."""
        key = pending or signing_request.generate_key()
        try:
            request = signing_request.build_csr(self._kind, key, self._node, self._addresses)
        except CertificateError:
            if pending is not None:
                await self._store.forget_pending(pending)  # the next attempt generates a key
            raise
        return key, request

    async def _wait_for_outcome(self, own: Object) -> Issued | Rejected:
        """Waits until the request is decided. Raises _NotIssuedError when it is deleted."""
        name = name_of(own)
        selector = f"metadata.name={name}"
        informer = Informer(self._requester, CERTIFICATE_SIGNING_REQUESTS, fields=selector)
        changed = asyncio.Event()
        informer.on_change(lambda *_: changed.set())
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(informer.run(), name=f"request {name}")
            await informer.synced.wait()
            approving: asyncio.Task[None] | None = None
            outcome: Issued | Rejected | None = None
            while (request := informer.store.get(Key("", name))) is not None:
                changed.clear()
                outcome = csr_outcome(request)
                if not signing_request.requests_the_same(own, request):
                    outcome = Rejected("is not the one that this bridge created")
                if outcome is not None:
                    break
                if approving is None and not conditions_of(request):
                    approving = group.create_task(self._approve_or_report(own))
                await changed.wait()
            watching.cancel()
            if approving is not None:
                approving.cancel()  # or an administrator has decided it
        if request is None or outcome is None:
            raise _NotIssuedError(f"certificate signing request {name} was deleted")
        return outcome

    async def _approve_or_report(self, request: Object) -> None:
        """Approves the request, or reports the command that does. Raises nothing."""
        name = name_of(request)
        summary = f"node {self._node}" + "".join(f", address {it}" for it in self._addresses)
        try:
            reason = await self._approver.approve(self._kind, request, summary)
        except NotOwnRequestError as error:
            log.warning("home: %s", error)
            return
        except KubeError as error:
            reason = f"this bridge cannot approve it: {error}"
        if reason is None:
            self._notify(f"home: approved certificate signing request {name}")
            return
        why = f" ({reason})" if reason else ""
        await asyncio.sleep(REPORT_SECONDS)
        self._notify(
            Waiting(f"home: {WAITING_FOR_APPROVAL} {name}{why}: kubectl certificate approve {name}")
        )

    def _defect(self, pair: TlsKeyPair) -> str:
        """Why the certificate is unusable, or ""."""
        try:
            server_context(pair, client_ca="")
            _, end = validity(pair)
            # A client certificate names no addresses, and the node in its subject.
            has_names = bool(self._addresses)
            missing = missing_names(pair, self._node, self._addresses) if has_names else []
        except CertificateError as error:
            return f"cannot be used: {error}"
        if missing:
            return f"is not valid for {', '.join(missing)}"
        return "has expired" if end <= self._now() else ""
