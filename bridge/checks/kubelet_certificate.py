"""Checks of the kubelet API's certificate, and of whether home's API server accepts it.

Whether an API server verifies kubelets' certificates (--kubelet-certificate-authority) shows only
when it connects: `_through_home` has it do so. What that server reports about the certificate
decides how bad the other findings about it are.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum

from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, read_files
from bridge.checks.context import CheckContext, Implementation
from bridge.checks.report import Finding, error, info, ok, warning
from bridge.clusters.bridge_address import find_bridge_address
from bridge.node import join_record
from bridge.rbac import permissions
from sync.kube.errors import ApiError, Forbidden, KubeError
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS, NODES
from translators.objects import Object, name_of
from translators.timestamps import format_time
from translators.translation_policy import HostPort

#: Seconds for a connection from here.
CONNECT = 3.0
#: A serving certificate that nobody renews is warned of when it has no longer to live.
EXPIRY_WARNING = timedelta(days=7)
#: How Go's crypto/tls and crypto/x509, of which an API server is made, begin such an error.
_NOT_TRUSTED = re.compile(r"tls: failed to verify certificate|x509: ")


class Verdict(Enum):
    """What home's API server makes of the certificate."""

    ACCEPTED = "accepted"
    """It reaches the kubelet API, whether or not it verifies it."""
    REJECTED = "rejected"
    """It verifies it, and does not trust it."""
    UNKNOWN = "unknown"


async def kubelet_api(subject: CheckContext) -> list[Finding]:
    """BRG401 of a node that exists: asked through home's API server, as kubectl logs is."""
    at = _endpoint(subject.existing_node)
    if at is None:
        return [error("BRG401", "home", "the node does not tell where its kubelet API is")]
    refused = await _through_home(subject)
    if refused is None:
        return [ok("BRG401", "home", f"home's API server reaches it at {at}")]
    if isinstance(refused, Forbidden) and refused.reason == "Forbidden":
        said = "not checked: the credential may not get nodes/proxy at home"
        return [info("BRG401", "home", said)]
    if _verdict(refused) is Verdict.REJECTED:
        said = f"home's API server verifies the certificate at {at} and rejects it"
        hint = await _remedy(subject)
        return [error("BRG401", "home", f"{said}: {refused.message}", hint)]
    said = f"home's API server does not reach it at {at}: {refused.message}"
    return [error("BRG401", "home", said)]


async def _through_home(subject: CheckContext) -> ApiError | None:
    """What home's API server answers to a request for the kubelet API; None where that works."""
    path = NODES.path(subject.name, subresource="proxy/healthz")
    try:
        await subject.home_client.read(path, timeout=permissions.REQUEST_SECONDS)
    except ApiError as refused:
        return refused
    return None


def _verdict(refused: ApiError | None) -> Verdict:
    if refused is None:
        return Verdict.ACCEPTED
    return Verdict.REJECTED if _NOT_TRUSTED.search(refused.message) else Verdict.UNKNOWN


async def _remedy(subject: CheckContext) -> str:
    """How to get a certificate that home's API server trusts, by where the bridge's is from."""
    match join_record.certificate_source(subject.existing_node):
        case "files":
            return (
                "replace --tls-cert-file and --tls-private-key-file with a certificate of the "
                "authority in home's --kubelet-certificate-authority, for the node's address; a "
                "running bridge reads the files again"
            )
        case "csr":
            pending = await _pending(subject)
            names = " ".join(pending) or "NAME"
            listed = "" if pending else " (`kubectl get csr` has the name)"
            return f"approve the bridge's request: `kubectl certificate approve {names}`{listed}"
    return (
        "join with --serving-certificate csr and approve the request that it names with `kubectl "
        "certificate approve`, or join with --tls-cert-file and --tls-private-key-file"
    )


async def _pending(subject: CheckContext) -> list[str]:
    """The node's requests that nobody has decided; none where they may not be listed."""
    from bridge.certificates.csr import SIGNER, Pending, csr_outcome, is_csr_of_node

    selector = f"spec.signerName={SIGNER}"
    try:
        found = (
            await subject.home_client.list(CERTIFICATE_SIGNING_REQUESTS, fields=selector)
        ).items
    except KubeError:
        return []
    ours = (it for it in found if is_csr_of_node(it, subject.name))
    return [name_of(it) for it in ours if isinstance(csr_outcome(it), Pending)]


