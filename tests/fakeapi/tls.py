"""A temporary certificate authority for servers at 127.0.0.1 and for clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates into ``folder``, which must exist."""

    def __init__(self, folder: Path, name: str = "fake-ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key.public_key())
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.cert = folder / f"{name}.crt"
        self.cert.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *, address: str | None = None) -> Pair:
        """A certificate for a server at the address, or for the client ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key())
        if address is not None:
            alternative = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
            builder = builder.add_extension(alternative, critical=False)
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return pair

    def sign(self, request: bytes) -> bytes:
        """The certificate of a signing request (both PEM) with the requested subject."""
        parsed = x509.load_pem_x509_csr(request)
        key = parsed.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        builder = self._builder(parsed.subject, key)
        return _pem(builder.sign(self._key, hashes.SHA256()))

    def server_context(self, pair: Pair) -> ssl.SSLContext:
        """The context of a server that accepts client certificates of this authority."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.cert)
        context.load_cert_chain(pair.cert, pair.key)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
