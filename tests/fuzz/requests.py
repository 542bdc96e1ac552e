"""Generates hostile requests: pure functions of a random number generator and a listener.

Each function of `KINDS` makes one `Attack`: the bytes of one connection, and what is known of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fuzz.request_parts import (
    LINES,
    METHODS,
    NO_LINES,
    NO_METHODS,
    TOKEN,
    UPGRADES,
    VERSIONS,
    Listener,
    credential,
    head,
    request,
    some,
    target,
)
from tests.fuzz.reviews import random_review


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
        # The secret of the dashboard is its path, with a slash behind it or without.
        secret = listener.served.strip(b"/")
        marks = (b"Bearer good", b"Z29vZA") if listener.tls else (secret,)
        return self.certificate or any(mark in self.data for mark in marks)


def _valid(rng: random.Random, listener: Listener) -> Attack:
    """Pipelined requests with valid framing; the last one closes the connection."""
    count = rng.randint(1, 8)
    requests = [request(rng, listener, wild=rng.random() < 0.05) for _ in range(count - 1)]
    last = request(rng, listener, b"Connection: close")
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
    lines = [listener.host, *credential(rng, listener), *some(rng, LINES, 2)]
    lines += some(rng, NO_LINES, 3)
    rng.shuffle(lines)
    method = rng.choice([*METHODS, *NO_METHODS])
    raw = head(method, target(rng, listener, wild=True), lines, rng.choice(VERSIONS))
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
    raw = request(rng, listener)
    return Attack("truncated", [raw[: rng.randint(0, len(raw) - 1)]])


def _mutated(rng: random.Random, listener: Listener) -> Attack:
    """A valid request with some bytes changed."""
    raw = bytearray(request(rng, listener))
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
    raw = request(rng, listener, b"Connection: close")
    cuts = sorted(rng.sample(range(len(raw) + 1), k=min(len(raw), rng.randint(2, 12))))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return Attack("dripped", parts, pause=rng.uniform(0, 0.02), complete=True)


def _upgrade(rng: random.Random, listener: Listener) -> Attack:
    """An upgrade, mostly malformed, with bytes of no protocol behind it."""
    lines = [listener.host, *credential(rng, listener), *some(rng, UPGRADES, 6)]
    if rng.random() < 0.5:
        lines += [b"Connection: Upgrade", rng.choice([b"Upgrade: SPDY/3.1", b"Upgrade: websocket"])]
    raw = head(rng.choice(METHODS), target(rng, listener, wild=True), lines)
    size = rng.choice([0, 10, 1000, 100_000 if rng.random() < 0.1 else 0])
    return Attack("upgrade", [raw, rng.randbytes(size)])


def _stream(rng: random.Random, listener: Listener) -> Attack:
    """An upgrade that the kubelet API accepts, or almost."""
    lines = [listener.host, b"Connection: Upgrade", b"Upgrade: SPDY/3.1", *some(rng, UPGRADES, 1)]
    lines += credential(rng, listener)
    raw = head(b"POST", rng.choice(listener.paths) + b"?output=1&command=a&port=80", lines)
    return Attack("stream", [raw, rng.randbytes(rng.randint(0, 5000))], pause=0.01)


def _pipelined(rng: random.Random, listener: Listener) -> Attack:
    """Many requests at once, among them malformed ones."""
    count = rng.randint(2, 40)
    parts = [request(rng, listener, wild=rng.random() < 0.01) for _ in range(count)]
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
