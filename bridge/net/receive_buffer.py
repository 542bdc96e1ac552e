"""Bounds what the kernel holds of the bytes that a spliced connection receives.

While its reader is fast, Linux lets the buffer of a connection grow to megabytes. The peer may send
as much, even after the reader has stopped: shrinking the buffer only then comes too late. So the
size follows from what is free:

- A buffer has `MIN_BUFFER` bytes until `GROW_AFTER` bytes have been received, then as many as the
  namespace's share permits (`bridge.net.unsent_budget`). On a path with a long round trip, that
  makes the connection fast.
- A buffer is small again once the connection has received less than that between two calls of
  `shrink_if_quiet`, and everything is read.
- So all buffers of one kind of connections hold at most `MIN_BUFFER` each, and the budget's limit.
"""

from __future__ import annotations

import socket

from bridge.net.unsent_budget import MAX_BUFFER, MIN_BUFFER, UnsentShare
from sync.kube.sockets import has_unread_bytes, resize_receive_buffer

#: Bytes: eight round trips with a small buffer, and more than go to a client that reads nothing.
GROW_AFTER = 512 * 1024


class ReceiveBuffer:
    """The receive buffer of one connected socket."""

    __slots__ = ("_is_busy", "_received", "_share", "_size", "_sock")

    def __init__(self, sock: socket.socket, share: UnsentShare) -> None:
        self._sock = sock
        self._share = share
        self._size = MIN_BUFFER
        self._received = 0  # since it was resized
        self._is_busy = False
        resize_receive_buffer(sock, MIN_BUFFER)

    def received(self, count: int) -> None:
        """Grows the buffer if so many bytes make that due."""
        self._received += count
        if self._received >= GROW_AFTER:
            self._is_busy = True
            self._resize(max(self._size, self._share.buffer_size()))

    def shrink_if_quiet(self) -> bool:
        """Shrinks the buffer if its connection has received little since the last call; returns
        whether the buffer is small."""
        if not self._is_busy and self._size > MIN_BUFFER and not has_unread_bytes(self._sock):
            self._resize(MIN_BUFFER)
        self._is_busy = False
        return self._size == MIN_BUFFER

    def release(self) -> None:
        """Ends the use of the socket; another connection may use it."""
        if self._size > MIN_BUFFER:
            self._resize(MIN_BUFFER)

    def _resize(self, size: int) -> None:
        """Also if the size is the same: a stream that shares the socket may have changed it."""
        self._received = 0
        if not resize_receive_buffer(self._sock, size):
            size = MAX_BUFFER  # about what the kernel chooses at most
        self._share.hold_buffer(size - self._size)
        self._size = size
