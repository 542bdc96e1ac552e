"""Finds CertificateSigningRequests of a node, and reads their outcome."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from bridge.certificates.certificate_kinds import CertificateKind
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object
from sync.kube.client import KubeClient

#: The beginning of a line about a request that waits; its name follows.
#: `bridge.install.rollout` looks for it in a pod's log.
WAITING_FOR_APPROVAL = "waiting for the approval of certificate signing request"


@dataclass(frozen=True, slots=True)
class Issued:
    """The request is signed: the certificate and its chain (PEM)."""

    certificate: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request was denied, or the signer failed; it will not be signed."""

    reason: str


async def list_csrs_of_node(
    home: KubeClient, kind: CertificateKind, node_name: str
) -> list[Object]:
    """The CertificateSigningRequests of this kind of the node's bridges. Raises KubeError."""
    selector = f"spec.signerName={kind.signer}"
    found = await home.list(CERTIFICATE_SIGNING_REQUESTS, fields=selector)
    return [it for it in found.items if kind.is_request_of(it, node_name)]


def conditions_of(request: Object) -> dict[str, Object]:
    """The conditions in the request's status, by type."""
    status = request.get("status") or {}
    return {str(it.get("type")): it for it in status.get("conditions") or []}


def csr_outcome(request: Object) -> Issued | Rejected | None:
    """The outcome in the request's status; None while it is not decided, or approved and not signed
    yet."""
    conditions = conditions_of(request)
    for kind, text in (("Denied", "was denied"), ("Failed", "cannot be signed")):
        if kind in conditions:
            causes = (conditions[kind].get(part) for part in ("reason", "message"))
            return Rejected(f"{text}: " + (", ".join(filter(None, causes)) or "no reason is given"))
    encoded = (request.get("status") or {}).get("certificate")
    if "Approved" not in conditions or not encoded:
        return None
    try:
        return Issued(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return Rejected("was signed, but status.certificate is not base64")
