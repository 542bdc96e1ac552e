"""Connections that run inside another connection: their base, and TLS.

To the connection below, a `LayeredTransport` is a protocol; to the protocol above, a transport.
`LayeredTransport` passes calls through; subclasses encode and decode the data.

`TlsLayer` loses no byte, whichever side ends first. Tunnels do not use the event loops' own TLS:
uvloop's TLS drops received bytes that it has not delivered when the peer disconnects while reading
is paused, and no event loop lets one direction end before the other. On every event loop it
guarantees:

- Everything that the peer sent reaches `data_received`, in order, before `eof_received` or
  `connection_lost`, also if reading was paused meanwhile.
- `pause_reading` pauses the connection below, so that less than one read of it is buffered here.
- At most `READ_SIZE` bytes (`set_read_size`) are read from a socket in one turn of the event loop.
  A peer that makes OpenSSL reply by itself, again and again, is disconnected (`MAX_REPLIES`).
- `write_eof` ends one direction (close_notify) and keeps the other open. If `eof_received` returns
  True, the direction to the peer stays open after the peer has ended its own.
- `connection_made` of the protocol above is called after the handshake. A handshake that fails or
  times out ends the connection without a call to the protocol above; `ready` has the error. OpenSSL
  verifies certificates as the context demands, host name included.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from typing import Any, cast

from sync.kube.sockets import READ_SIZE, SocketReader

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
        """Sets how many bytes one read of the socket may have (`sync.kube.sockets`); without
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


# -- TLS -----------------------------------------------------------------------------------------


#: Bytes that are encrypted or decrypted at once; OpenSSL's replies are counted after so many.
_PIECE = 32 * 1024
#: Bytes of OpenSSL's own replies to received data, some 30 each: rejections of renegotiation (TLS
#: 1.2), which current programs do not request, and new keys (TLS 1.3), which some request after
#: gigabytes. A peer that does not read them would fill the memory.
MAX_REPLIES = 16 * 1024
#: Seconds for a handshake, as CONNECT_TIMEOUT; it also ends peers that never begin one.
HANDSHAKE_TIMEOUT = 10.0


