"""Generates hostile requests: pure functions of a random number generator and a listener.

Each function of `KINDS` makes one `Attack`: the bytes of one connection, and what is known of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fuzz.reviews import random_review

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


@dataclass(slots=True)
class Attack:
    """One connection of a hostile caller."""

    kind: str
    parts: list[bytes]
    """Written in this order, with `pause` seconds between them."""
    requests: int = 1
    """The number of requests among the bytes."""
    complete: bool = False
    """Whether the server owes a response and closes the connection by itself."""
    ambiguous: bool = False
    """Whether two programs could disagree about where a request ends: no part of it is served."""
    pause: float = 0.0
    certificate: bool = False
    """Whether the client has a certificate of home's CA."""
    patient: bool = False
    """Whether the client waits until the server closes the connection."""
    number: int = field(default=0)

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)

    def is_authenticated(self, listener: Listener) -> bool:
        """Whether a request of it may be served. A credential counts wherever it is."""
        if not listener.authenticates:
            return True
        known = (b"Bearer good", b"Z29vZA", listener.served)
        marks = known[:2] if listener.tls else known[2:]
        return self.certificate or any(mark in self.data for mark in marks)


# -- parts of requests ---------------------------------------------------------------------

_METHODS = [b"GET", b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE"]
_NO_METHODS = [b"CONNECT", b"PRI", b"get", b"G\x00T", b"", b"M" * 50, b"\xff", b"GET\t", b"QUERY"]
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
_LINES = [
    *(b"Authorization: Bearer bad", b"Authorization: Bearer \xff", b"Authorization: Bearer"),
    *(b"Authorization: Basic x", b"Authorization: Bearer \xc3\xa4", b"Impersonate-User: admin"),
    *(b"X-Remote-User: a", b"X-Forwarded-For: ::1", b"Forwarded: for=_x", b"Via: 1.1 x"),
    *(b"Connection: keep-alive, TE", b"Te: trailers", b"Accept: text/html", b"Range: bytes=0-"),
    *(b"Content-Encoding: gzip", b"Content-Encoding: br", b"Accept-Encoding: gzip", b"Cookie: a"),
    *(b"X-Http-Method-Override: DELETE", b"Content-Type: \xff", b"Origin: https://elsewhere"),
    *(b"If-None-Match: *", b"Accept-Charset: utf-7", b"Date: never", b"Max-Forwards: 0"),
    *(b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.\xff, v4",),
]
_UPGRADES = [
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
_NO_LINES = [
    *(b"Content-Length: -1", b"Content-Length: x", b"Content-Length: +1", b"Content-Length: 1_0"),
    *(b"Transfer-Encoding: gzip", b"X: a\x00b", b"X : a", b": a", b"X", b" folded", b"\tfolded"),
    *(b"X: \x01", b"X\x00Y: a", b"X: a\rY: b", b"\xff: a", b"Host: other", b"Host:", b"X(): a"),
    *(b"Content-Length: 99999999999999999999999", b"Expect: 200-ok", b"X: a\n folded"),
]
_VERSIONS = [
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


_TAME_TRICKS, _TAME_LINES, _TAME_VALUES = _tame(_TRICKS), _tame(_LINES), _tame(_VALUES)


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


def _credential(rng: random.Random, listener: Listener) -> list[bytes]:
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


def _target(rng: random.Random, listener: Listener, *, wild: bool) -> bytes:
    return _path(rng, listener, wild=wild) + _query(rng, wild=wild)


def _request(rng: random.Random, listener: Listener, *more: bytes, wild: bool = False) -> bytes:
    """A request with valid framing; a wild one can have bytes that are not valid in a head."""
    body = b"" if rng.random() < 0.6 else rng.randbytes(rng.randint(1, 2000))
    others = some(rng, _LINES if wild else _TAME_LINES, 4)
    lines = [listener.host, *_credential(rng, listener), *others, *more]
    rng.shuffle(lines)
    if body and rng.random() < 0.5:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(rng, body)
    elif body:
        lines.append(b"Content-Length: %d" % len(body))
    return head(rng.choice(_METHODS), _target(rng, listener, wild=wild), lines) + body


# -- attacks -----------------------------------------------------------------------------------


def _valid(rng: random.Random, listener: Listener) -> Attack:
    """Pipelined requests with valid framing; the last one closes the connection."""
    count = rng.randint(1, 8)
    requests = [_request(rng, listener, wild=rng.random() < 0.05) for _ in range(count - 1)]
    last = _request(rng, listener, b"Connection: close")
    return Attack("valid", [b"".join([*requests, last])], requests=count, complete=True)


def _reviews(rng: random.Random, listener: Listener) -> Attack:
    """AdmissionReviews of any shape, to every listener."""
    requests = []
    count = rng.randint(1, 4)
    for number in range(count):
        body = random_review(rng)
        lines = [
            listener.host,
            b"Content-Type: application/json",
            b"Content-Length: %d" % len(body),
        ]
        lines += [b"Connection: close"] if number == count - 1 else []
        lines += [b"Expect: 100-continue"] if rng.random() < 0.1 else []
        requests.append(head(b"POST", rng.choice(listener.paths), lines) + body)
    return Attack("reviews", requests, requests=count, complete=True)


def _random_bytes(rng: random.Random, listener: Listener) -> Attack:
    data = rng.randbytes(rng.randint(1, 3000))
    endings = [b"", b"\r\n\r\n", b"\n\n", b"\r\r"]
    return Attack("random bytes", [data + rng.choice(endings)])


def _malformed_head(rng: random.Random, listener: Listener) -> Attack:
    """A head that breaks the grammar of HTTP in one or more places."""
    lines = [listener.host, *_credential(rng, listener), *some(rng, _LINES, 2)]
    lines += some(rng, _NO_LINES, 3)
    rng.shuffle(lines)
    method = rng.choice([*_METHODS, *_NO_METHODS])
    raw = head(method, _target(rng, listener, wild=True), lines, rng.choice(_VERSIONS))
    change = rng.randint(0, 5)
    if change == 0:
        raw = raw.replace(b"\r\n", b"\n")
    elif change == 1:
        raw = raw.replace(b"\r\n", b"\r")
    elif change == 2:
        raw = raw.replace(b" ", b"\x0b")
    return Attack("malformed head", [raw])


def _large_head(rng: random.Random, listener: Listener) -> Attack:
    """Too many headers, or one that is too long."""
    size = int(10 ** rng.uniform(3, 5.3))
    many = [b"X-%d: %d" % (it, it) for it in range(size // 20)]
    lines = rng.choice(
        [many, [b"X: " + b"a" * size], [b"X" * size + b": a"], [b"X: a"] * (size // 50)]
    )
    raw = head(b"GET", rng.choice(listener.paths), [listener.host, *lines])
    return Attack("large head", [raw])


def _ambiguous(rng: random.Random, listener: Listener) -> Attack:
    """Request smuggling: a request with two lengths, and in its body one that would be served."""
    inner = head(b"GET", listener.served, [listener.host, TOKEN, b"Connection: close"])
    closed = b"0\r\n\r\n" + inner
    framings: list[tuple[list[bytes], bytes]] = [
        ([b"Content-Length: 0", b"Content-Length: %d" % len(inner)], inner),
        ([b"Content-Length: %d" % len(inner), b"Content-Length: 0"], inner),
        ([b"Content-Length: %d" % len(closed), b"Transfer-Encoding: chunked"], closed),
        ([b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(closed)], closed),
        ([b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"], closed),
        ([b"Transfer-Encoding: identity, chunked, identity"], closed),
        ([b"Transfer-Encoding: xchunked"], closed),
        ([b"Transfer-Encoding : chunked"], closed),
        ([b"Transfer-Encoding:\x0bchunked"], closed),
        ([b"X: a\r\n Transfer-Encoding: chunked"], closed),
        ([b"X: a\nTransfer-Encoding: chunked", b"Content-Length: %d" % len(closed)], closed),
        ([b"Content-Length: 0, %d" % len(inner)], inner),
        ([b"Content-Length: +%d" % len(inner)], inner),
        ([b"Content-Length: %d " % len(inner), b"Content-Length: 1"], inner),
        ([b"Transfer-Encoding: chunked"], b"1\r\nZ\r\nQ\r\n\r\n" + inner),
        ([b"Transfer-Encoding: chunked"], b"0x0\r\n\r\n" + inner),
        ([b"Transfer-Encoding: chunked"], b"-0\r\n\r\n" + inner),
        ([b"Transfer-Encoding: chunked"], b"10000000000000000\r\n" + inner),
    ]
    lines, body = rng.choice(framings)
    method = rng.choice([b"POST", b"GET", b"PUT"])
    raw = head(method, b"/nothing/here", [listener.host, *lines]) + body
    return Attack("smuggling", [raw], requests=2, ambiguous=True)


def _truncated(rng: random.Random, listener: Listener) -> Attack:
    """A request that ends in the middle."""
    raw = _request(rng, listener)
    return Attack("truncated", [raw[: rng.randint(0, len(raw) - 1)]])


def _mutated(rng: random.Random, listener: Listener) -> Attack:
    """A valid request with some bytes changed."""
    raw = bytearray(_request(rng, listener))
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(raw))
        change = rng.randint(0, 2)
        if change == 0:
            raw[at] = rng.randint(0, 255)
        elif change == 1:
            raw[at:at] = rng.choice([b"\r\n", b"\x00", b" ", b":", b"\xff", b"\n", b"%"])
        else:
            del raw[at : at + rng.randint(1, 4)]
    return Attack("mutated", [bytes(raw)])


def _dripped(rng: random.Random, listener: Listener) -> Attack:
    """A request in many small writes."""
    raw = _request(rng, listener, b"Connection: close")
    cuts = sorted(rng.sample(range(len(raw) + 1), k=min(len(raw), rng.randint(2, 12))))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return Attack("dripped", parts, pause=rng.uniform(0, 0.02), complete=True)


def _upgrade(rng: random.Random, listener: Listener) -> Attack:
    """An upgrade, mostly malformed, with bytes of no protocol behind it."""
    lines = [listener.host, *_credential(rng, listener), *some(rng, _UPGRADES, 6)]
    if rng.random() < 0.5:
        lines += [b"Connection: Upgrade", rng.choice([b"Upgrade: SPDY/3.1", b"Upgrade: websocket"])]
    raw = head(rng.choice(_METHODS), _target(rng, listener, wild=True), lines)
    size = rng.choice([0, 10, 1000, 100_000 if rng.random() < 0.1 else 0])
    return Attack("upgrade", [raw, rng.randbytes(size)])


def _stream(rng: random.Random, listener: Listener) -> Attack:
    """An upgrade that the kubelet API accepts, or almost."""
    lines = [listener.host, b"Connection: Upgrade", b"Upgrade: SPDY/3.1", *some(rng, _UPGRADES, 1)]
    lines += _credential(rng, listener)
    raw = head(b"POST", rng.choice(listener.paths) + b"?output=1&command=a&port=80", lines)
    return Attack("stream", [raw, rng.randbytes(rng.randint(0, 5000))], pause=0.01)


def _pipelined(rng: random.Random, listener: Listener) -> Attack:
    """Many requests at once, among them malformed ones."""
    count = rng.randint(2, 40)
    parts = [_request(rng, listener, wild=rng.random() < 0.01) for _ in range(count)]
    if rng.random() < 0.5:
        parts.append(_malformed_head(rng, listener).data)
    return Attack("pipelined", [b"".join(parts)], requests=len(parts))


Maker = Callable[[random.Random, Listener], Attack]

#: The kinds of attacks with their weights.
KINDS: dict[Maker, int] = {
    _valid: 30,
    _reviews: 10,
    _random_bytes: 8,
    _malformed_head: 12,
    _large_head: 2,
    _ambiguous: 6,
    _truncated: 5,
    _mutated: 10,
    _dripped: 2,
    _upgrade: 6,
    _stream: 4,
    _pipelined: 4,
}


def attack(seed: int, number: int, listeners: Sequence[Listener]) -> tuple[Listener, Attack]:
    """The attack of this number: the same for the same seed."""
    rng = random.Random(f"{seed}:{number}")
    listener = rng.choice(listeners)
    made = rng.choices(list(KINDS), list(KINDS.values()))[0](rng, listener)
    made.number = number
    made.certificate = listener.name == "kubelet" and rng.random() < 0.3
    made.patient = not made.complete and rng.random() < 0.005
    return listener, made
