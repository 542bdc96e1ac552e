"""A serving certificate with its private key, and the TLS server context that uses it.

The server requests a client certificate without requiring one (metrics-server sends a bearer token)
and accepts only those signed by home's client CA. A certificate of another CA ends the handshake,
where a kubelet answers 401: OpenSSL passes no unverified certificate on. Private keys appear in no
repr and no error.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bridge.base.command_error import BridgeError
from sync.base.tls_certificate import load_certificate

#: Validity of a self-signed certificate, as a kubelet's.
LIFETIME = timedelta(days=365)
#: A certificate becomes valid this long before its creation, for clients whose clocks are slow.
CLOCK_SKEW = timedelta(hours=1)
#: First line of a private key in PEM (RFC 7468); the certificates precede it.
_KEY = b"-----BEGIN PRIVATE KEY-----"


class CertificateError(BridgeError):
    """A certificate, key or CA bundle cannot be used, stored or read."""


@dataclass(frozen=True, slots=True)
class TlsKeyPair:
    """A certificate followed by its chain, and its private key; both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def pem(self) -> bytes:
        """The certificates followed by the key, as `parse_pem` reads them."""
        return self.certificate + self.key


def parse_pem(content: bytes) -> TlsKeyPair | None:
    """Parses certificates followed by a PKCS #8 key; None if there is no such key."""
    certificate, mark, key = content.partition(_KEY)
    return TlsKeyPair(certificate, mark + key) if mark else None


def read_files(certificate: Path, key: Path) -> TlsKeyPair:
    """Reads and checks a pair. Raises CertificateError, which names the files."""
    pair = TlsKeyPair(_read(certificate), _read(key))
    try:
        server_context(pair, client_ca="")
    except CertificateError as error:
        raise CertificateError(f"{certificate} and {key}: {error}") from error
    return pair


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"cannot read {path}: {error.strerror}") from error


def server_context(pair: TlsKeyPair, *, client_ca: str) -> ssl.SSLContext:
    """A TLS server context with this certificate. Raises CertificateError.

    ``client_ca`` is a PEM bundle of CAs for client certificates; without one, only bearer tokens
    authenticate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # exec, attach and port-forward upgrade the connection, which only HTTP/1.1 can.
    context.set_alpn_protocols(["http/1.1"])
    # Every connection authenticates by itself, so there is no session to resume.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    load_pair(context, pair)
    if client_ca.strip():
        # Comments of a bundle may contain any text; OpenSSL reads ASCII.
        authorities = client_ca.encode("ascii", "ignore").decode("ascii")
        try:
            context.load_verify_locations(cadata=authorities)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(
                "the client CA is not a bundle of PEM certificates; check client-ca-file in the "
                "ConfigMap kube-system/extension-apiserver-authentication"
            ) from error
        context.verify_mode = ssl.CERT_OPTIONAL
        # Trust every CA of the bundle, self-signed or not, as API servers do.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def load_pair(context: ssl.SSLContext, pair: TlsKeyPair) -> None:
    """Makes the context present this certificate. Raises CertificateError."""
    try:
        load_certificate(context, pair.certificate, pair.key)
    except ValueError as error:
        raise CertificateError(
            "the certificate or the key is not valid PEM, the key is encrypted, or the two do "
            "not match"
        ) from error
    except OSError as error:
        raise CertificateError(f"cannot create a file in memory: {error.strerror}") from error
