"""Sockets to an API server, and their failures in plain words.

A peer that is gone without a word is noticed by TCP in about 20 s, so that an idle watch costs no
request and still does not outlive a cut network for long: the virtual node has 40 s (its Lease)
to tell the truth, and waits 15 s before it calls that an outage.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from sync.kube.errors import ApiServerCertificateError, KubeError, Side, Unreachable

#: Seconds of silence before the first probe, between probes, and how many may stay unanswered.
_PROBES = (("TCP_KEEPIDLE", 8), ("TCP_KEEPINTVL", 4), ("TCP_KEEPCNT", 3))
#: Milliseconds that sent bytes may stay unacknowledged: the time of all probes together.
_UNACKNOWLEDGED = 20_000
#: The same for `use_fast_keepalive`: a packet each way every two seconds, and no work for anybody.
_PROBES_SOON = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
#: Seconds after which a peer that is gone is noticed then.
FAST_KEEPALIVE_SECONDS = 6.0
#: Where Linux' ``struct tcp_info`` (linux/tcp.h) has what is read of it: two bytes, how often the
#: oldest bytes were sent again and how many window probes were sent, both since the peer's last
#: word; the segments that it has not acknowledged; and the milliseconds since its last word.
_TCP_INFO_SIZE = 104
_ASKED_AGAIN = struct.Struct("=2x2B")
_UNACKED = struct.Struct("=24xI")
_LAST_WORD = struct.Struct("=56xI")


class PeerState(Enum):
    """What TCP knows of the other end."""

    ACKNOWLEDGED = "it has everything that was sent"
    UNACKNOWLEDGED = "it has not acknowledged all, or does not take more just now"
    LOST = "it does not answer any more"


def request_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for requests, watches and logs: a dead peer is noticed also while we send."""
    sock = tunnel_socket(address)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
    return sock


def tunnel_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for tunnels: as `request_socket`, but a peer that is alive may refuse to read.

    Linux counts a closed window as unacknowledged, so TCP_USER_TIMEOUT would cut
    ``kubectl exec -i POD -- sh -c 'sleep 60; cat' < BIG_FILE``. Who sends asks `peer_state`
    instead: keepalive is silent while bytes are on their way, and sending again goes on for 15
    minutes.
    """
    family, kind, proto = address[0], address[1], address[2]
    sock = socket.socket(family=family, type=kind, proto=proto)
    enable_keepalive(sock)
    return sock


def enable_keepalive(sock: socket.socket) -> None:
    """Turns on TCP keepalive. On a listening socket: for all that are accepted from it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _PROBES:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def use_fast_keepalive(sock: socket.socket) -> None:
    """Has a connection that is mostly silent, such as a watch, notice in `FAST_KEEPALIVE_SECONDS`
    seconds that its peer is gone. Its price is that a slow line may break it where others would
    not."""
    for option, value in _PROBES_SOON:
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(FAST_KEEPALIVE_SECONDS * 1000)
        )


def peer_state(sock: socket.socket) -> PeerState:
    """What TCP knows of this connection's other end; QUIET where the system does not tell."""
    if not hasattr(socket, "TCP_INFO"):
        return PeerState.ACKNOWLEDGED
    return read_tcp_info(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE))


def read_tcp_info(info: bytes) -> PeerState:
    """Reads a ``struct tcp_info``; of no TCP socket it is empty, and that is QUIET.

    A peer with a closed window acknowledges each probe, so their count stays at one at most; they
    come up to two minutes apart, so its last word alone says nothing.
    """
    if len(info) < _LAST_WORD.size:
        return PeerState.ACKNOWLEDGED
    asked_again = max(_ASKED_AGAIN.unpack_from(info))
    if asked_again > 1 and _LAST_WORD.unpack_from(info)[0] >= _UNACKNOWLEDGED:
        return PeerState.LOST
    return (
        PeerState.UNACKNOWLEDGED
        if asked_again or _UNACKED.unpack_from(info)[0]
        else PeerState.ACKNOWLEDGED
    )


class ConnectionErrors:
    """Maps what aiohttp and the operating system raise to `Unreachable`, in plain words.
    ``failed`` is called for each failure of a connection."""

    def __init__(self, side: Side, what: str, server: str, failed: Callable[[], None]) -> None:
        self._side: Side = side
        self._what = what
        self._server = server
        self._failed = failed

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, KubeError):
            return
        if isinstance(error, aiohttp.ClientError | OSError):
            self._failed()
        if isinstance(
            error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError
        ):
            raise self._made(ApiServerCertificateError, _certificate_words(error)) from error
        if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError):
            raise self._made(Unreachable, "the TLS handshake failed: " + str(error)) from error
        if isinstance(error, TimeoutError):
            raise self._made(Unreachable, f"no answer from {self._server} in time") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            why = error.os_error.strerror or str(error.os_error) or "cannot connect"
            raise self._made(Unreachable, f"{self._server}: {why}") from error
        if isinstance(error, aiohttp.ClientError | OSError | HttpProcessingError):
            # Not as its cause: the text of a parser's error quotes what it could not read, and
            # the repr of one of an answer holds the request's headers, with the credential.
            raise self._made(Unreachable, _broken_words(error)) from None

    def _made(self, cls: type[Unreachable], message: str) -> Unreachable:
        return cls(message, side=self._side, what=self._what)


def _broken_words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {error.status}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection broke: the server closed it"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke: the answer is not complete"
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError):
        return "the answer is not HTTP; is this an API server?"
    why = getattr(error, "strerror", None) or type(error).__name__
    return f"the connection broke: {why}"


def _certificate_words(error: BaseException) -> str:
    inner = getattr(error, "certificate_error", error)
    why = getattr(inner, "verify_message", "") or str(inner)
    return (
        f"the server's certificate is not trusted: {why}; "
        "check certificate-authority(-data) and server in the kubeconfig"
    )
