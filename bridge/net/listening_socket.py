"""Listening sockets, and the connections that they accept before their destination is ready."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

from sync.kube.layered_transport import Buffer
from sync.kube.sockets import SocketReader, enable_keepalive, limit_unsent

#: Connections that the kernel queues until they are accepted.
BACKLOG = 1024
#: Bytes of a client before its destination is ready.
FIRST_READ = 16 * 1024
#: linux/in6.h: binds an IPv6 address that belongs to the node through a route alone.
_IPV6_FREEBIND = 78


def listening_socket(host: str, port: int, *, free_bind: bool = False) -> socket.socket:
    """Listens on a TCP port; accepted connections have keepalive and a limit of unsent bytes.

    ``host`` is an IP address. "::" and "" are all addresses of both families if the system has
    both; without IPv6, "" is all of IPv4. Raises OSError.
    """
    sock = unbound_socket(host, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if free_bind and sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
        enable_keepalive(sock)
        limit_unsent(sock)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def unbound_socket(host: str, kind: socket.SocketKind) -> socket.socket:
    """A socket of the kind that can be bound to ``host``, which is as in `listening_socket`. Raises
    OSError."""
    dual_stack = host in ("", "::") and socket.has_dualstack_ipv6()
    is_ipv6 = ":" in host or (not host and dual_stack)
    sock = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, kind)
    try:
        if is_ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual_stack)
    except BaseException:
        sock.close()
        raise
    return sock


class AcceptedConnection(asyncio.Protocol):
    """A connection whose destination is not ready yet. It buffers one read of the client: at most
    `FIRST_READ` bytes.

    ``on_accept`` is called when the connection is made. uvloop starts to read after
    `connection_made`, whatever that method does; so reading is paused by the first bytes.
    """

    __slots__ = ("_buffer", "_on_accept", "_received_eof", "client")

    client: asyncio.Transport

    def __init__(self, on_accept: Callable[[Any], None]) -> None:
        self._on_accept = on_accept
        self._buffer = b""
        self._received_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client = cast("asyncio.Transport", transport)
        self.client.set_protocol(SocketReader(self, read_size=lambda: FIRST_READ))
        self._on_accept(self)

    def data_received(self, data: Buffer) -> None:
        self._buffer += data
        self.client.pause_reading()

    def eof_received(self) -> bool:
        self._received_eof = True
        return True  # the client may still be answered

    @property
    def has_data(self) -> bool:
        """Whether the client has sent something."""
        return bool(self._buffer)

    @property
    def client_address(self) -> str:
        """The client's IP address; "" if it is not known."""
        peer = self.client.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def attach(self, protocol: asyncio.Protocol) -> None:
        """Makes ``protocol`` the connection's protocol, without the buffered data."""
        self.client.set_protocol(protocol)
        protocol.connection_made(self.client)

    def resume(self, protocol: asyncio.Protocol) -> None:
        """Passes the buffered data to the attached ``protocol`` and resumes reading."""
        if self._buffer:
            protocol.data_received(self._buffer)
            self._buffer = b""
        if self._received_eof:
            protocol.eof_received()
        elif not self.client.is_closing():
            self.client.resume_reading()
