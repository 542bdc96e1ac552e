"""A kubelet's serving certificate as home signs it: what is asked for, and what the answer says.

The request is what the signer ``kubernetes.io/kubelet-serving`` takes
(k8s.io/kubernetes/pkg/apis/certificates/helpers.go): organization ``system:nodes``, common name
``system:node:NAME``, the node's name and address, and the usages of a key that is not RSA. Its name
is made of the key and of what is asked for, so that asking again after a restart, or after an
answer that was lost, finds the same object. Nobody approves it by itself. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bridge.certificates.tls_key_pair import CertificateError
from bridge.certificates.x509_builder import key_pem, subject, subject_alternative_name
from sync.kube.resources import CERTIFICATE_SIGNING_REQUESTS, Object
from translators.objects import name_of

SIGNER = "kubernetes.io/kubelet-serving"
#: For ECDSA; RSA would need "key encipherment" too.
USAGES = ("digital signature", "server auth")
#: How a request is named: this, the node's name, and digits of the hash.
_PREFIX, _DIGEST = "kubelet-serving-", 10
#: What of a node's name stands in the request's: with the rest it stays under 253 characters.
_NAMED = 200


@dataclass(frozen=True, slots=True)
class Pending:
    """Nobody has decided, or it is approved and not signed yet."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Signed: the certificate and what is behind it, PEM."""

    certificate: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """Denied, or the signer cannot sign it; no later answer will come."""

    reason: str


Outcome = Pending | Issued | Rejected


def generate_key() -> bytes:
    """A private key, PEM."""
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def build_csr(key: bytes, node_name: str, addresses: Sequence[str]) -> Object:
    """The CertificateSigningRequest. Raises CertificateError for a key that is none of ours."""
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError("the key that was kept for a request is not valid PEM") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise CertificateError("the key that was kept for a request is no ECDSA key")
    names = subject_alternative_name(node_name, addresses)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(node_name))
        .add_extension(names, critical=False)
        .sign(private, hashes.SHA256())
    )
    asked = private.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(b"\0".join([asked, names.public_bytes()])).hexdigest()
    return {
        "apiVersion": CERTIFICATE_SIGNING_REQUESTS.api_version,
        "kind": CERTIFICATE_SIGNING_REQUESTS.kind,
        "metadata": {"name": f"{_PREFIX}{node_name[:_NAMED]}-{digest[:_DIGEST]}"},
        "spec": {
            "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
            "signerName": SIGNER,
            "usages": list(USAGES),
        },
    }


def is_csr_of_node(request: Object, node_name: str) -> bool:
    """Whether a CertificateSigningRequest is one that was made here for the node."""
    name, _, digest = name_of(request).rpartition("-")
    return name == _PREFIX + node_name[:_NAMED] and len(digest) == _DIGEST


def csr_outcome(request: Object) -> Outcome:
    """What has become of the request."""
    status = request.get("status") or {}
    conditions = {str(it.get("type")): it for it in status.get("conditions") or []}
    for kind, words in (("Denied", "was denied"), ("Failed", "cannot be signed")):
        if kind in conditions:
            told = (conditions[kind].get(part) for part in ("reason", "message"))
            return Rejected(f"{words}: " + (", ".join(filter(None, told)) or "no reason is given"))
    encoded = status.get("certificate")
    if "Approved" not in conditions or not encoded:
        return Pending()
    try:
        return Issued(base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        return Rejected("was answered with something that is no certificate")
