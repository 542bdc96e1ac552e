"""The server's side of TLS: its certificate, and whose client certificates count.

Where a certificate comes from, and when it is renewed, is `bridge.kubelet.serving`'s. One that is
made and signed here is accepted by home's API server unless that was started with
``--kubelet-certificate-authority``. A client certificate is asked for, not demanded (metrics-server
comes with a token), and counts only when it is of home's client CA. One of another CA ends the
handshake, where a kubelet answers 401: OpenSSL hands over no certificate that it has not verified.
Private keys are in no repr and no error, and on disk only where OpenSSL has to read them from: in a
folder of our own that is removed at once.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: How long a certificate that we sign ourselves is good for: a kubelet's is a year too.
LIFETIME = timedelta(days=365)
#: It is good a little before now, for clients whose clocks are slow.
CLOCK_SKEW = timedelta(hours=1)
#: The longest common name that X.509 has.
_COMMON_NAME = 64


class CertificateError(Exception):
    """A certificate, key or CA bundle that cannot be used."""


@dataclass(frozen=True, slots=True)
class ServingCertificate:
    """A certificate, with what it is signed by behind it, and its key; both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def from_files(certificate: Path, key: Path) -> ServingCertificate:
    """Reads a pair. Raises CertificateError that names the file."""
    pair = ServingCertificate(_read(certificate), _read(key))
    try:
        server_context(pair, client_ca="")
    except CertificateError as error:
        raise CertificateError(f"{certificate} and {key}: {error}") from error
    return pair


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error


def self_signed(
    node_name: str, addresses: Sequence[str], *, now: datetime | None = None
) -> ServingCertificate:
    """A new certificate for the node, good for its name and its addresses (or host names)."""
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
        .add_extension(alternatives(node_name, addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ServingCertificate(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The key as it is kept and given to OpenSSL."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def subject(node_name: str) -> x509.Name:
    """Who a kubelet's serving certificate is of (k8s.io/kubernetes/pkg/apis/certificates)."""
    common = f"system:node:{node_name}"
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, common[:_COMMON_NAME]),
        ]
    )


def alternatives(node_name: str, addresses: Sequence[str]) -> x509.SubjectAlternativeName:
    """What it is good for: the node's name and its addresses (or host names)."""
    return x509.SubjectAlternativeName(
        dict.fromkeys([*map(_alternative, addresses), x509.DNSName(node_name)])
    )


def lifetime(pair: ServingCertificate) -> tuple[datetime, datetime]:
    """From when to when the certificate is good. Raises CertificateError."""
    leaf = _leaf(pair)
    return leaf.not_valid_before_utc, leaf.not_valid_after_utc


def lacking(pair: ServingCertificate, node_name: str, addresses: Sequence[str]) -> list[str]:
    """The names and addresses of the node for which the certificate is not good."""
    try:
        found = _leaf(pair).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = set(found)
    except x509.ExtensionNotFound:
        known = set()
    return [str(name.value) for name in alternatives(node_name, addresses) if name not in known]


def _leaf(pair: ServingCertificate) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pair.certificate)
    except ValueError as error:
        raise CertificateError("the certificate is not valid PEM") from error


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def server_context(pair: ServingCertificate, *, client_ca: str) -> ssl.SSLContext:
    """The TLS of a server with this certificate. Raises CertificateError.

    ``client_ca`` are the certificates, in PEM, that a client's may be signed by; with none, every
    client has to come with a token.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # exec, attach and port-forward are upgrades, which exist in HTTP/1.1 only.
    context.set_alpn_protocols(["http/1.1"])
    # Every connection proves anew who it is: nothing to resume, so no ticket to keep.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    _load_pair(context, pair)
    if client_ca.strip():
        try:
            context.load_verify_locations(cadata=client_ca)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                "the client CA is not a bundle of PEM certificates; look at client-ca-file in the "
                "ConfigMap kube-system/extension-apiserver-authentication"
            ) from error
        context.verify_mode = ssl.CERT_OPTIONAL
        # As API servers do, trust what the bundle has, whether it signed itself or not.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def _load_pair(context: ssl.SSLContext, pair: ServingCertificate) -> None:
    with tempfile.TemporaryDirectory(prefix="bridge-") as folder:  # of mode 0700
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        try:
            # An encrypted key would be asked for on the terminal; here it is a fault.
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise CertificateError(
                "the certificate or the key is not valid PEM, the key is encrypted, or they do "
                "not belong together"
            ) from error
