"""Maps failures of connections, as aiohttp, OpenSSL and the operating system raise them, to
`Unreachable` with a message for people."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from sync.kube.api_errors import ApiServerCertificateError, Side, Unreachable


class ConnectFailedError(OSError):
    """Raised when no connection to the server, or to the proxy before it, can be opened. The
    message names the address and the cause."""


@contextmanager
def map_connection_errors(
    side: Side, what: str, server: str, on_failure: Callable[[], None]
) -> Iterator[None]:
    """Maps failures of the block to `Unreachable` and `ApiServerCertificateError`.

    ``on_failure`` is called for each failure of a connection. `KubeError` and exceptions that have
    nothing to do with a connection pass unchanged.
    """

    def unreachable(message: str) -> Unreachable:
        return Unreachable(message, side=side, what=what)

    try:
        yield
    except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
        if not isinstance(error, HttpProcessingError):
            on_failure()
        match error:
            case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
                message = _certificate_message(error)
                raise ApiServerCertificateError(message, side=side, what=what) from error
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                raise unreachable(_handshake_message(error)) from error
            case TimeoutError():
                raise unreachable(f"no answer from {server} in time") from error
            case aiohttp.ClientConnectorError(os_error=ConnectFailedError() as failure):
                raise unreachable(str(failure)) from error
            case ConnectFailedError():
                raise unreachable(str(error)) from error
        # Not chained: a parser's error quotes the bytes that it could not parse, and the repr of a
        # response's error contains the request's headers with the credential.
        raise unreachable(_broken_message(error)) from None


def connect_message(error: OSError, server: str) -> str:
    """Why a connection to ``server`` (a URL) failed: ``connection refused by 127.0.0.1:6443``.
    Reads ``errno``, because asyncio puts its own text into ``strerror``; a failed name lookup has a
    negative errno and the resolver's text."""
    address = urlsplit(server).netloc.rpartition("@")[2] or server
    if error.errno == errno.ECONNREFUSED:
        return f"connection refused by {address}"
    if error.errno and error.errno > 0:
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error) or "cannot connect"
    return f"{address}: {reason}"


def _broken_message(error: BaseException) -> str:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection broke: the server closed it"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke: the response is incomplete"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return "the response is not HTTP; check that the address is an API server's"
    reason = getattr(error, "strerror", None) or "the connection failed"
    return f"the connection broke: {reason}"


def _handshake_message(error: BaseException) -> str:
    inner = getattr(error, "os_error", error)
    reason = getattr(inner, "reason", None)
    text = reason.replace("_", " ").lower() if reason else "the server does not speak TLS"
    return f"the TLS handshake failed: {text}"


def _certificate_message(error: BaseException) -> str:
    inner = getattr(error, "certificate_error", error)
    reason = getattr(inner, "verify_message", "") or str(inner)
    return (
        f"the server's certificate is not trusted: {reason}; "
        "check certificate-authority(-data) and server in the kubeconfig"
    )
