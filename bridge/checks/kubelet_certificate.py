"""Checks of the kubelet API's certificate, and of whether home's API server accepts it.

Whether an API server verifies kubelet certificates (--kubelet-certificate-authority) shows only
when it connects (`CheckContext.kubelet_api_error`). Its response decides the severity of the other
findings about the certificate.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509

from bridge.base.join_settings import ServingCertificate
from bridge.certificates import x509_builder
from bridge.certificates.certificate_kinds import SERVING
from bridge.certificates.signing_outcome import csr_outcome, list_csrs_of_node
from bridge.certificates.tls_key_pair import CertificateError, TlsKeyPair, read_files
from bridge.checks.check_context import CheckContext, Implementation
from bridge.checks.findings import Finding, error, info, not_checked, ok, warning
from bridge.node import join_record
from sync.kube.api_errors import ApiError, Forbidden, KubeError
from translators.object_accessors import Object, name_of
from translators.timestamps import format_time
from translators.translation_options import HostPort

#: Timeout in seconds of a connection from this machine.
CONNECT_SECONDS = 3.0
#: Remaining lifetime of a serving certificate that is a warning.
EXPIRY_WARNING = timedelta(days=7)
#: The beginning of such an error of Go's crypto/tls and crypto/x509, which API servers use.
_NOT_TRUSTED = re.compile(r"tls: failed to verify certificate|x509: ")
#: The certificate of a join to come, by the signer.
_BEFORE_JOIN: Mapping[ServingCertificate, str] = {
    "auto": "self-signed; the bridge requests one from home if home's API server verifies it",
    "csr": "home signs it once its request is approved",
    "self-signed": "self-signed; most API servers do not verify it",
}
#: How home's API server judges the certificate. "accepted": it reaches the kubelet API, whether or
#: not it verifies the certificate; "rejected": it verifies the certificate, and does not trust it.
Verdict = Literal["accepted", "rejected", "unknown"]


async def check_kubelet_api(context: CheckContext) -> list[Finding]:
    """BRG401 of an existing node: a request through home's API server, as for kubectl logs."""
    at = _endpoint(context.existing_node)
    if at is None:
        return [error("BRG401", "home", "the Node has no address of a kubelet API")]
    refused = await context.kubelet_api_error()
    if refused is None:
        return [ok("BRG401", "home", f"home's API server reaches it at {at}")]
    if isinstance(refused, Forbidden) and refused.reason == "Forbidden":
        return [not_checked("BRG401", "home", "the credential may not get nodes/proxy at home")]
    if _verdict(refused) == "rejected":
        text = f"home's API server verifies the certificate at {at} and rejects it"
        hint = await _remedy(context)
        return [error("BRG401", "home", f"{text}: {refused.message}", hint)]
    text = f"home's API server does not reach it at {at}: {refused.message}"
    return [error("BRG401", "home", text)]


def _verdict(refused: ApiError | None) -> Verdict:
    if refused is None:
        return "accepted"
    return "rejected" if _NOT_TRUSTED.search(refused.message) else "unknown"


async def _remedy(context: CheckContext) -> str:
    """How to get a certificate that home's API server trusts, by the source of the current one."""
    match join_record.certificate_source(context.existing_node):
        case "files":
            return (
                "replace --tls-cert-file and --tls-private-key-file with a certificate of the "
                "authority in home's --kubelet-certificate-authority, for the node's address; a "
                "running bridge reads the files again"
            )
        case "self-signed":
            return (
                "join without --serving-certificate self-signed and approve the request that the "
                "bridge then creates, or join with --tls-cert-file and --tls-private-key-file"
            )
    pending = await _pending_csrs(context)
    names = " ".join(pending) or "NAME"
    listed = "" if pending else " (`kubectl get csr` has the name)"
    return f"approve the bridge's request: `kubectl certificate approve {names}`{listed}"


async def _pending_csrs(context: CheckContext) -> list[str]:
    """The undecided requests of the node; empty if they cannot be listed."""
    try:
        found = await list_csrs_of_node(context.home_client, SERVING, context.name)
    except KubeError:
        return []
    return [name_of(it) for it in found if csr_outcome(it) is None]


