"""Sockets with TCP keepalive and bounded buffers, and the state of the peer by TCP_INFO.

TCP detects a dead peer in about 20 s, so that an idle watch needs no requests and still ends soon
after the network is cut: the virtual node's Lease lasts 40 s, and the bridge waits 15 s before it
reports an outage.

The kernel lets the buffers of a connection grow to megabytes each, also if its peer does not read,
and counts them as memory of the process's cgroup. `limit_unsent` bounds what is sent, and
`resize_receive_buffer` what is received.

`SocketReader` reads sockets in small pieces, into one buffer that all connections of the event loop
share. uvloop itself reads 256 KiB at a time, up to 32 times in a turn, and each connection that is
paused meanwhile would hold them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol
from weakref import WeakKeyDictionary

#: Seconds of silence before the first probe, seconds between probes, and unanswered probes.
KEEPALIVE_PROBES = (("TCP_KEEPIDLE", 8), ("TCP_KEEPINTVL", 4), ("TCP_KEEPCNT", 3))
#: Milliseconds that sent bytes may stay unacknowledged: as long as all probes take.
USER_TIMEOUT_MILLISECONDS = 20_000
#: The same for `use_fast_keepalive`: one packet each way every two seconds.
_FAST_KEEPALIVE = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 2))
#: Seconds until fast keepalive detects a dead peer.
FAST_KEEPALIVE_SECONDS = 6.0
#: The most bytes of a read: four TLS records.
READ_SIZE = 64 * 1024
#: Bytes that the kernel takes beyond those in flight: one read.
UNSENT_IN_KERNEL = READ_SIZE
#: linux/tcp.h: TCP_NOTSENT_LOWAT; asm-generic/socket.h: SO_BUF_LOCK, since Linux 5.14.
_TCP_NOTSENT_LOWAT, _SO_BUF_LOCK = 25, 72
#: As large as TCP_WINDOW_CLAMP may be: only the buffer bounds the window.
_NO_WINDOW_CLAMP = 2**30
#: Linux' ``struct tcp_info`` (linux/tcp.h): its size; retransmits and zero-window probes (two
#: bytes); unacknowledged segments; milliseconds since the peer's last segment.
_TCP_INFO_SIZE = 104
_RETRIES = struct.Struct("=2x2B")
_UNACKED = struct.Struct("=24xI")
_LAST_RECEIVED = struct.Struct("=56xI")
#: The errors of calls on a closed socket: its descriptor is -1, for which uvloop raises ValueError.
_CLOSED = (OSError, ValueError)


class PeerState(Enum):
    """The state of the peer according to TCP."""

    ACKNOWLEDGED = "it acknowledged everything that was sent"
    UNACKNOWLEDGED = "it has not acknowledged everything yet"
    STALLED = "it has not acknowledged what was sent again, or its window is closed"
    LOST = "it does not respond any more"


def request_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for requests, watches and logs, which detects a dead peer also while sending.
    ``address`` is an entry of getaddrinfo."""
    sock = tunnel_socket(address)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MILLISECONDS)
    return sock


def tunnel_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket for tunnels: as `request_socket`, but a live peer may stop reading for any time.

    Linux counts a closed window as unacknowledged, so TCP_USER_TIMEOUT would cut ``kubectl exec
    -i`` to a program that does not read. Keepalive sends nothing while bytes are in flight, so
    senders check `peer_state`.
    """
    family, kind, proto = address[0], address[1], address[2]
    sock = socket.socket(family=family, type=kind, proto=proto)
    enable_keepalive(sock)
    limit_unsent(sock)
    return sock


def enable_keepalive(sock: socket.socket) -> None:
    """Turns on TCP keepalive; on a listening socket, for all connections accepted from it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set_tcp_options(sock, KEEPALIVE_PROBES)


