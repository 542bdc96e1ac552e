"""TLS over a transport of the event loop: exact to the last byte, whoever ends first.

The event loops' own TLS is not used where bytes are tunnelled, because uvloop's drops what it has
received but not yet handed over when the peer hangs up while reading is paused, and because
neither lets one direction end before the other. Here the same holds on every event loop:

- Everything that the peer sent reaches `data_received`, in order, before `eof_received` or
  `connection_lost`, also when reading was paused meanwhile.
- `pause_reading` pauses the connection below, so what is held here stays under one read of it.
- `write_eof` ends one direction (close_notify) and leaves the other open. An `eof_received` that
  returns True leaves ours open when the peer ends its own.
- `connection_made` of the protocol above comes after the handshake. A handshake that fails, or is
  slower than its limit, ends the connection, and the protocol above never hears of it; `ready`
  says why. Certificates are verified by OpenSSL as the context asks, host name included.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

#: Bytes handed over at a time: four records of TLS, one write to the operating system.
READ_SIZE = 64 * 1024
#: Seconds for a handshake: that of CONNECT_TIMEOUT, and short for peers that never begin one.
HANDSHAKE_TIMEOUT = 10.0

Buffer = bytes | bytearray | memoryview


class TlsLayer(asyncio.Transport, asyncio.Protocol):
    """A protocol to the transport below, a transport to the protocol above."""

    # There are thousands of them: each holds as little as it can.
    __slots__ = (
        "_above",
        "_below",
        "_closing",
        "_eof_sent",
        "_eof_wanted",
        "_error",
        "_incoming",
        "_loop",
        "_make_above",
        "_outgoing",
        "_paused",
        "_received_end",
        "_timer",
        "_tls",
        "_told_end",
        "ready",
    )

    def __init__(
        self,
        context: ssl.SSLContext,
        above: Callable[[], asyncio.Protocol],
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        session: ssl.SSLSession | None = None,
        handshake_timeout: float = HANDSHAKE_TIMEOUT,
    ) -> None:
        """``session`` is one of an earlier connection to the same peer with the same context: if
        that still knows it, nobody's certificate is sent and checked again."""
        super().__init__()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
            session=session,
        )
        self._make_above: Callable[[], asyncio.Protocol] | None = above
        self._above: asyncio.Protocol | None = None
        self._below: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            handshake_timeout, self._too_slow
        )
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done when the handshake is: its error is an ssl.SSLError or another OSError."""
        # Nobody has to wait for it, so nobody may be told that nobody did.
        self.ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._error: Exception | None = None
        self._paused = False
        self._received_end = False  # the connection below has no more bytes
        self._told_end = False  # the protocol above knows that
        self._eof_wanted = False
        self._eof_sent = False
        self._closing = False

    # -- from below --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        self._shake()

    def data_received(self, data: bytes) -> None:
        # In pieces: OpenSSL keeps as much room as it once needed for as long as this lasts.
        view = memoryview(data)
        for at in range(0, len(view), READ_SIZE):
            self._incoming.write(view[at : at + READ_SIZE])
            if self._above is not None or self._shake():
                self._read()

    def eof_received(self) -> bool:
        self._received_end = True
        if self._above is None:
            self._fail(ConnectionResetError("the peer hung up during the TLS handshake"))
        else:
            self._read()
        return True  # when to close is decided here, by what the protocol above answers

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        if self._above is None:
            self._not_ready(exc or ConnectionResetError("the peer hung up"))
            return
        if not self._closing:
            # A reset must not take with it what came before, paused or not.
            self._paused = False
            self._read()
        self._closing = True
        self._above.connection_lost(self._error or exc)

    def pause_writing(self) -> None:
        if self._above is not None:
            self._above.pause_writing()

    def resume_writing(self) -> None:
        if self._above is not None:
            self._above.resume_writing()

    # -- the handshake -----------------------------------------------------------------------

    def _shake(self) -> bool:
        """Goes on with the handshake; whether it is done."""
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
        make, self._make_above = self._make_above, None  # with all that it holds
        if make is None:
            raise RuntimeError("a TLS handshake ends once")
        self._above = make()
        self._above.connection_made(self)
        if not self.ready.done():
            self.ready.set_result(None)
        return True

    def _end_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _too_slow(self) -> None:
        self._not_ready(TimeoutError("the TLS handshake took too long"))
        if self._below is not None:
            self.abort()

    def _not_ready(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)

    def _fail(self, error: Exception) -> None:
        """Ends the connection, after the alert that OpenSSL has for the peer."""
        self._error = error
        self._not_ready(error)
        self._flush()
        self._closing = True
        self._lower.close()

    # -- reading -----------------------------------------------------------------------------

    def _read(self) -> None:
        above = self._upper
        while not (self._paused or self._told_end or self._closing):
            data = self._decrypted()
            if not data:
                break
            above = self._upper  # `set_protocol` may have been called by the one before
            above.data_received(data)
        if self._closing:
            return
        self._flush()
        if self._eof_wanted:
            self._send_eof()
        if self._received_end and not self._paused and not self._told_end:
            self._told_end = True
            if not above.eof_received():
                self.close()

    def _decrypted(self) -> bytes:
        """What has come, some `READ_SIZE` of it; nothing when all is read or TLS is broken."""
        parts: list[bytes] = []
        size = 0
        if self._error is not None:
            self._fail(self._error)
            return b""
        try:
            while size < READ_SIZE and (part := self._tls.read(READ_SIZE)):
                parts.append(part)  # of one record, 16 KiB at most
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
        """Nothing more comes until `resume_reading`. Calling it twice is no error."""
        if not self._paused and not self._closing:
            self._paused = True
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """What was held back comes on the loop's next turn."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._resumed)

    def _resumed(self) -> None:
        if self._paused or self._closing:
            return
        self._read()
        if not self._paused and not self._closing:
            self._lower.resume_reading()

    def is_reading(self) -> bool:
        """Whether data may come."""
        return not self._paused and not self._closing

    # -- writing -----------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Sends the bytes, or keeps them below; nothing after `write_eof` or `close`."""
        if self._closing or self._eof_wanted:
            return
        rest = memoryview(data).cast("B")
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """As one write: one TLS record where there would be many."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """True: a direction of TLS can end alone."""
        return True

    def write_eof(self) -> None:
        """Tells the peer that no more comes, after all that was written."""
        if not self._eof_wanted and not self._closing:
            self._eof_wanted = True
            self._send_eof()

    def _send_eof(self) -> None:
        # OpenSSL reads on as it ends our direction, and takes data that it finds for a fault of
        # the peer; so what has come is handed over first, if need be when reading goes on.
        if self._eof_sent or (self._incoming.pending and not self._told_end):
            return
        self._eof_sent = True
        self._close_notify()

    def _close_notify(self) -> None:
        # NB: no error: it is in the outgoing bytes now, or the peer has given up TLS already.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending and self._below is not None:
            self._below.write(self._outgoing.read())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the connection below, where all that is not yet sent is held."""
        self._lower.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Bytes that are not yet handed to the operating system, as encrypted."""
        return self._lower.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Low and high, of the connection below."""
        return self._lower.get_write_buffer_limits()

    # -- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """No more data comes; what was written is sent, then the connection ends. Nothing bounds
        the time for that but `abort`."""
        if self._closing:
            return
        self._closing = True
        if self._above is not None and not self._eof_sent:
            self._close_notify()
        self._lower.close()

    def abort(self) -> None:
        """Ends the connection now."""
        self._closing = True
        self._lower.abort()

    def is_closing(self) -> bool:
        """Whether the end has begun from this side, or is there."""
        return self._closing

    # -- who is above and below --------------------------------------------------------------

    @property
    def _upper(self) -> asyncio.Protocol:
        if self._above is None:
            raise RuntimeError("a TlsLayer reads before its handshake is done")
        return self._above

    @property
    def _lower(self) -> asyncio.Transport:
        if self._below is None:
            raise RuntimeError("a TlsLayer is used before its connection is made")
        return self._below

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """From now on this one is above; its `connection_made` is not called."""
        self._above = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """The protocol above."""
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
