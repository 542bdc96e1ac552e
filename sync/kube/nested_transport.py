"""The base of connections that run inside another connection.

To the connection below, a `LayeredTransport` is a protocol; to the protocol above, a transport.
This class passes calls through; subclasses encode and decode the data.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, cast

Buffer = bytes | bytearray | memoryview
_LINGER_ZERO = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.Transport) -> None:
    """Ends a connection immediately, so that the peer sees that it is broken: with RST, or with
    what `LayeredTransport.reset` sends. `asyncio.Transport.abort` of a socket would send FIN."""
    if isinstance(transport, LayeredTransport):
        transport.reset()
        return
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # the connection has ended already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
    transport.abort()


class LayeredTransport(asyncio.Transport, asyncio.Protocol):
    """``above`` receives the data (None: not known yet). Subclasses define ``__slots__``: there are
    thousands."""

    __slots__ = ("_above", "_below", "_closing")

    resets_in_order = False
    """Whether the peer gets all that was written before a `reset`, because the reset is a message;
    an RST of TCP discards what the peer has not acknowledged."""

    def __init__(self, above: asyncio.Protocol | None = None) -> None:
        super().__init__()
        self._above = above
        self._below: asyncio.Transport | None = None
        self._closing = False  # by this side

    # -- from below ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        self._upper.connection_made(self)

    def eof_received(self) -> bool:
        return False  # the transport below closes, and `connection_lost` follows

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    # -- to below --------------------------------------------------------------------------

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def abort(self) -> None:
        self._closing = True
        self._lower.abort()

    def reset(self) -> None:
        """Ends the connection so that the peer sees that it is broken (`reset_connection`)."""
        self._closing = True
        if self._below is not None:
            reset_connection(self._below)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """Pauses the connection below; data that has been read may still arrive."""
        self._lower.pause_reading()

    def resume_reading(self) -> None:
        self._lower.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Sets the limits of the connection below, which holds all unsent data."""
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._lower.get_write_buffer_size()

    def set_read_size(self, read_size: Callable[[], int]) -> None:
        """Sets how many bytes one read of the socket may have (`sync.kube.socket_reader`); without
        effect where another protocol reads it."""
        if isinstance(self._below, LayeredTransport):
            self._below.set_read_size(read_size)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._lower.get_extra_info(name, default)

    @property
    def receiving_socket(self) -> socket.socket | None:
        """The socket that its data arrives at, also where other connections share that."""
        sock: socket.socket | None = self._lower.get_extra_info("socket")
        return sock

    def _write_below(self, data: Buffer) -> None:
        """Writes to the connection below, unless it has ended: subclasses may report that later,
        after the data before it, and uvloop raises RuntimeError for a write until then."""
        if self._below is not None and not self._below.is_closing():
            self._below.write(data)

    def _end_upper(self, exc: Exception | None) -> None:
        """Reports the end to the protocol above. Both refer to each other no longer, so that they
        are freed without the garbage collector: thousands of connections may end in a minute."""
        above, self._above = self._upper, None
        above.connection_lost(exc)

    @property
    def _upper(self) -> asyncio.Protocol:
        if self._above is None:
            raise RuntimeError(f"{type(self).__name__} has no protocol yet")
        return self._above

    @property
    def _lower(self) -> asyncio.Transport:
        if self._below is None:
            raise RuntimeError(f"{type(self).__name__} has no connection yet")
        return self._below
