"""Builds the TLS context of a kubeconfig: trusted CAs and client certificate."""

from __future__ import annotations

import ssl

from sync.base.tls_certificate import load_certificate
from sync.kube.kubeconfig import ResolvedContext
from sync.kube.kubeconfig_fields import KubeconfigError


def client_context(settings: ResolvedContext, *, protocol: str = "http/1.1") -> ssl.SSLContext:
    """The context of connections that offer ``protocol`` by ALPN (``h2`` for HTTP/2).

    The others offer HTTP/1.1 alone: upgrades (exec, attach, port-forward) need it, and aiohttp
    supports nothing else. Raises KubeconfigError.
    """
    context = _verifying(settings.ca)
    # The system's OpenSSL configuration may allow older versions.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not settings.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if settings.cert is not None:
        _load_certificate(context, settings.cert, settings.key or b"")
    context.set_alpn_protocols([protocol])
    return context


def _verifying(authorities: bytes | None) -> ssl.SSLContext:
    if authorities is None:
        return ssl.create_default_context()
    # Comments of a bundle may contain any bytes; OpenSSL reads ASCII.
    text = authorities.decode("ascii", "ignore")
    wrong = KubeconfigError("its certificate-authority is not valid PEM")
    if not text.strip():
        raise wrong  # an empty text would select the system's CAs
    try:
        return ssl.create_default_context(cadata=text)
    except (OSError, ValueError):
        raise wrong from None


def _load_certificate(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    try:
        load_certificate(context, cert, key)
    except ValueError:
        raise KubeconfigError(
            "its client-certificate or client-key is not valid PEM, or they do not belong together"
        ) from None
    except OSError as error:
        raise KubeconfigError(f"cannot create a file in memory: {error.strerror}") from error
