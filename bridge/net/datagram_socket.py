"""UDP sockets that neither wait nor queue: what the kernel does not take is dropped by the caller.

asyncio's datagram transports queue without a bound what the kernel does not take at once. Here the
kernel's buffers are the only queue of a socket, and `send` reports a datagram that does not fit.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable
from typing import Any, Literal

from bridge.net.listening_socket import unbound_socket

#: More than the longest datagram of UDP, whose length field has 16 bits and includes its header.
_MAX_DATAGRAM = 1 << 16
#: Bytes that the kernel is asked to queue in each direction of a port, which all clients share; it
#: grants what net.core permits. Connected sockets, of which there are many, have its default.
_BUFFER = 1 << 20
#: Datagrams that are read at once, before other sockets have their turn.
_BATCH = 32
#: asm-generic/socket.h: the kernel reports how many datagrams it has dropped on a full queue.
_SO_RXQ_OVFL = 40

#: Why a datagram was not sent: a buffer of the kernel is full, it is longer than the network
#: permits, or the destination cannot be reached. "" if it was sent.
SendResult = Literal["", "queue", "too-long", "no-way"]
#: Called with a datagram and the address of its sender.
OnDatagram = Callable[[bytes, Any], None]


class DatagramSocket:
    """A UDP socket of the event loop. ``on_datagram`` is called for each datagram that arrives;
    ``on_dropped`` with the number of those that the kernel has dropped because its queue was full
    ("queue"), or that a connected peer has rejected ("no-way")."""

    __slots__ = ("_dropped", "_on_datagram", "_on_dropped", "_sock")

    def __init__(
        self,
        sock: socket.socket,
        on_datagram: OnDatagram,
        on_dropped: Callable[[SendResult, int], None],
    ) -> None:
        self._sock = sock
        self._on_datagram = on_datagram
        self._on_dropped = on_dropped
        self._dropped = 0  # as the kernel counts, modulo 2**32
        asyncio.get_running_loop().add_reader(sock.fileno(), self._readable)

    @property
    def is_closed(self) -> bool:
        return self._sock.fileno() < 0

    def send(self, datagram: bytes, address: Any = None) -> SendResult:
        """Sends to the address, or to the connected one. Raises nothing."""
        try:
            try:
                self._send(datagram, address)
            except ConnectionRefusedError:  # an earlier datagram, which is reported once
                self._on_dropped("no-way", 1)
                self._send(datagram, address)
        except (BlockingIOError, InterruptedError):
            return "queue"
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return "queue"
            return "too-long" if error.errno == errno.EMSGSIZE else "no-way"
        return ""

    def _send(self, datagram: bytes, address: Any) -> None:
        if address is None:
            self._sock.send(datagram)
        else:
            self._sock.sendto(datagram, address)

    def close(self) -> None:
        if not self.is_closed:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()

    def _readable(self) -> None:
        for _ in range(_BATCH):
            if self.is_closed:
                return
            try:
                datagram, control, _, sender = self._sock.recvmsg(
                    _MAX_DATAGRAM, socket.CMSG_SPACE(4)
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # an ICMP error about an earlier datagram, which is reported once
                self._on_dropped("no-way", 1)
                continue
            for level, kind, value in control:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    (dropped,) = struct.unpack("=I", value[:4])
                    self._on_dropped("queue", (dropped - self._dropped) % (1 << 32))
                    self._dropped = dropped
            self._on_datagram(datagram, sender)


def bound_socket(host: str, port: int) -> socket.socket:
    """A UDP socket at the port; ``host`` is as in `listening_socket`. Raises OSError."""
    sock = unbound_socket(host, socket.SOCK_DGRAM)
    try:
        _prepare(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def connected_socket(address: str, port: int) -> socket.socket:
    """A UDP socket that receives from this address and port only. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        _prepare(sock)
        sock.connect((address, port))
    except BaseException:
        sock.close()
        raise
    return sock


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
