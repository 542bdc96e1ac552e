"""Certificates and kubeconfig files of one cluster.

One certificate authority signs certificates of servers and clients, another those of the front
proxy (API aggregation); one key pair signs service account tokens. Only the owner can read keys.
Every cluster has new keys, so no credential is valid in two clusters.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Longer than any cluster stays up.
VALIDITY = dt.timedelta(days=365)
# Tolerates a clock that is slightly behind.
BACKDATE = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that signs into its own folder."""

    folder: Path
    name: str
    certificate: x509.Certificate
    private_key: ec.EllipticCurvePrivateKey

    @property
    def files(self) -> Pair:
        """The authority's own certificate and key."""
        return Pair(self.folder / f"{self.name}.crt", self.folder / f"{self.name}.key")

    @classmethod
    def create(cls, folder: Path, name: str, common_name: str) -> Authority:
        """Creates an authority, written as NAME.crt and NAME.key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(common_name)
        usage = _usage(sign_certificates=True)
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        authority = cls(folder, name, certificate, key)
        _write_pair(authority.files, certificate, key)
        return authority

    def issue(
        self,
        name: str,
        common_name: str,
        *,
        groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
        validity: dt.timedelta = VALIDITY,
    ) -> Pair:
        """Signs a client certificate; with ``hosts`` it is valid for a server, too. A negative
        ``validity`` ends in the past."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(
            _subject(common_name, groups), self.certificate.subject, key.public_key(), validity
        )
        if hosts:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.private_key.public_key())
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.private_key, hashes.SHA256())
        )
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        _write_pair(pair, certificate, key)
        return pair


def service_account_keys(folder: Path) -> Pair:
    """Creates a key pair for service account tokens; the public key is in ``certificate``."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = Pair(folder / "sa.pub", folder / "sa.key")
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    write_private(pair.certificate, public)
    write_private(pair.key, _pem(key))
    return pair


def write_kubeconfig(
    path: Path, *, context: str, server: str, authority: Path, client: Pair, user: str
) -> None:
    """Writes a kubeconfig that needs no other file.

    Context and cluster have the cluster's name, which the user's name contains, so that KUBECONFIG
    can merge the files of several clusters.
    """
    user_entry = f"{user}-{context}"
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    credentials = {
        "client-certificate-data": _base64(client.certificate),
        "client-key-data": _base64(client.key),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": user_entry, "user": credentials}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": user_entry}}],
        "current-context": context,
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False).encode())


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    validity: dt.timedelta = VALIDITY,
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + validity)
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(common_name: str, groups: Sequence[str] = ()) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write_pair(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(pair.key, _pem(key))


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
