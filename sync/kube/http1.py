"""HTTP/1.1 heads and error bodies for upgrades: formatted, and parsed strictly.

Pure. Everything that is not plainly HTTP/1.1 is a ValueError, because a head that two programs
parse differently allows request smuggling. h11 0.16 does not replace this module: it accepts folded
headers, bare line feeds, and Content-Length beside Transfer-Encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Far above any head that an API server sends; bounds the bytes that a peer can make a bridge
#: buffer.
HEAD_LIMIT = 64 * 1024
#: A v1.Status has some hundred bytes; a longer body is none.
BODY_LIMIT = 256 * 1024

END = b"\r\n\r\n"

_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of a response, in order; a header name may be repeated."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


def request(method: str, target: str, headers: Headers) -> bytes:
    """Formats the head of a request. Raises ValueError for control characters."""
    return _message(f"{method} {target} HTTP/1.1", headers)


def response(status: int, reason: str, headers: Headers) -> bytes:
    """Formats the head of a response. Raises ValueError for control characters."""
    return _message(f"HTTP/1.1 {status} {reason}", headers)


def _message(first: str, headers: Headers) -> bytes:
    lines = [first]
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent")  # the value may be a secret
        lines.append(f"{name}: {value}")
    if not _VALUE.fullmatch(first):
        raise ValueError("the first line cannot be sent: it has control characters")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def parse(raw: bytes) -> Head:
    """Parses the bytes before the empty line. Raises ValueError."""
    first, *lines = raw.decode("utf-8", "surrogateescape").split("\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ValueError("the response is not HTTP/1.1")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("the response has a malformed header")
        headers.append((name, value))
    return Head(int(status[1]), status[2] or "", tuple(headers))


def body(head: Head, raw: bytes, *, ended: bool) -> bytes | None:
    """Parses the body of a response from the bytes received so far; None if it is incomplete.

    ``ended``: the connection has ended. Raises ValueError for a malformed framing, a body longer
    than `BODY_LIMIT`, and one that is cut short.
    """
    codings = ",".join(head.values("Transfer-Encoding")).lower()
    lengths = set(head.values("Content-Length"))
    if codings and (codings != "chunked" or lengths):
        raise ValueError("the response's body has an unsupported framing")
    if codings:
        whole = _chunked(raw)
    elif lengths:
        whole = _counted(raw, lengths)
    else:
        whole = raw if ended else None
    if len(whole if whole is not None else raw) > BODY_LIMIT:
        raise ValueError("the response's body is longer than an error's")
    if whole is None and ended:
        raise ValueError("the response's body is cut short")
    return whole


def _counted(raw: bytes, lengths: set[str]) -> bytes | None:
    (length,) = lengths if len(lengths) == 1 else ("",)
    if not (length.isascii() and length.isdecimal()) or int(length[:12]) > BODY_LIMIT:
        raise ValueError("the response's Content-Length is not valid for an error")
    return raw[: int(length)] if len(raw) >= int(length) else None


def _chunked(raw: bytes) -> bytes | None:
    parts: list[bytes] = []
    while True:
        line, ending, rest = raw.partition(b"\r\n")
        if not ending:
            return None
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise ValueError("the response's body has a malformed chunk")
        count = int(size[1], 16)
        if count == 0:
            return b"".join(parts)  # trailers are ignored
        if len(rest) < count + 2:
            return None
        if rest[count : count + 2] != b"\r\n":
            raise ValueError("the response's body has a malformed chunk")
        parts.append(rest[:count])
        raw = rest[count + 2 :]
