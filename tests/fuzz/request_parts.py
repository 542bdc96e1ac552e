"""The words and lines of hostile requests, and requests with valid framing made of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

#: Part of every header value that no response may contain.
PLANTED = b"planted-"
#: Lines of headers that authenticate at the kubelet API's fake home.
TOKEN = b"Authorization: Bearer good"
WEBSOCKET_TOKEN = b"Sec-WebSocket-Protocol: v4, base64url.bearer.authorization.k8s.io.Z29vZA"


@dataclass(frozen=True, slots=True)
class Listener:
    """One port of the process under test."""

    name: str
    port: int
    tls: bool
    authenticates: bool
    paths: tuple[bytes, ...]
    """Paths that are served."""
    served: bytes
    """Of these the one that a caller with a credential gets with 200."""

    @property
    def host(self) -> bytes:
        return b"Host: 127.0.0.1:%d" % self.port


METHODS = [b"GET", b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"]
NO_METHODS = [b"CONNECT", b"PRI", b"get", b"G\x00T", b"", b"M" * 50, b"\xff", b"GET\t", b"QUERY"]
_WORDS = [
    *(b"containerLogs", b"exec", b"attach", b"portForward", b"run", b"default", b"web", b"app"),
    *(b"uid-1", b"pods", b"logs", b"metrics", b"debug", b"healthz", b"livez", b"readyz", b"mutate"),
    *(b"bridge", b"v1", b"status", b"stats", b"configz", b"checkpoint", b"secrets", b"init"),
]
_TRICKS = [
    *(b"..", b".", b"", b"%2e%2e", b"%2E.", b"%2f", b"..%2f", b"%5c..", b"%252e%252e", b"%00"),
    *(b"%", b"%zz", b"%ff", b"\xff", b"\xc3\xa4", b"a" * 300, b";x", b"*", b"~", b"%20", b"&"),
    *(b"web%2f..%2f..%2fsecrets", b"web%3fcontainer=init", b"app%23", b"%77eb", b"%0d%0aX:1"),
    *(b"\xed\xa0\x80", b"%ed%a0%80", b"%c0%af", b"\xe2\x80\xae", b"[::1]", b"@", b"a:b", b"\\"),
]
_KEYS = [
    *(b"command", b"output", b"input", b"tty", b"error", b"container", b"follow", b"port", b"cmd"),
    *(b"tailLines", b"sinceTime", b"sinceSeconds", b"limitBytes", b"%63ontainer", b"", b";"),
    *(b"verbose", b"exclude", b"timeout", b"stream", b"dryRun"),
]
_VALUES = [
    *(b"1", b"0", b"-1", b"true", b"", b"x" * 5000, b"%00", b"%zz", b"%", b"\xff", b"%ff", b"+"),
    *(b"%26container=other", b"9" * 40, b"2026-01-01T00:00:00Z", b"All", b"..%2f", b"%0d%0aX:1"),
    *(b"%ed%a0%80", b"80", b"65536", b"1e9", b"0x10", b"ping", b"\xc3\xa4"),
]
LINES = [
    *(b"Authorization: Bearer bad", b"Authorization: Bearer \xff", b"Authorization: Bearer"),
    *(b"Authorization: Basic x", b"Authorization: Bearer \xc3\xa4", b"Impersonate-User: admin"),
    *(b"X-Remote-User: a", b"X-Forwarded-For: ::1", b"Forwarded: for=_x", b"Via: 1.1 x"),
    *(b"Connection: keep-alive, TE", b"Te: trailers", b"Accept: text/html", b"Range: bytes=0-"),
    *(b"Content-Encoding: gzip", b"Content-Encoding: br", b"Accept-Encoding: gzip", b"Cookie: a"),
    *(b"X-Http-Method-Override: DELETE", b"Content-Type: \xff", b"Origin: https://elsewhere"),
    *(b"If-None-Match: *", b"Accept-Charset: utf-7", b"Date: never", b"Max-Forwards: 0"),
    *(b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.\xff, v4",),
]
UPGRADES = [
    *(b"Upgrade: SPDY/3.1", b"Upgrade: websocket", b"Upgrade: h2c", b"Upgrade: \xff", b"Upgrade:"),
    *(b"Upgrade: websocket, SPDY/3.1", b"Upgrade: TLS/1.0", b"Upgrade: a" + b"b" * 3000),
    *(
        b"Connection: Upgrade",
        b"Connection: upgrade, close",
        b"Connection: Upgrade, HTTP2-Settings",
    ),
    *(b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", b"Expect: x"),
    *(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 99", b"HTTP2-Settings: AAMAAABk"),
    *(b"Sec-WebSocket-Protocol: v4", b"Sec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io"),
    *(b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=99",),
    *(b"X-Stream-Protocol-Version: \xff", b"X-Stream-Protocol-Version: v4.channel.k8s.io"),
    *(b"Content-Length: 0", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
]
NO_LINES = [
    *(b"Content-Length: -1", b"Content-Length: x", b"Content-Length: +1", b"Content-Length: 1_0"),
    *(b"Transfer-Encoding: gzip", b"X: a\x00b", b"X : a", b": a", b"X", b" folded", b"\tfolded"),
    *(b"X: \x01", b"X\x00Y: a", b"X: a\rY: b", b"\xff: a", b"Host: other", b"Host:", b"X(): a"),
    *(b"Content-Length: 99999999999999999999999", b"Expect: 200-ok", b"X: a\n folded"),
]
VERSIONS = [
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/2.0",
    b"HTTP/9.9",
    b"HTTP/1.1 ",
    b"http/1.1",
    b"",
    b"X",
]


def some(rng: random.Random, choices: Sequence[bytes], most: int) -> list[bytes]:
    """At most ``most`` of the choices; they can repeat."""
    return rng.choices(choices, k=rng.randint(0, most))


def _tame(choices: Sequence[bytes]) -> list[bytes]:
    """The choices that keep a head valid: visible ASCII characters, and spaces in headers."""
    return [it for it in choices if it.isascii() and it.decode().isprintable()]


_TAME_TRICKS, _TAME_LINES, _TAME_VALUES = _tame(_TRICKS), _tame(LINES), _tame(_VALUES)


def _path(rng: random.Random, listener: Listener, *, wild: bool) -> bytes:
    if rng.random() < 0.5:
        return rng.choice(listener.paths)
    tricks = _TRICKS if wild else _TAME_TRICKS
    path = b"/" + b"/".join(rng.choices([*_WORDS, *_WORDS, *tricks], k=rng.randint(0, 7)))
    if not wild:
        return path
    form = rng.random()
    if form < 0.1:
        return rng.choice([b"https://elsewhere", b"http://[::1", b"//elsewhere", b"x:"]) + path
    if form < 0.2:
        return rng.choice([b"*", b"elsewhere:443", b"?", b"pods", b"#", b"/%2e" * 2000, b"\xff"])
    if form < 0.21:
        return b"/" + rng.choice([b"a", b"/", b"%61"]) * rng.randint(3_000, 300_000)
    return path


def _query(rng: random.Random, *, wild: bool) -> bytes:
    if rng.random() < 0.5:
        return b""
    if rng.random() < 0.3:
        return b"?output=1&command=true&port=80&cmd=x"
    if rng.random() < 0.01:
        return b"?" + b"a&" * rng.randint(4_000, 9_000)
    values = _VALUES if wild else _TAME_VALUES
    pairs = zip(some(rng, _KEYS, 6), some(rng, values, 6), strict=False)
    return b"?" + b"&".join(key + b"=" + value for key, value in pairs)


def _planted(rng: random.Random) -> list[bytes]:
    """Headers whose values no response may contain."""
    mark = PLANTED + b"%08x" % rng.getrandbits(32)
    lines = [b"Cookie: session=" + mark, b"Authorization: Bearer " + mark, b"X-Secret: " + mark]
    return some(rng, lines, 2)


def credential(rng: random.Random, listener: Listener) -> list[bytes]:
    if not (listener.authenticates and listener.tls) or rng.random() < 0.4:
        return _planted(rng)
    return [TOKEN] if rng.random() < 0.8 else [WEBSOCKET_TOKEN, b"Upgrade: websocket"]


def head(
    method: bytes, target: bytes, lines: Sequence[bytes], version: bytes = b"HTTP/1.1"
) -> bytes:
    return b"\r\n".join([b"%s %s %s" % (method, target, version), *lines, b"", b""])


def _chunked(rng: random.Random, body: bytes) -> bytes:
    """The body in chunks, with extensions and trailers."""
    parts = []
    while body:
        size = rng.randint(1, max(1, len(body)))
        extension = rng.choice([b"", b"", b";a=b", b";x"])
        parts.append(b"%x%s\r\n%s\r\n" % (size, extension, body[:size]))
        body = body[size:]
    return b"".join([*parts, b"0\r\n", rng.choice([b"", b"", b"X-Trailer: a\r\n"]), b"\r\n"])


def target(rng: random.Random, listener: Listener, *, wild: bool) -> bytes:
    return _path(rng, listener, wild=wild) + _query(rng, wild=wild)


def request(rng: random.Random, listener: Listener, *more: bytes, wild: bool = False) -> bytes:
    """A request with valid framing; a wild one can have bytes that are not valid in a head."""
    body = b"" if rng.random() < 0.6 else rng.randbytes(rng.randint(1, 2000))
    others = some(rng, LINES if wild else _TAME_LINES, 4)
    lines = [listener.host, *credential(rng, listener), *others, *more]
    rng.shuffle(lines)
    if body and rng.random() < 0.5:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(rng, body)
    elif body:
        lines.append(b"Content-Length: %d" % len(body))
    return head(rng.choice(METHODS), target(rng, listener, wild=wild), lines) + body