def _endpoint(node: Object) -> HostPort | None:
    """The address of the kubelet API in the Node's status."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    for known in status.get("addresses") or ():
        if known.get("type") == "InternalIP" and port:
            return HostPort(str(known["address"]), int(port))
    return None


# -- what is served ------------------------------------------------------------------------


async def served_certificate(subject: CheckContext) -> list[Finding]:
    """BRG402 to BRG404 of a node that exists, by a connection from here."""
    at = _endpoint(subject.existing_node)
    if at is None:
        return []
    der, verdict = await asyncio.gather(_certificate_at(at), _verdict_of(subject))
    if der is None:
        return [info("BRG402", "home", f"not checked: {at} cannot be reached from here")]
    pair = TlsKeyPair(ssl.DER_cert_to_PEM_cert(der).encode(), b"")
    return list(_of_certificate(pair, subject.name, at.host, verdict))


async def _verdict_of(subject: CheckContext) -> Verdict:
    if subject.unavailable("home"):
        return Verdict.UNKNOWN
    try:
        return _verdict(await _through_home(subject))
    except KubeError:
        return Verdict.UNKNOWN


async def _certificate_at(at: HostPort) -> bytes | None:
    """What is shown there, verified by nobody; None where nothing answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT):
            _, writer = await asyncio.open_connection(at.host, at.port, ssl=context)
    except (OSError, TimeoutError):
        return None
    shown: ssl.SSLObject = writer.get_extra_info("ssl_object")
    der = shown.getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT):
            await writer.wait_closed()
    return der


async def certificate_files(subject: CheckContext) -> list[Finding]:
    """BRG402 to BRG404 before a join, of the files that are named."""
    settings = subject.settings
    if settings.certificate is None or settings.key is None:
        if settings.serving == "csr":
            return [ok("BRG404", "home", "home is to sign it, when somebody approves")]
        return [info("BRG404", "home", "the bridge signs it itself; most API servers do not check")]
    try:
        pair = await asyncio.to_thread(read_files, settings.certificate, settings.key)
    except CertificateError as bad:
        return [error("BRG402", "home", str(bad))]
    here = settings.address
    if here is None and subject.home.client is not None:
        here = await find_bridge_address(subject.home_client)
    return list(_of_certificate(pair, subject.name, here or "", Verdict.UNKNOWN))


def _of_certificate(pair: TlsKeyPair, node: str, host: str, verdict: Verdict) -> Iterator[Finding]:
    from bridge.certificates import x509_builder as making

    begin, end = making.validity(pair)
    now = datetime.now(UTC)
    until = format_time(end)
    if end <= now:
        yield error("BRG402", "home", f"it has expired, at {until}")
    elif begin > now:
        yield error("BRG402", "home", f"it is not good before {begin:%Y-%m-%dT%H:%M:%SZ}")
    elif end - now < EXPIRY_WARNING:
        yield warning("BRG402", "home", f"it is good until {until} only")
    else:
        yield ok("BRG402", "home", f"it is good until {until}")
    missing = making.missing_names(pair, node, [host] if host else [])
    if missing:
        yield warning("BRG403", "home", f"it is not good for {', '.join(missing)}")
    else:
        yield ok("BRG403", "home", "it is good for the node's name and address")
    yield _issuer(pair, verdict)


def _issuer(pair: TlsKeyPair, verdict: Verdict) -> Finding:
    """BRG404."""
    from cryptography import x509

    leaf = x509.load_pem_x509_certificate(pair.certificate)
    if leaf.issuer != leaf.subject:
        by = f"signed by {leaf.issuer.rfc4514_string()}"
        if verdict is Verdict.REJECTED:
            return warning("BRG404", "home", f"{by}; home's API server rejects it (see BRG401)")
        return ok("BRG404", "home", by)
    if verdict is Verdict.REJECTED:
        return error("BRG404", "home", "it is self-signed, and home's API server verifies it")
    if verdict is Verdict.ACCEPTED:
        return info("BRG404", "home", "it is self-signed; home's API server does not verify it")
    return info("BRG404", "home", "it is self-signed; most API servers do not check it")


IMPLEMENTATIONS = (
    Implementation("BRG401", kubelet_api, ("home", "node")),
    Implementation("BRG402", served_certificate, ("node",)),
    Implementation("BRG402", certificate_files, (), only_before_join=True),
)
