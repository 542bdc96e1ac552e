"""A certificate authority, the parties' certificates, and TLS contexts that use them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: Common name and organizations of each party.
PARTIES = {
    "node": ("virtual", ()),
    "remote": ("remote-api", ()),
    "apiserver": ("kube-apiserver", ("masters", "watchers")),
    "nameless": ("", ("masters",)),
    "server-only": ("server-only", ()),
    "client-only": ("client-only", ()),
}
#: The extended key usage of the parties' certificates that have one.
USAGES = {
    "server-only": ExtendedKeyUsageOID.SERVER_AUTH,
    "client-only": ExtendedKeyUsageOID.CLIENT_AUTH,
}


class Pki:
    """Writes all files to a directory. Another CA signs the certificate of ``stranger``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ca_key, ca = _authority("home-ca")
        self.ca_text = _pem(ca).decode()
        (folder / "ca.crt").write_text(self.ca_text)
        for file, (name, groups) in PARTIES.items():
            self._write(file, *_signed(name, groups, "home-ca", self._ca_key))
        other_key, other = _authority("other-ca")
        self.other_ca_text = _pem(other).decode()
        self._write("stranger", *_signed("kube-apiserver", ("masters",), "other-ca", other_key))

    def _write(
        self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        crt, pem = self.files(file)
        crt.write_bytes(_pem(certificate))
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def files(self, party: str) -> tuple[Path, Path]:
        """Certificate and key of a party."""
        return self._folder / f"{party}.crt", self._folder / f"{party}.key"

    def client_context(self, party: str | None) -> ssl.SSLContext:
        """A client context that trusts the CA, with the party's certificate or none."""
        context = client_context(self._folder)
        if party is not None:
            context.load_cert_chain(*self.files(party))
        return context

    def server_context(self, party: str) -> ssl.SSLContext:
        """The server context of this party."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.files(party))
        return context


def client_context(folder: Path) -> ssl.SSLContext:
    """A client context without a certificate, for the CA of a `Pki` in this folder."""
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    return context


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, subject, key)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return key, builder.sign(key, hashes.SHA256())


def _signed(
    name: str, groups: tuple[str, ...], issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    if name:
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)])
    builder = _builder(x509.Name(attributes), authority, key).add_extension(
        x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("remote.example")]
        ),
        critical=False,
    )
    if name in USAGES:
        builder = builder.add_extension(x509.ExtendedKeyUsage([USAGES[name]]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
