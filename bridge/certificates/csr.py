"""Obtains serving certificates that home signs, with CertificateSigningRequests.

The request follows the signer ``kubernetes.io/kubelet-serving``
(k8s.io/kubernetes/pkg/apis/certificates/helpers.go): organization ``system:nodes``, common name
``system:node:NAME``, the node's name and addresses, and the usages of an ECDSA key. Its name is
derived from the key and the requested names, so that a retry after a restart or a lost response
finds the same object. No built-in controller approves it; a person or a program has to.

`CsrSource` serves a self-signed certificate until home has issued one, and keeps an issued one in a
`CertDir`, so that a restart needs no approval. It waits as long as the request exists and creates
it again after home's controllers have removed it (after a day). An issued certificate stays in use
past its expiry until the next one is issued: clients that verify it reject a self-signed one too. A
failure is logged as a warning and retried with backoff.

This module imports `cryptography` (`bridge.base.memory_savings`): only bridges that need it import
it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bridge.certificates.cert_dir import CertDir
from bridge.certificates.serving_certificate import (
    Clock,
    UseCertificate,
    renewal_time,
    sleep_until,
    utc_now,
)
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, server_context
from bridge.certificates.x509_builder import (
    key_pem,
    missing_names,
    self_signed,
    subject,
    subject_alternative_name,
    validity,
)
from sync.base.backoff import Backoff
from sync.cache.informer import Informer
from sync.cache.store import Key
from sync.kube.api_errors import AlreadyExists, KubeError
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from sync.kube.client import KubeClient
from translators.object_accessors import name_of

SIGNER = "kubernetes.io/kubelet-serving"
#: Usages of an ECDSA key; an RSA key would need "key encipherment" too.
USAGES = ("digital signature", "server auth")
#: A request's name: this prefix, the node's name, and this many hexadecimal digits of a hash.
_PREFIX, DIGEST_LENGTH = "kubelet-serving-", 10
#: Characters of the node's name in the request's name, which may have 253 in all.
_NODE_NAME_LENGTH = 200

#: Seconds that a request may be pending before the hint how to approve it.
HINT_AFTER = 2.0
#: First and longest delay in seconds after a failed API request.
RETRY_FIRST, RETRY_CAP = 2.0, 300.0
#: First and longest delay in seconds before another CertificateSigningRequest after a denied one:
#: a person has to look at each.
RECREATE_FIRST, RECREATE_CAP = 60.0, 4 * 3600.0

log = logging.getLogger(__name__)

# -- the CertificateSigningRequest (pure) ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Issued:
    """The request is signed: the certificate and its chain (PEM)."""

    certificate: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request was denied, or the signer failed; it will not be signed."""

    reason: str


def generate_key() -> bytes:
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def build_csr(key: bytes, node_name: str, addresses: Sequence[str]) -> Object:
    """The CertificateSigningRequest. Raises CertificateError for a key that is not ECDSA in PEM."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError("the stored key of the pending request is not valid PEM") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise CertificateError("the stored key of the pending request is not an ECDSA key")
    names = subject_alternative_name(node_name, addresses)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(node_name))
        .add_extension(names, critical=False)
        .sign(private, hashes.SHA256())
    )
    public_key = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(b"\0".join([public_key, names.public_bytes()])).hexdigest()
    name = f"{request_name_prefix(node_name)}{digest[:DIGEST_LENGTH]}"
    spec = {
        "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
        "signerName": SIGNER,
        "usages": list(USAGES),
    }
    return CERTIFICATE_SIGNING_REQUESTS.manifest({"name": name}, spec=spec)


def request_name_prefix(node_name: str) -> str:
    """The names of the node's CertificateSigningRequests without the digest."""
    return f"{_PREFIX}{node_name[:_NODE_NAME_LENGTH]}-"


def is_csr_of_node(request: Object, node_name: str) -> bool:
    """Whether `build_csr` named this CertificateSigningRequest for the node."""
    name, dash, digest = name_of(request).rpartition("-")
    return name + dash == request_name_prefix(node_name) and len(digest) == DIGEST_LENGTH


async def list_csrs_of_node(home: KubeClient, node_name: str) -> list[Object]:
    """The CertificateSigningRequests of the node's bridges. Raises KubeError."""
    selector = f"spec.signerName={SIGNER}"
    found = await home.list(CERTIFICATE_SIGNING_REQUESTS, fields=selector)
    return [it for it in found.items if is_csr_of_node(it, node_name)]


