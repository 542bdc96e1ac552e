"""The messages of a hostile relay agent as pieces: the lines of its control connection, the frames
of a forwarded connection, and those of its stream of datagrams."""

from __future__ import annotations

import random
import struct

import orjson

from bridge.base.version import version
from bridge.relay.reverse.datagram_stream import packed_address
from tests.fuzz.mutation import hostile_json

#: The ports of the routes of each agent.
TCP_PORT, UDP_PORT = 1000, 2000
#: The answer of the home cluster's pods, which send back what they receive.
ECHO = b"hello"


def control_lines(rng: random.Random, *, valid: bool) -> list[bytes]:
    """The greeting, the ports, and connections that have arrived."""
    token = f"token-{rng.getrandbits(40)}"
    messages: list[object] = [
        {"version": 1, "release": version(), "datagrams": token},
        {"listening": [TCP_PORT], "listening_datagrams": [UDP_PORT]},
        {"arrived": token, "port": TCP_PORT, "from": "192.0.2.1"},
        *([] if valid else [{"dropped": {"queue": 3, "no-pod": 1}}, {"pong": 1}]),
    ]
    first, *others = (orjson.dumps(message) + b"\n" for message in messages)
    if valid:
        return [first, *others]
    if rng.random() < 0.2:
        first = hostile_json(rng, messages[0]) + b"\n"
    return [first, *(hostile_json(rng, message) + b"\n" for message in messages[1:])]


def extra_line(rng: random.Random) -> bytes:
    """A hostile line."""
    size = int(10 ** rng.uniform(1, 5.3))
    return rng.choice(
        [
            b"{}\n",
            b"\n",
            b"x" * size,
            b'{"a":"%s"}\n' % (b"x" * size),
            b'{"listening":[%s1]}\n' % (b"1," * (size // 2)),
            b'{"listening":%s}\n' % orjson.dumps(rng.sample(range(1, 65536), size // 20)),
            b'{"arrived":"%x","port":%d,"from":"a"}\n'
            % (rng.getrandbits(40), rng.choice((TCP_PORT, UDP_PORT, 0, 9, 2**40))),
            b'{"version":1,"release":"\\u001b[31m%s"}\n' % (b"a" * size),
            b'{"dropped":{"queue":%d}}\n' % rng.choice((0, -1, 2**47, 2**63)),
        ]
    )


def connection_frames() -> list[bytes]:
    """A forwarded connection that sends something and ends."""
    return [len(ECHO).to_bytes(4, "big") + ECHO, bytes(4)]


def extra_frame(rng: random.Random) -> bytes:
    """A hostile frame of a connection."""
    size = rng.choice((1, 1, 100, 2**17))
    return rng.choice(
        [
            size.to_bytes(4, "big") + rng.randbytes(size),
            b"\x00\x00\x00\x01x",
            bytes(4),
            rng.choice((2**32 - 1, 2**32 - 2, 2**18 + 1, 2**18)).to_bytes(4, "big"),
            rng.randbytes(rng.randint(1, 9)),
        ]
    )


def datagram_frames() -> list[bytes]:
    """Datagrams of two clients."""
    return [_datagram(ECHO, UDP_PORT, client) for client in (1, 2)]


def extra_datagram(rng: random.Random) -> bytes:
    """A hostile frame of the stream of datagrams."""
    size = rng.choice((0, 0, 1, 1500, 65507, 65535))
    port = rng.choice((UDP_PORT, UDP_PORT, TCP_PORT, 0, 9))
    address = rng.choice(("192.0.2.1", "0.0.0.0", "::", "ff02::1", "::ffff:0:0"))
    return rng.choice(
        [
            _datagram(bytes(size), port, rng.randint(0, 65535), address),
            _datagram(b"", UDP_PORT, rng.randint(0, 65535), address),
            rng.randbytes(rng.randint(1, 60)),
        ]
    )


def _datagram(data: bytes, port: int, client: int, address: str = "192.0.2.1") -> bytes:
    return struct.pack("!HHH", len(data), port, client) + packed_address(address) + data
