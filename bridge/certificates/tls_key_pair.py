"""The server's side of TLS: its certificate, and whose client certificates count.

Where a certificate comes from, and when it is renewed, is
`bridge.certificates.certificate_sources`'s; how one is made is
`bridge.certificates.x509_builder`'s. A client certificate is asked for, not demanded
(metrics-server comes with a token), and counts only when it is of home's client CA. One of another
CA ends the handshake, where a kubelet answers 401: OpenSSL hands over no certificate that it has
not verified. Private keys are in no repr and no error, and on disk only where OpenSSL has to read
them from: in a folder of our own that is removed at once.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from bridge.base.errors import BridgeError

#: How long a certificate that we sign ourselves is good for: a kubelet's is a year too.
LIFETIME = timedelta(days=365)
#: It is good a little before now, for clients whose clocks are slow.
CLOCK_SKEW = timedelta(hours=1)
#: What a private key begins with in PEM (RFC 7468); certificates stand before it.
_KEY = b"-----BEGIN PRIVATE KEY-----"


class CertificateError(BridgeError):
    """A certificate, key or CA bundle that cannot be used."""


@dataclass(frozen=True, slots=True)
class TlsKeyPair:
    """A certificate, with what it is signed by behind it, and its key; both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    @property
    def pem(self) -> bytes:
        """Both, as `from_pem` reads them."""
        return self.certificate + self.key


def parse_pem(content: bytes) -> TlsKeyPair | None:
    """The certificate and, after it, its key; None where there is no key of ours."""
    certificate, mark, key = content.partition(_KEY)
    return TlsKeyPair(certificate, mark + key) if mark else None


def read_files(certificate: Path, key: Path) -> TlsKeyPair:
    """Reads a pair. Raises CertificateError that names the file."""
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
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from error


def server_context(pair: TlsKeyPair, *, client_ca: str) -> ssl.SSLContext:
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
    load_pair(context, pair)
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


def load_pair(context: ssl.SSLContext, pair: TlsKeyPair) -> None:
    """Has the context show this certificate from now on. Raises CertificateError."""
    try:
        with tempfile.TemporaryDirectory(prefix="bridge-") as folder:  # of mode 0700
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            certificate.write_bytes(pair.certificate)
            key.touch(mode=0o600)
            key.write_bytes(pair.key)
            _load_files(context, certificate, key)
    except OSError as error:
        raise CertificateError(
            f"no temporary file can be written for the serving certificate: {error.strerror}; "
            "make room there, or name another folder with TMPDIR"
        ) from error


def _load_files(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        # An encrypted key would be asked for on the terminal; here it is a fault.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise CertificateError(
            "the certificate or the key is not valid PEM, the key is encrypted, or they do "
            "not belong together"
        ) from error
