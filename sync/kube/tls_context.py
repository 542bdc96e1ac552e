"""Makes the TLS context of a kubeconfig: whom it trusts, and the client certificate."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from sync.kube.kubeconfig import KubeconfigError, ResolvedContext


def client_context(settings: ResolvedContext) -> ssl.SSLContext:
    """The context for connections to the settings' server. Raises ConfigProblem."""
    context = _verifying(settings.ca)
    # OpenSSL's own settings on a machine can allow older ones.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert:
        _load_certificate(context, settings.cert, settings.key or b"")
    # Upgrades (exec, attach, port-forward) exist in HTTP/1.1 only, and aiohttp speaks no other.
    context.set_alpn_protocols(["http/1.1"])
    return context


def _verifying(authorities: bytes | None) -> ssl.SSLContext:
    if authorities is None:
        return ssl.create_default_context()
    # Comments of a bundle may hold any bytes; OpenSSL reads ASCII.
    text = authorities.decode("ascii", "ignore")
    wrong = KubeconfigError("its certificate-authority is not valid PEM")
    if not text.strip():
        raise wrong  # An empty text would mean the machine's own authorities.
    try:
        return ssl.create_default_context(cadata=text)
    except (OSError, ValueError):
        raise wrong from None


def _load_certificate(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    """Through a file that is removed at once: OpenSSL reads certificates of files only."""
    try:
        fd, name = tempfile.mkstemp()
        try:
            with os.fdopen(fd, "wb") as both:
                both.write(cert + b"\n" + key)
            # The password is for OpenSSL, which else asks the terminal for that of the key.
            context.load_cert_chain(name, password="")
        finally:
            Path(name).unlink()
    except (ssl.SSLError, ValueError):
        raise KubeconfigError(
            "its client-certificate or client-key is not valid PEM, or they do not belong together"
        ) from None
    except OSError as error:
        raise KubeconfigError(
            f"{error.strerror or 'cannot be written'}: a temporary file; TMPDIR says where these "
            "are made"
        ) from None
