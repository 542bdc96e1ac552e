"""Builds and compares CertificateSigningRequests of a node.

Every request has organization ``system:nodes``, common name ``system:node:NAME`` and an ECDSA key;
a serving certificate names the node and its addresses too. A request's name is derived from the key
and the requested names, so that a retry after a restart or a lost response finds the same object.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from bridge.certificates.certificate_kinds import DIGEST_LENGTH, CertificateKind
from bridge.certificates.tls_key_pair import CertificateError
from bridge.certificates.x509_builder import key_pem, subject, subject_alternative_name
from sync.kube.api_resources import CERTIFICATE_SIGNING_REQUESTS, Object


def generate_key() -> bytes:
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def build_csr(
    kind: CertificateKind, key: bytes, node_name: str, addresses: Sequence[str] = ()
) -> Object:
    """The CertificateSigningRequest; without addresses, one without subject alternative names.

    Raises CertificateError for a key that is not ECDSA in PEM.
    """
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError("the stored key of the pending request is not valid PEM") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise CertificateError("the stored key of the pending request is not an ECDSA key")
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(node_name))
    requested = [_der(private.public_key())]
    if addresses:
        names = subject_alternative_name(node_name, addresses)
        builder = builder.add_extension(names, critical=False)
        requested.append(names.public_bytes())
    request = builder.sign(private, hashes.SHA256())
    digest = hashlib.sha256(b"\0".join(requested)).hexdigest()
    name = kind.request_name_prefix(node_name) + digest[:DIGEST_LENGTH]
    spec = {
        "request": base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode(),
        "signerName": kind.signer,
        "usages": list(kind.usages),
    }
    return CERTIFICATE_SIGNING_REQUESTS.manifest({"name": name}, spec=spec)


def requests_the_same(one: Object, other: Object) -> bool:
    """Whether both objects request one certificate: the same key, subject, names, signer, usages
    and lifetime. Only the signature of the key may differ, as ECDSA signatures do."""
    return _requested(one) is not None and _requested(one) == _requested(other)


def is_for_node(kind: CertificateKind, request: Object, node_name: str) -> bool:
    """Whether the object requests exactly this node's certificate of a kind without addresses:
    signer, usages and subject, without extensions, signed by its key."""
    spec = request.get("spec") or {}
    try:
        parsed = x509.load_pem_x509_csr(base64.b64decode(spec.get("request") or "", validate=True))
        is_plain = parsed.is_signature_valid and not list(parsed.extensions)
    except (ValueError, TypeError, x509.DuplicateExtension, UnsupportedAlgorithm):
        return False
    return (
        is_plain
        and parsed.subject == subject(node_name)
        and spec.get("signerName") == kind.signer
        and sorted(map(str, spec.get("usages") or ())) == sorted(kind.usages)
    )


def _requested(request: Object) -> tuple[object, ...] | None:
    """The content of the object's request; None if it is malformed or not signed by its key."""
    spec = request.get("spec") or {}
    try:
        parsed = x509.load_pem_x509_csr(base64.b64decode(spec.get("request") or "", validate=True))
        if not parsed.is_signature_valid:
            return None
        content = parsed.tbs_certrequest_bytes
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return None
    usages = sorted(map(str, spec.get("usages") or ()))
    return content, spec.get("signerName"), usages, spec.get("expirationSeconds")


def key_fingerprint(request: Object) -> str:
    """SHA-256 of the requested public key, as ``openssl pkey -pubin -outform DER | sha256sum``
    prints it."""
    parsed = x509.load_pem_x509_csr(base64.b64decode(request["spec"]["request"]))
    return hashlib.sha256(_der(parsed.public_key())).hexdigest()


def _der(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
