"""Frames of SPDY/3.1, as far as port-forwards need them: encoded, and parsed from bytes. Pure.

Follows draft-mbelshe-httpbis-spdy-00, 2.2 to 2.6. A client sends SYN_STREAM, DATA, RST_STREAM, PING
and GOAWAY. Header blocks of a server are not decompressed: a port-forward's replies carry nothing
in them. Header blocks of the client are one zlib stream for each connection, without the
dictionary, which servers of Go (compress/zlib) accept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

#: Types of control frames.
SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY, HEADERS = 1, 2, 3, 6, 7, 8
#: The flag of a frame that ends the sender's half of the stream.
FLAG_FIN = 0x01
#: The reset code of a stream that its sender no longer needs.
CANCEL = 5
_VERSION = 3
_CONTROL = 0x8000
HEAD_SIZE = 8
#: The head of a zlib stream: deflate, the smallest window, no dictionary (RFC 1950, 2.2).
_ZLIB_HEAD = b"\x08\x1d"
#: An empty stored block.
_FLUSHED = b"\x00\x00\x00\xff\xff"
#: Bytes in a control frame: those that a server of port-forwards sends have less than a hundred.
MAX_CONTROL_SIZE = 4 * 1024


class ProtocolError(ValueError):
    """The peer does not speak SPDY/3.1."""


class Frame(NamedTuple):
    """A control frame, or a piece of a data frame."""

    type: int
    """0 for data."""
    stream: int
    """The stream, or the number of a ping."""
    payload: bytes
    """The data; of control frames the bytes after the first four."""
    is_last: bool
    """Whether the sender's half of the stream ends with it."""


class HeaderEncoder:
    """Encodes the SYN_STREAM frames of one connection, in the order in which they are sent.

    The zlib stream has stored blocks only (RFC 1951, 3.2.4): a compressor would take longer, and
    hold 8 KiB for each connection, to save a hundred bytes. Each ends with an empty block, as after
    Z_SYNC_FLUSH: without it, Go's decompressor (compress/flate) waits for the next block.
    """

    __slots__ = ("_has_begun",)

    def __init__(self) -> None:
        self._has_begun = False

    def syn_stream(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """The frame that opens a stream. Header names are lower case."""
        plain = [struct.pack("!I", len(headers))]
        for name, value in headers.items():
            for text in (name.encode(), value.encode()):
                plain += [struct.pack("!I", len(text)), text]
        block = b"".join(plain)
        begin = b"" if self._has_begun else _ZLIB_HEAD
        self._has_begun = True
        stored = struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF) + block
        return _control(SYN_STREAM, struct.pack("!IIH", stream, 0, 0) + begin + stored + _FLUSHED)


def data_head(stream: int, size: int, *, is_last: bool = False) -> bytes:
    """The head of a data frame with ``size`` bytes."""
    return struct.pack("!II", stream, (FLAG_FIN << 24 if is_last else 0) | size)


def rst_stream(stream: int) -> bytes:
    """The frame that resets a stream as no longer needed."""
    return _control(RST_STREAM, struct.pack("!II", stream, CANCEL))


def ping(number: int) -> bytes:
    """A ping; the answer to one has its number."""
    return _control(PING, struct.pack("!I", number))


def _control(kind: int, payload: bytes) -> bytes:
    return struct.pack("!HHI", _CONTROL | _VERSION, kind, len(payload)) + payload


class FrameParser:
    """Splits received bytes into frames. Data is passed on as it arrives, in pieces."""

    __slots__ = ("_held", "_is_last", "_left", "_stream")

    def __init__(self) -> None:
        self._held = b""  # of a head or of a control frame, as far as it has arrived
        self._stream = 0
        self._left = 0  # bytes of the data frame that are still to arrive
        self._is_last = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete. Raises ProtocolError."""
        if self._held:
            data, self._held = self._held + data, b""
        at, end = 0, len(data)
        while at < end:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                yield Frame(0, self._stream, piece, self._is_last and not self._left)
                continue
            if end - at < HEAD_SIZE:
                break
            first, second = struct.unpack_from("!II", data, at)
            size, flags = second & 0xFFFFFF, second >> 24
            if first >> 31:
                if size > MAX_CONTROL_SIZE:
                    raise ProtocolError(f"a control frame of {size} bytes")
                if end - at < HEAD_SIZE + size:
                    break
                yield _parse_control(first, flags, data[at + HEAD_SIZE : at + HEAD_SIZE + size])
                at += HEAD_SIZE + size
                continue
            at += HEAD_SIZE
            self._stream, self._left, self._is_last = first, size, bool(flags & FLAG_FIN)
            if not size:
                yield Frame(0, first, b"", self._is_last)
        self._held = data[at:]


def _parse_control(first: int, flags: int, payload: bytes) -> Frame:
    version, kind = first >> 16 & 0x7FFF, first & 0xFFFF
    if version != _VERSION or len(payload) < 4:
        raise ProtocolError(f"a control frame of version {version} with {len(payload)} bytes")
    number = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
    has_end = kind in (SYN_REPLY, HEADERS)
    return Frame(kind, number, payload[4:], has_end and bool(flags & FLAG_FIN))
