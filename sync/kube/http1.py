"""HTTP/1.1 messages as far as an upgrade needs them: written, and read strictly.

Pure: bytes in, values out. What is not plainly HTTP/1.1 is a ValueError, never a guess: a head that
two programs read differently is how requests are smuggled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

#: Far above any head that an API server sends; what a peer can make us hold stays small.
HEAD_LIMIT = 64 * 1024
#: A Status is some hundred bytes. More than this is not one.
BODY_LIMIT = 256 * 1024

END = b"\r\n\r\n"

_STATUS_LINE = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: ([^\x00-\x08\x0a-\x1f\x7f]*))?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")

Headers = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of an answer, in their order; a name may stand there twice."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        """The values of the headers of that name, in whatever case it is written."""
        return [value for key, value in self.headers if key.lower() == name.lower()]


def request(method: str, target: str, headers: Headers) -> bytes:
    """The head of a request. Raises ValueError for what would end a line early."""
    return _message(f"{method} {target} HTTP/1.1", headers)


def answer(status: int, reason: str, headers: Headers) -> bytes:
    """The head of an answer. Raises ValueError for what would end a line early."""
    return _message(f"HTTP/1.1 {status} {reason}", headers)


def _message(first: str, headers: Headers) -> bytes:
    lines = [first]
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent")  # its value may be a secret
        lines.append(f"{name}: {value}")
    if not _VALUE.fullmatch(first):
        raise ValueError("the first line cannot be sent: it has control characters")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")


def parse(raw: bytes) -> Head:
    """The head whose bytes these are, without the empty line. Raises ValueError."""
    first, *lines = raw.decode("utf-8", "surrogateescape").split("\r\n")
    status = _STATUS_LINE.fullmatch(first)
    if status is None:
        raise ValueError("the answer is not HTTP/1.1")
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        value = value.strip(" \t")
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("the answer has a malformed header")
        headers.append((name, value))
    return Head(int(status[1]), status[2] or "", tuple(headers))


def body(head: Head, raw: bytes, *, ended: bool) -> bytes | None:
    """The body of an answer of which ``raw`` has come; None while there is more to come.

    ``ended`` says that nothing more comes. Raises ValueError where the framing is malformed,
    over `BODY_LIMIT`, or cut short.
    """
    codings = ",".join(head.values("Transfer-Encoding")).lower()
    lengths = set(head.values("Content-Length"))
    if codings and (codings != "chunked" or lengths):
        raise ValueError("the answer's body has a framing that is not understood")
    if codings:
        whole = _chunked(raw)
    elif lengths:
        whole = _counted(raw, lengths)
    else:
        whole = raw if ended else None
    if len(whole if whole is not None else raw) > BODY_LIMIT:
        raise ValueError("the answer's body is too long for an error")
    if whole is None and ended:
        raise ValueError("the answer's body is cut short")
    return whole


def _counted(raw: bytes, lengths: set[str]) -> bytes | None:
    (length,) = lengths if len(lengths) == 1 else ("",)
    if not (length.isascii() and length.isdecimal()) or int(length[:12]) > BODY_LIMIT:
        raise ValueError("the answer's Content-Length is not one that an error has")
    return raw[: int(length)] if len(raw) >= int(length) else None


def _chunked(raw: bytes) -> bytes | None:
    parts: list[bytes] = []
    while True:
        line, ending, rest = raw.partition(b"\r\n")
        if not ending:
            return None
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            raise ValueError("the answer's body has a malformed chunk")
        count = int(size[1], 16)
        if count == 0:
            return b"".join(parts)  # trailers are of no use here
        if len(rest) < count + 2:
            return None
        if rest[count : count + 2] != b"\r\n":
            raise ValueError("the answer's body has a malformed chunk")
        parts.append(rest[:count])
        raw = rest[count + 2 :]
