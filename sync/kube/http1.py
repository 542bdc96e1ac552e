"""HTTP/1.1 for upgrades: heads that are sent, and responses that are read, by h11.

Pure. Anything but plain HTTP/1.1 is a ValueError, because a head that two programs parse
differently allows request smuggling: this module rejects what h11 0.16 accepts beyond that (folded
headers, bare line feeds, control characters, Content-Length beside Transfer-Encoding). Reading
takes time in proportion to the response, which has at most `HEAD_LIMIT` and `BODY_LIMIT` bytes and
`MAX_PARTS` parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import h11

#: Far above any head that an API server sends; bounds the bytes that a peer can make a bridge
#: buffer.
HEAD_LIMIT = 64 * 1024
#: A v1.Status has some hundred bytes; a longer body is none.
BODY_LIMIT = 256 * 1024
#: Heads, chunks and pieces of chunks, as they arrive. Go's servers send chunks of 2 KiB, networks
#: pieces of 1 KiB.
MAX_PARTS = 1000

_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Line endings of heads that h11 accepts and this module does not.
_LENIENT = re.compile(rb"(?<!\r)\n|\n[ \t]")

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


class ResponseReader:
    """Reads the responses to one request: `feed` it what arrives, and b"" at the end."""

    def __init__(self, method: str) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        # h11 expects the response to this request; `request` formats the one that is sent.
        upgrade = [("Host", "server"), ("Connection", "upgrade"), ("Upgrade", "any")]
        self._h11.send(h11.Request(method=method, target="/", headers=upgrade))
        self._h11.send(h11.EndOfMessage())
        self._unparsed = bytearray()
        self._body = bytearray()
        self._parts = 0
        self._has_ended = False

    @property
    def rest(self) -> bytes:
        """The bytes after the last head."""
        return self._h11.trailing_data[0]

    def feed(self, data: bytes) -> None:
        self._unparsed += data
        self._has_ended = not data
        self._h11.receive_data(data)

    def head(self) -> Head | None:
        """The next head; None if it is incomplete. Raises ValueError if it is malformed."""
        event = self._next_event("head")
        if not isinstance(event, h11.InformationalResponse | h11.Response):
            return None
        raw, rest = self._unparsed, self.rest
        self._unparsed = bytearray(rest)
        headers = [(_text(name), _text(value)) for name, value in event.headers.raw_items()]
        if (
            event.status_code >= 600
            or _LENIENT.search(raw, 0, len(raw) - len(rest))
            or not all(_VALUE.fullmatch(value) for _, value in headers)
        ):
            raise ValueError("the response has a malformed head")
        return Head(event.status_code, _text(event.reason), tuple(headers))

    def body(self, head: Head) -> bytes | None:
        """The body of the response with that head; None if it is incomplete. Raises ValueError if
        it is malformed, cut short or longer than `BODY_LIMIT`."""
        if head.values("Transfer-Encoding") and head.values("Content-Length"):
            raise ValueError("the response's body has an unsupported framing")
        while isinstance(event := self._next_event("body"), h11.Data):
            self._body += event.data
            if len(self._body) > BODY_LIMIT:
                raise ValueError("the response's body is longer than an error's")
        return bytes(self._body) if isinstance(event, h11.EndOfMessage) else None

    def _next_event(self, part: str) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            event = self._h11.next_event()
        except h11.RemoteProtocolError as error:
            # Not chained: the error can quote the response.
            problem = "too long" if error.error_status_hint == 431 else "not HTTP/1.1"
            problem = "cut short" if self._has_ended else problem
            raise ValueError(f"the response's {part} is {problem}") from None
        if event is not h11.NEED_DATA:
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise ValueError("the response has too many parts")
        return event


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