def _endpoint(node: Object) -> HostPort | None:
    """The address of the kubelet API in the Node's status."""
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    for known in status.get("addresses") or ():
        if known.get("type") == "InternalIP" and port:
            return HostPort(str(known["address"]), int(port))
    return None


# -- what is served ------------------------------------------------------------------------


async def check_served_certificate(context: CheckContext) -> list[Finding]:
    """BRG402 to BRG404 of an existing node, by a connection from this machine."""
    at = _endpoint(context.existing_node)
    if at is None:
        return []
    served, verdict = await asyncio.gather(_certificate_at(at), _verdict_of(context))
    if served is None:
        return [not_checked("BRG402", "home", f"this machine does not reach {at}")]
    pair = TlsKeyPair(served.encode(), b"")
    return list(_of_certificate(pair, context.name, at.host, verdict))


async def _verdict_of(context: CheckContext) -> Verdict:
    if context.unavailable("home"):
        return "unknown"
    try:
        return _verdict(await context.kubelet_api_error())
    except KubeError:
        return "unknown"


async def _certificate_at(at: HostPort) -> str | None:
    """The certificate (PEM) served there, unverified; None if nothing responds."""
    try:
        return await asyncio.to_thread(
            ssl.get_server_certificate, (at.host, at.port), timeout=CONNECT_SECONDS
        )
    except (OSError, UnicodeError):  # the latter for an empty label, or one that is too long
        return None


async def check_certificate_files(context: CheckContext) -> list[Finding]:
    """BRG402 to BRG404 before a join, of the configured files."""
    settings = context.settings
    if settings.certificate is None or settings.key is None:
        return [info("BRG404", "home", _BEFORE_JOIN[settings.serving])]
    try:
        pair = await asyncio.to_thread(read_files, settings.certificate, settings.key)
    except CertificateError as bad:
        return [error("BRG402", "home", str(bad))]
    known = settings.address or context.home.client is not None
    address = await context.bridge_address() if known else ""
    return list(_of_certificate(pair, context.name, address, "unknown"))


def _of_certificate(pair: TlsKeyPair, node: str, host: str, verdict: Verdict) -> Iterator[Finding]:
    begin, end = x509_builder.validity(pair)
    now = datetime.now(UTC)
    until = format_time(end)
    if end <= now:
        yield error("BRG402", "home", f"it has expired, at {until}")
    elif begin > now:
        yield error("BRG402", "home", f"it is not valid before {format_time(begin)}")
    elif end - now < EXPIRY_WARNING:
        yield warning("BRG402", "home", f"it is valid only until {until}")
    else:
        yield ok("BRG402", "home", f"it is valid until {until}")
    missing = x509_builder.missing_names(pair, node, [host] if host else [])
    if missing:
        yield warning("BRG403", "home", f"it is not valid for {', '.join(missing)}")
    else:
        yield ok("BRG403", "home", "it is valid for the node's name and address")
    yield _issuer(pair, verdict)


def _issuer(pair: TlsKeyPair, verdict: Verdict) -> Finding:
    """BRG404."""
    leaf = x509.load_pem_x509_certificate(pair.certificate)
    if leaf.issuer != leaf.subject:
        by = f"signed by {leaf.issuer.rfc4514_string()}"
        if verdict == "rejected":
            return warning("BRG404", "home", f"{by}; home's API server rejects it (see BRG401)")
        return ok("BRG404", "home", by)
    if verdict == "rejected":
        return error("BRG404", "home", "it is self-signed, and home's API server verifies it")
    if verdict == "accepted":
        return info("BRG404", "home", "it is self-signed; home's API server does not verify it")
    return info("BRG404", "home", "it is self-signed; most API servers do not verify it")


IMPLEMENTATIONS = (
    Implementation("BRG401", check_kubelet_api, ("home", "node")),
    Implementation("BRG402", check_served_certificate, ("node",)),
    Implementation("BRG402", check_certificate_files, (), only_before_join=True),
)
