"""Creates and parses X.509 certificates and private keys with the `cryptography` package.

The API server of the home cluster accepts a self-signed certificate unless it runs with
``--kubelet-certificate-authority``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bridge.certificates.tls_key_pair import CLOCK_SKEW, LIFETIME, CertificateError, TlsKeyPair

#: Maximum length of a common name (RFC 5280).
_COMMON_NAME = 64


def self_signed(
    node_name: str, addresses: Sequence[str], *, now: datetime | None = None
) -> TlsKeyPair:
    """Creates a self-signed certificate for the node's name and its addresses or host names."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = subject(node_name)
    now = now or datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(subject_alternative_name(node_name, addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return TlsKeyPair(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as unencrypted PKCS #8 PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def subject(node_name: str) -> x509.Name:
    """Subject of a kubelet's serving certificate (k8s.io/kubernetes/pkg/apis/certificates)."""
    common = f"system:node:{node_name}"
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common[:_COMMON_NAME]),
        ]
    )


def subject_alternative_name(
    node_name: str, addresses: Sequence[str]
) -> x509.SubjectAlternativeName:
    """Subject alternative names: the node's name and its addresses or host names."""
    return x509.SubjectAlternativeName(
        dict.fromkeys([*map(_alternative, addresses), x509.DNSName(node_name)])
    )


def validity(pair: TlsKeyPair) -> tuple[datetime, datetime]:
    """Start and end of the certificate's validity. Raises CertificateError."""
    leaf = _leaf(pair)
    return leaf.not_valid_before_utc, leaf.not_valid_after_utc


def missing_names(pair: TlsKeyPair, node_name: str, addresses: Sequence[str]) -> list[str]:
    """The node's names and addresses that the certificate lacks. Raises CertificateError."""
    leaf = _leaf(pair)
    try:
        known = set(leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        known = set()
    except (ValueError, x509.DuplicateExtension) as error:
        raise CertificateError("the certificate's extensions are malformed") from error
    return [
        str(name.value)
        for name in subject_alternative_name(node_name, addresses)
        if name not in known
    ]


def _leaf(pair: TlsKeyPair) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pair.certificate)
    except ValueError as error:
        raise CertificateError("the certificate is not valid PEM") from error


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(address))
    except ValueError:
        return x509.DNSName(address)
