"""A client of the kubelet API that rejects its certificate, as API servers do that verify it."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest


async def reject_certificate(port: int, *, version: ssl.TLSVersion | None = None) -> None:
    """Ends a TLS handshake with the alert bad_certificate.

    Go sends it for every certificate that it does not trust, OpenSSL only for a wrong name. The
    event loops' own TLS does not send alerts.
    """
    await asyncio.to_thread(_reject, port, version)


def _reject(port: int, version: ssl.TLSVersion | None) -> None:
    context = ssl.create_default_context(cadata=ssl.get_server_certificate(("127.0.0.1", port)))
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    if version is not None:
        context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"),
    ):
        context.wrap_socket(connection, server_hostname="another.example")