def use_fast_keepalive(sock: socket.socket) -> None:
    """Makes a mostly silent connection, such as a watch, detect a dead peer in
    `FAST_KEEPALIVE_SECONDS`; a slow network may break it earlier."""
    _set_tcp_options(sock, _FAST_KEEPALIVE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(FAST_KEEPALIVE_SECONDS * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def limit_unsent(sock: socket.socket) -> None:
    """Limits what the kernel holds for a peer that does not read to `UNSENT_IN_KERNEL` and one
    segment more; on a listening socket, for all connections accepted from it.

    The congestion window still grows, so that a path with a long round trip is as fast as before.
    """
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL)


def resize_receive_buffer(sock: socket.socket, size: int) -> bool:
    """Limits the received bytes that the kernel holds until they are read; those it has already
    stay. Returns False if the limit is the system's instead.

    That is so if half the size is more than ``net.core.rmem_max`` (208 KiB in older kernels). Then
    the kernel chooses the size, up to the last number of ``net.ipv4.tcp_rmem`` (6 MiB there). The
    socket is connected: earlier, the size would limit the scale of its window for good.
    """
    with contextlib.suppress(*_CLOSED):
        half = size // 2  # The kernel doubles it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, half)
        if sys.platform == "linux":
            # The kernel does not move the clamp for a size that is set.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, _NO_WINDOW_CLAMP)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < 2 * half:
                return not leave_receive_buffer_to_kernel(sock)
    return True


def leave_receive_buffer_to_kernel(sock: socket.socket) -> bool:
    """Ends a limit of `resize_receive_buffer`; returns whether the system can, as Linux 5.14."""
    with contextlib.suppress(*_CLOSED):
        sock.setsockopt(socket.SOL_SOCKET, _SO_BUF_LOCK, 0)
        return sys.platform == "linux"
    return False


def has_unread_bytes(sock: socket.socket) -> bool:
    """Whether the kernel holds received bytes that the program has not read."""
    with contextlib.suppress(*_CLOSED):
        return any(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)))
    return False


def _set_tcp_options(sock: socket.socket, options: tuple[tuple[str, int], ...]) -> None:
    for name, value in options:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_state(sock: socket.socket | None) -> PeerState:
    """The state of the peer; ACKNOWLEDGED on systems without TCP_INFO, and without a connection."""
    with contextlib.suppress(*_CLOSED):
        if sock is not None and hasattr(socket, "TCP_INFO"):
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
            return read_tcp_info(info)
    return PeerState.ACKNOWLEDGED


def has_unacknowledged_bytes(sock: socket.socket | None) -> bool:
    """Whether the kernel holds bytes that the peer has not acknowledged, as far as it knows."""
    with contextlib.suppress(*_CLOSED):
        if sock is not None:
            held = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ of Linux
            return any(held)
    return False


def read_tcp_info(info: bytes) -> PeerState:
    """Reads a ``struct tcp_info``; for other sockets than TCP it is empty: ACKNOWLEDGED.

    A peer with a closed window acknowledges each probe, so the count of probes is at most one. The
    time since the last segment alone would not tell, since probes are up to two minutes apart.
    """
    if len(info) < _LAST_RECEIVED.size:
        return PeerState.ACKNOWLEDGED
    retries = max(_RETRIES.unpack_from(info))
    if retries > 1 and _LAST_RECEIVED.unpack_from(info)[0] >= USER_TIMEOUT_MILLISECONDS:
        return PeerState.LOST
    if retries:
        return PeerState.STALLED
    if _UNACKED.unpack_from(info)[0]:
        return PeerState.UNACKNOWLEDGED
    return PeerState.ACKNOWLEDGED


# -- reading -------------------------------------------------------------------------------------


class Receiver(Protocol):
    """A protocol that takes its data from a `SocketReader`. It keeps no reference to the data."""

    def data_received(self, data: memoryview, /) -> None: ...
    def eof_received(self) -> bool: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class SocketReader(asyncio.BufferedProtocol):
    """The protocol of a socket; passes everything on to ``receiver``, and calls ``on_full`` after a
    read that has filled the buffer. `read_size` returns how many bytes a read may have, from 1 to
    `READ_SIZE`."""

    __slots__ = ("_buffer", "_on_full", "_receiver", "_size", "read_size")

    def __init__(
        self,
        receiver: Receiver,
        *,
        read_size: Callable[[], int] = lambda: READ_SIZE,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._receiver = receiver
        self._on_full = on_full
        self.read_size = read_size
        self._size = 0  # of the current read
        loop = asyncio.get_running_loop()
        self._buffer = _buffers.get(loop) or _buffers.setdefault(
            loop, memoryview(bytearray(READ_SIZE))
        )

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        self._size = self.read_size()
        return self._buffer[: self._size]

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.data_received(self._buffer[:nbytes])
        if nbytes == self._size:
            self._on_full()

    def eof_received(self) -> bool:
        return self._receiver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()


_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, memoryview] = WeakKeyDictionary()
