"""Maps failures of connections, as aiohttp, OpenSSL and the operating system raise them, to
`Unreachable` with a message for people."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from sync.kube.api_errors import ApiServerCertificateError, KubeError, Side, Unreachable


class ConnectionErrors:
    """A context manager that maps failures to `Unreachable` and `ApiServerCertificateError`.

    ``on_failure`` is called for each failure of a connection. `KubeError` and exceptions that have
    nothing to do with a connection pass unchanged.
    """

    def __init__(self, side: Side, what: str, server: str, on_failure: Callable[[], None]) -> None:
        self._side: Side = side
        self._what = what
        self._server = server
        self._on_failure = on_failure

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, KubeError):
            return
        if isinstance(error, aiohttp.ClientError | OSError):
            self._on_failure()
        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError
        ):
            raise self._error(ApiServerCertificateError, _certificate_message(error)) from error
        if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
            raise self._error(Unreachable, _handshake_message(error)) from error
        if isinstance(error, TimeoutError):
            raise self._error(Unreachable, f"no answer from {self._server} in time") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            message = connect_message(error.os_error, self._server)
            raise self._error(Unreachable, message) from error
        if isinstance(error, aiohttp.ClientError | OSError | HttpProcessingError):
            # Not chained: a parser's error quotes the bytes that it could not parse, and the repr
            # of a response's error contains the request's headers with the credential.
            raise self._error(Unreachable, _broken_message(error)) from None

    def _error(self, cls: type[Unreachable], message: str) -> Unreachable:
        return cls(message, side=self._side, what=self._what)


def connect_message(error: OSError, server: str) -> str:
    """Why no connection to ``server`` (a URL) came about: ``connection refused by 127.0.0.1:6443``.
    By ``errno``, because asyncio puts its own text into ``strerror``; failed name lookups have a
    negative one, and the resolver's text."""
    address = urlsplit(server).netloc.rpartition("@")[2] or server
    if error.errno == errno.ECONNREFUSED:
        return f"connection refused by {address}"
    if error.errno and error.errno > 0:
        reason = os.strerror(error.errno)
    else:
        reason = error.strerror or str(error) or "cannot connect"
    return f"{address}: {reason}"


def _broken_message(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status}"
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