class TlsLayer(LayeredTransport):
    """Encrypts for the transport below, and decrypts for the protocol above."""

    __slots__ = (
        "_eof_reported",
        "_eof_sent",
        "_eof_wanted",
        "_error",
        "_incoming",
        "_is_lost",
        "_loop",
        "_make_above",
        "_outgoing",
        "_paused",
        "_reader",
        "_received_end",
        "_replies",
        "_timer",
        "_tls",
        "ready",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        above: Callable[[], asyncio.Protocol],
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> None:
        """``above`` makes the protocol after the handshake."""
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self._make_above: Callable[[], asyncio.Protocol] | None = above
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            handshake_timeout, self._time_out
        )
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done after the handshake; fails with an ssl.SSLError or another OSError."""
        # Retrieves the exception, so that asyncio does not log it.
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._error: Exception | None = None
        self._reader: SocketReader | None = None  # None above another layer
        self._paused = False  # by the protocol above
        self._is_lost = False
        self._replies = 0
        self._received_end = False  # the connection below has no more bytes
        self._eof_reported = False  # the protocol above was notified
        self._eof_wanted = False
        self._eof_sent = False

    # -- from below --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        if not isinstance(transport, LayeredTransport):
            self._reader = SocketReader(self, on_full=self._end_turn)
            self._below.set_protocol(self._reader)
        self._handshake()

    def data_received(self, data: Buffer) -> None:
        view = memoryview(data)
        # In pieces, as in `write`: OpenSSL keeps its largest buffers until the connection ends.
        for at in range(0, len(view), _PIECE):
            self._incoming.write(view[at : at + _PIECE])
            if self._above is not None or self._handshake():
                self._read()

    def _end_turn(self) -> None:
        """Lets other connections have a turn before more is read."""
        if not (self._paused or self._closing):
            self._lower.pause_reading()
            self._loop.call_soon(self._resumed)

    def eof_received(self) -> bool:
        self._received_end = True
        if self._above is None:
            self._fail(ConnectionResetError("the peer disconnected during the TLS handshake"))
        else:
            self._read()
        return True  # stay open: the protocol above decides

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        if self._above is None:
            self._set_error(exc or ConnectionResetError("the peer closed the connection"))
            return
        if not self._closing:
            # A reset must not discard data that arrived before it, even if reading is paused.
            self._is_lost, self._paused = True, False
            self._read()
        self._closing = True
        self._above.connection_lost(self._error or exc)

    # -- the handshake -----------------------------------------------------------------------

    def _handshake(self) -> bool:
        """Continues the handshake; returns whether it is complete."""
        if self._closing:
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._fail(error)
            return False
        self._flush()
        self._end_timer()
        make, self._make_above = self._make_above, None  # frees what it refers to
        if make is None:
            raise RuntimeError("the TLS handshake was completed twice")
        self._above = make()
        self._above.connection_made(self)
        if not self.ready.done():
            self.ready.set_result(None)
        return True

    def _end_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _time_out(self) -> None:
        self._set_error(TimeoutError("the TLS handshake timed out"))
        if self._below is not None:
            self.abort()

    def _set_error(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    def _fail(self, error: Exception) -> None:
        """Sends OpenSSL's alert and closes the connection."""
        self._error = error
        self._set_error(error)
        self._flush()
        self._closing = True
        self._lower.close()

    # -- reading -----------------------------------------------------------------------------

    def _read(self) -> None:
        above = self._upper
        while not (self._paused or self._eof_reported or self._closing):
            data = self._decrypted()
            if not data:
                break
            above = self._upper  # the previous protocol may have called `set_protocol`
            above.data_received(data)
        if self._closing:
            return
        self._replies += self._outgoing.pending
        if self._replies > MAX_REPLIES:
            self._fail(ConnectionAbortedError("the peer requests new TLS keys too often"))
            return
        self._flush()
        if self._eof_wanted:
            self._send_eof()
        if self._received_end and not (self._paused or self._eof_reported):
            self._eof_reported = True
            if not above.eof_received():
                self.close()

    def _decrypted(self) -> bytes:
        """About `READ_SIZE` decrypted bytes; b"" if there are no more, or after an error."""
        parts: list[bytes] = []
        size = 0
        if self._error is not None:
            self._fail(self._error)
            return b""
        try:
            while size < READ_SIZE and (part := self._tls.read(READ_SIZE)):
                parts.append(part)  # one record, 16 KiB at most
                size += len(part)
            self._received_end = self._received_end or size < READ_SIZE
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._received_end = True
        except ssl.SSLError as error:
            self._error = error
            if not parts:
                self._fail(error)
        return b"".join(parts)

    def pause_reading(self) -> None:
        """Stops calls of `data_received` until `resume_reading`. May be called twice."""
        if not (self._paused or self._closing or self._is_lost):
            self._paused = True
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Delivers buffered data in the loop's next iteration."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resumed)

    def _resumed(self) -> None:
        if self._paused or self._closing:
            return
        if self._above is not None:
            self._read()
        if not self._paused and not self._closing:
            self._lower.resume_reading()

    def set_read_size(self, read_size: Callable[[], int]) -> None:
        if self._reader is not None:
            self._reader.read_size = read_size
        else:
            super().set_read_size(read_size)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    # -- writing -----------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Sends or buffers the bytes; drops them after `write_eof` or `close`."""
        if self._closing or self._eof_wanted:
            return
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self._tls.write(rest[:_PIECE]) :]
                self._flush()
        except ssl.SSLError as error:
            self._fail(error)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Sends close_notify after everything that was written."""
        if not self._eof_wanted and not self._closing:
            self._eof_wanted = True
            self._send_eof()

    def _send_eof(self) -> None:
        # OpenSSL reads while it ends this direction, and treats pending data as an error of the
        # peer; so received data is delivered first, if necessary after reading resumes.
        if self._eof_sent or (self._incoming.pending and not self._eof_reported):
            return
        self._eof_sent = True
        self._close_notify()

    def _close_notify(self) -> None:
        # Not an error: the alert is in the outgoing bytes, or the peer has ended TLS already.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._below is not None:
            self._below.write(self._outgoing.read())

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._lower.get_write_buffer_limits()

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """Sends what was written, then closes the connection. Only `abort` bounds the time."""
        if self._closing:
            return
        self._closing = True
        if self._above is not None and not self._eof_sent:
            self._close_notify()
        self._lower.close()

    # -- neighbours --------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Replaces the protocol above; does not call its `connection_made`."""
        self._above = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._upper

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``peercert``, ``ssl_object`` and ``sslcontext`` of this layer; else from below."""
        if name == "peercert":
            return self._tls.getpeercert()
        if name == "ssl_object":
            return self._tls
        if name == "sslcontext":
            return self._tls.context
        return self._lower.get_extra_info(name, default)