def csr_outcome(request: Object) -> Issued | Rejected | None:
    """The outcome in the request's status; None while it is not decided, or approved and not signed
    yet."""
    status = request.get("status") or {}
    conditions = {str(it.get("type")): it for it in status.get("conditions") or []}
    for kind, text in (("Denied", "was denied"), ("Failed", "cannot be signed")):
        if kind in conditions:
            causes = (conditions[kind].get(part) for part in ("reason", "message"))
            return Rejected(f"{text}: " + (", ".join(filter(None, causes)) or "no reason is given"))
    encoded = status.get("certificate")
    if "Approved" not in conditions or not encoded:
        return None
    try:
        return Issued(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return Rejected("was signed, but status.certificate is not base64")


# -- the source ------------------------------------------------------------------------------------


class _NotIssuedError(Exception):
    """The request will not lead to a usable certificate."""


class CsrSource:
    """A `CertificateSource` of certificates that home signs.

    ``notify`` gets progress and instructions for the user.
    """

    def __init__(
        self,
        home: KubeClient,
        node_name: str,
        addresses: Sequence[str],
        directory: CertDir,
        *,
        notify: Callable[[str], None],
        now: Clock = utc_now,
    ) -> None:
        self._home = home
        self._node = node_name
        self._addresses = addresses
        self._directory = directory
        self._notify = notify
        self._now = now
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret
        self.origin = "self-signed until home has signed one"
        self._renew_at: datetime | None = None  # None: home has issued none
        self._failures = Backoff(first=RETRY_FIRST, cap=RETRY_CAP)
        self._rejections = Backoff(first=RECREATE_FIRST, cap=RECREATE_CAP)

    async def first(self) -> TlsKeyPair:
        """The stored certificate if it is still usable, else a self-signed one.

        Raises CertificateError when the directory cannot be used.
        """
        self._directory.prepare()
        stored = self._directory.current()
        if stored is not None and not self._defect(stored):
            self._renew_at = renewal_time(*validity(stored), self._rng)
            self.origin = f"signed by home, valid until {_expiry(stored)}"
            return stored
        return self_signed(self._node, self._addresses, now=self._now())

    async def run(self, use: UseCertificate) -> None:
        """Requests a certificate, waits for it, and renews it in time."""
        while True:
            if self._renew_at is not None:
                await sleep_until(self._renew_at, self._now)
            await asyncio.sleep(await self._renew(use))

    async def _renew(self, use: UseCertificate) -> float:
        """Makes one attempt; returns the delay in seconds before the next step."""
        try:
            pair = await self._request()
            use(pair)
            await asyncio.to_thread(self._directory.keep, pair)
        except _NotIssuedError as error:
            delay = self._rejections.next()
            log.warning("home: %s; another request follows in %.0f s", error, delay)
            return delay
        except (KubeError, CertificateError) as error:
            delay = self._failures.next()
            log.warning("cannot renew the serving certificate: %s; retry in %.0f s", error, delay)
            return delay
        self._renew_at = renewal_time(*validity(pair), self._rng)
        self._failures.reset()
        self._rejections.reset()
        self._notify(
            f"home: the kubelet API's certificate is signed by home, valid until {_expiry(pair)}"
        )
        return 0.0

    async def _request(self) -> TlsKeyPair:
        """A certificate signed by home. Raises KubeError, CertificateError, _NotIssuedError."""
        key = self._directory.pending() or generate_key()
        try:
            request = build_csr(key, self._node, self._addresses)
        except CertificateError:
            self._directory.forget_pending()  # the next attempt generates a key
            raise
        await asyncio.to_thread(self._directory.keep_pending, key)
        name = name_of(request)
        try:
            await self._home.create(CERTIFICATE_SIGNING_REQUESTS, request)
        except AlreadyExists:
            log.info("home: certificate signing request %s exists already; waiting for it", name)
        outcome = await self._wait_for_outcome(name)
        if isinstance(outcome, Rejected):
            self._directory.forget_pending()
            raise _NotIssuedError(f"certificate signing request {name} {outcome.reason}")
        pair = TlsKeyPair(outcome.certificate, key)
        if defect := self._defect(pair):
            self._directory.forget_pending()
            raise _NotIssuedError(f"the certificate of signing request {name} {defect}")
        return pair

    async def _wait_for_outcome(self, name: str) -> Issued | Rejected:
        """Waits until the request is decided. Raises _NotIssuedError when it is deleted."""
        selector = f"metadata.name={name}"
        informer = Informer(self._home, CERTIFICATE_SIGNING_REQUESTS, fields=selector)
        changed = asyncio.Event()
        informer.on_change(lambda *_: changed.set())
        hint = (
            f"home: waiting for the approval of certificate signing request {name}: "
            f"kubectl certificate approve {name}"
        )
        timer = asyncio.get_running_loop().call_later(HINT_AFTER, self._notify, hint)
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(informer.run(), name=f"request {name}")
                await informer.synced.wait()
                outcome = None
                while (request := informer.store.get(Key("", name))) is not None:
                    if (outcome := csr_outcome(request)) is not None:
                        break
                    changed.clear()
                    await changed.wait()
                watching.cancel()
        finally:
            timer.cancel()
        if request is None or outcome is None:
            raise _NotIssuedError(f"certificate signing request {name} was deleted")
        return outcome

    def _defect(self, pair: TlsKeyPair) -> str:
        """Why the certificate is unusable, or ""."""
        try:
            server_context(pair, client_ca="")
            missing = missing_names(pair, self._node, self._addresses)
            end = validity(pair)[1]
        except CertificateError as error:
            return f"cannot be used: {error}"
        if missing:
            return f"is not valid for {', '.join(missing)}"
        return "has expired" if end <= self._now() else ""


def _expiry(pair: TlsKeyPair) -> str:
    return f"{validity(pair)[1]:%F %R} UTC"
