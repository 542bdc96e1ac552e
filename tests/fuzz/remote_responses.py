"""The responses of a hostile API server as pieces: HTTP/1.1, HTTP/2, SPDY and WebSockets.

Valid ones are the seeds that `tests.fuzz.mutation` changes; the functions ``extra_…`` make hostile
pieces of each protocol.
"""

from __future__ import annotations

import functools
import random
import re
import struct
import zlib
from typing import Any

import orjson
from h2.connection import H2Connection

from tests.bridge.relay.fake_pods import server_frame
from tests.bridge.relay.fake_spdy import PING, RST_STREAM, control, data_frame
from tests.fakeapi.hostile_server import gzip_bomb
from tests.fuzz.mutation import hostile_json
from tests.fuzz.request_parts import NO_LINES
from tests.translators.test_remote_shapes import remote

_POD = remote()
_CODES = (*(200,) * 12, 201, 204, 206, 301, 307, 400, 401, 403, 404, 409, 410, 422, 429, 500, 503)
_DATES = (
    b"never",
    b"Fri, 31 Dec 9999 23:59:59 GMT",
    b"Thu, 01 Jan 1970 00:00:00 +999999999999999",
)
#: The data of a valid port-forward.
GREETING = b"hello"


def pod(name: str) -> dict[str, Any]:
    """A pod of the bridge, with this name."""
    meta = {**_POD["metadata"], "name": name, "namespace": "d", "uid": name}
    return {"apiVersion": "v1", "kind": "Pod", **_POD, "metadata": meta}


def _document(rng: random.Random, target: str, name: str, code: int = 200) -> Any:
    if code >= 300:
        reason = rng.choice(("NotFound", "Expired", "AlreadyExists", "Conflict", ""))
        return {"kind": "Status", "reason": reason, "message": "no", "code": code, "details": {}}
    if f"/{name}" in target or "/pods?" not in target:
        return pod(name)
    more = rng.choice(("", "", f"page-{rng.getrandbits(30)}"))
    items = [pod(name)] * rng.randint(1, 3)
    meta = {"resourceVersion": "7", "continue": more}
    return {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}


def watch_lines(rng: random.Random, name: str, *, valid: bool) -> list[bytes]:
    """Events of a watch, a line each."""
    lines = []
    for version in range(8, 8 + (1 if valid else rng.randint(0, 6))):
        kind = "MODIFIED" if valid else rng.choice(("ADDED", "MODIFIED", "DELETED", "BOOKMARK"))
        obj = pod(name)
        obj["metadata"]["resourceVersion"] = str(version)
        event = {"type": kind, "object": obj}
        lines.append((orjson.dumps(event) if valid else hostile_json(rng, event)) + b"\n")
    return lines


def extra_line(rng: random.Random) -> bytes:
    """A hostile event of a watch."""
    return rng.choice(
        [
            b"\n",
            b"x" * int(10 ** rng.uniform(1, 6)),
            b'{"type":"ERROR","object":{"kind":"Status","code":%d}}\n' % rng.choice((410, 500, 0)),
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}\n',
            b'{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a",'
            b'"namespace":"d","uid":"a","resourceVersion":"%d"}}}\n' % rng.randint(0, 99),
        ]
    )


def metrics_text(name: str) -> list[bytes]:
    """A kubelet's ``/metrics/resource``, in lines."""
    labels = b'{namespace="d",pod="%s"}' % name.encode()
    return [
        b"# HELP pod_cpu_usage_seconds_total CPU\n",
        b"# TYPE pod_cpu_usage_seconds_total counter\n",
        b"pod_cpu_usage_seconds_total%s 4.7 1600000000000\n" % labels,
        b"# TYPE pod_memory_working_set_bytes gauge\n",
        b"pod_memory_working_set_bytes%s 1e+07 1600000000000\n" % labels,
    ]


def extra_sample(rng: random.Random) -> bytes:
    """A hostile line of metrics."""
    size = int(10 ** rng.uniform(1, 5))
    return rng.choice(
        [
            b'pod_cpu_usage_seconds_total{namespace="d",pod="%s"} 1\n' % (b'\\"' * size),
            b"pod_cpu_usage_seconds_total{%s} 1\n" % (b'a="b",' * size),
            b'pod_cpu_usage_seconds_total{pod="' + b"a" * size,
            b"pod_cpu_usage_seconds_total{%s\n" % (b"{" * size),
            b"m %s\n" % rng.choice((b"NaN", b"1e999", b"-Inf", b"0x1", b"1 9" + b"9" * size)),
            b"# TYPE %s\n# HELP x \xff\n" % (b" " * size),
            b" " * size + b"\n",
            b"\xff\x00\n",
        ]
    )


@functools.cache
def _bomb() -> bytes:
    return gzip_bomb(2**26)


def http1(rng: random.Random, body: list[bytes], *, code: int, valid: bool) -> list[bytes]:
    """A response in lines and chunks, with one of the framings of a body."""
    head = [b"HTTP/1.1 %d Status\r\n" % code, b"Content-Type: application/json\r\n"]
    form = rng.random()
    if form > 0.9:
        head.append(b"Content-Encoding: gzip\r\n")
        packer = zlib.compressobj(1, zlib.DEFLATED, 31)
        body = [packer.compress(b"".join(body)) + packer.flush()]
        if form > 0.999 and not valid:
            body = [_bomb()]
    if form < 0.4 or code == 204:
        length = b"Content-Length: %d\r\n" % (0 if code == 204 else sum(map(len, body)))
        return [*head, length, b"\r\n", *([] if code == 204 else body)]
    if form < 0.5:
        return [*head, b"Connection: close\r\n", b"\r\n", *body]
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in body if part]
    return [*head, b"Transfer-Encoding: chunked\r\n", b"\r\n", *chunks, b"0\r\n\r\n"]


def response_body(
    rng: random.Random, target: str, name: str, *, valid: bool
) -> tuple[int, list[bytes]]:
    """The status and the body of a response."""
    if "/proxy/" in target:
        return 200, metrics_text(name)
    if "watch=1" in target:
        return 200, watch_lines(rng, name, valid=valid)
    if valid:
        document = {"metadata": {"resourceVersion": "7"}, "items": [pod(name)]}
        return 200, [orjson.dumps(document if "/pods?" in target else pod(name))]
    code = rng.choice(_CODES)
    return code, [hostile_json(rng, _document(rng, target, name, code))]


def extra_http1(rng: random.Random) -> bytes:
    """A hostile line, chunk or response of HTTP/1.1."""
    size = int(10 ** rng.uniform(1, 5))
    if rng.random() < 0.3:
        return rng.choice(NO_LINES) + b"\r\n"
    return rng.choice(
        [
            b"HTTP/1.1 %d Interim\r\n\r\n" % rng.choice((100, 101, 102, 103, 199)),
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/%d.9 %d \xff\r\n" % (rng.randint(0, 3), rng.choice((0, 99, 600, 10**20))),
            b"Content-Length: %d\r\n" % rng.choice((0, 5, 2**40)),
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Encoding: %s\r\n" % rng.choice((b"gzip", b"deflate", b"br", b"zstd")),
            b"Connection: %s\r\n" % rng.choice((b"close", b"keep-alive", b"upgrade")),
            b"Retry-After: %s\r\n" % rng.choice((b"1", b"9" * 400, b"-1", b"\xd9\xa1")),
            b"Date: %s\r\n" % rng.choice(_DATES),
            b"Location: %s\r\n" % rng.choice((b"http://127.0.0.1:1/", b"//[", b"\xff")),
            b"Set-Cookie: a=%s\r\n" % (b"b" * size),
            b"X-%d: a\r\n" % size * rng.choice((1, 1000)),
            b"%x\r\n" % rng.choice((2**64, 2**31, 5)),
            b"-1\r\n",
            b"5;%s\r\nabcde\r\n" % (b"a" * size),
            b"\r\n",
            rng.randbytes(rng.randint(1, 300)),
        ]
    )


# -- HTTP/2 ------------------------------------------------------------------------------------


def http2(state: H2Connection, stream: int, body: list[bytes], *, code: int, ends: bool) -> None:
    """Lets ``state`` send a response, or the beginning of a longer one."""
    state.send_headers(stream, [(":status", str(code)), ("content-type", "application/json")])
    for part in body:
        for at in range(0, len(part), 2**14):
            piece = part[at : at + 2**14]
            if len(piece) <= state.local_flow_control_window(stream):
                state.send_data(stream, piece)
    if ends:
        state.end_stream(stream)


def http2_frames(raw: bytes) -> list[bytes]:
    """The frames of these bytes."""
    frames = []
    while raw:
        end = 9 + int.from_bytes(raw[:3], "big")
        frames.append(raw[:end])
        raw = raw[end:]
    return frames


def _http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("!IBI", len(payload) << 8 | kind, flags, stream) + payload


def extra_http2(rng: random.Random, stream: int) -> bytes:
    """A hostile frame; ``stream`` is that of a request."""
    form = rng.randrange(9)
    to = rng.choice((stream, stream, stream, 0, stream + 2, 1, 2, 2**31 - 1, 2**31 | stream))
    if form == 0:
        pairs = [
            struct.pack("!HI", rng.randint(0, 9), rng.choice((0, 1, 100, 2**31, 2**32 - 1, 2**24)))
            for _ in range(rng.randint(0, 4))
        ]
        return _http2_frame(4, rng.choice((0, 0, 1)), 0, b"".join(pairs))
    if form == 1:
        return _http2_frame(6, rng.choice((0, 1)), rng.choice((0, 0, to)), bytes(8))
    if form == 2:
        return _http2_frame(7, 0, 0, struct.pack("!II", rng.choice((0, to)), rng.randint(0, 14)))
    if form == 3:
        return _http2_frame(3, 0, to, struct.pack("!I", rng.randint(0, 14)))
    if form == 4:
        window = rng.choice((0, 1, 2**31 - 1, 2**32 - 1))
        return _http2_frame(8, 0, rng.choice((0, to)), struct.pack("!I", window))
    if form == 5:
        block = rng.choice(
            (b"\x48\x03100", b"\x48\x03200", b"\x88", b"\x80", b"\x3f" + b"\xff" * 9)
        )
        block += rng.choice(
            (b"", rng.randbytes(9), b"\x00\x01a\x01b" * 500, b"\x00\x7f\xff\xff\x7f")
        )
        return _http2_frame(1, rng.choice((4, 4, 4, 5, 0, 8, 0x24)), to, block)
    if form == 6:
        size = rng.choice((0, 1, 1, 10, 2**14, 2**14 + 1))
        return _http2_frame(0, rng.choice((0, 0, 0, 1, 8)), to, b"\n" * size)
    if form == 7:
        length = rng.choice((0, 1, 3, 2**14, 2**24 - 1))
        return struct.pack("!IBI", length << 8 | rng.randint(0, 12), rng.getrandbits(8), to)
    size = rng.choice((0, 1, 4, 5, 8, 40, 2**14))
    return _http2_frame(rng.choice((*range(13), 255)), rng.getrandbits(8), to, rng.randbytes(size))


# -- port-forwards -----------------------------------------------------------------------------


def spdy_frames() -> list[bytes]:
    """The session of a pod that sends a greeting on its first stream and ends it."""
    return [
        *(control(2, struct.pack("!II", number, 0)) for number in (1, 3)),
        data_frame(3, GREETING),
        data_frame(3, b"", is_last=True),
        data_frame(1, b"", is_last=True),
    ]


def extra_spdy(rng: random.Random) -> bytes:
    """A hostile frame of SPDY."""
    stream = rng.choice((1, 3, 3, 3, 5, 7, 2, 0, 2**31 - 1))
    size = rng.choice((0, 1, 1, 10, 5000, 2**17))
    return rng.choice(
        [
            data_frame(stream, rng.randbytes(size), is_last=rng.random() < 0.3),
            data_frame(stream, b"x"),
            struct.pack("!II", stream, rng.choice((2**24 - 1, 2**31, 2**32 - 1))),
            control(PING, struct.pack("!I", rng.choice((1, 2, 2**32 - 1)))),
            control(RST_STREAM, struct.pack("!II", stream, rng.randint(0, 12))),
            control(7, struct.pack("!II", stream, 0)),
            control(4, struct.pack("!IIII", 1, 4 << 24, 2**31, 0)),
            control(9, struct.pack("!II", stream, 2**31 - 1)),
            control(rng.choice((1, 2, 8)), struct.pack("!II", stream, 0) + rng.randbytes(size)),
            control(rng.randint(0, 2**16 - 1), rng.randbytes(rng.randint(0, 9))),
            struct.pack("!HHI", 0x8003, 8, 2**24 - 1) + bytes(size),
            rng.randbytes(size),
        ]
    )


def websocket_frames(port: int) -> list[bytes]:
    """The port-forward of a pod that sends a greeting and ends."""
    number = port.to_bytes(2, "little")
    return [
        *(server_frame(2, bytes([channel]) + number) for channel in (0, 1)),
        server_frame(2, b"\x00" + GREETING),
        server_frame(8, b"\x03\xe8"),
    ]


def command_frames(target: str) -> list[bytes]:
    """An exec that writes a greeting and succeeds, with the trailer of `open_shell` if the
    request has a token."""
    token = (re.findall(r"[0-9a-f]{32}", target) or [""])[0]
    trailer = f"\n{token} 0\n\n{token}\n" if token else ""
    return [
        server_frame(2, b"\x01" + GREETING + trailer.encode()),
        server_frame(2, b'\x03{"status":"Success"}'),
        server_frame(8, b"\x03\xe8"),
    ]


def extra_websocket(rng: random.Random) -> bytes:
    """A hostile frame of a WebSocket."""
    size = rng.choice((0, 1, 1, 10, 125, 126, 5000, 2**17))
    channel = bytes([rng.choice((0, 0, 0, 1, 1, 2, 3, 255))])
    lengths = (
        b"\x7e\x00\x01",
        b"\x7f" + b"\xff" * 8,
        b"\x7f" + bytes(7) + b"\x05",
        b"\xfe\x00\x00",
    )
    return rng.choice(
        [
            server_frame(2, channel + rng.randbytes(size)),
            server_frame(2, channel + b"x"),
            server_frame(2, b""),
            server_frame(2, b"\x03" + rng.choice((b"[]", b"{", b'{"status":1}'))),
            bytes([rng.choice((0x00, 0x02, 0x80)), 2]) + channel + b"x",
            server_frame(9, bytes(min(size, 125))),
            server_frame(10, b""),
            server_frame(
                8, rng.choice((b"", b"\x03", b"\x03\xed", b"\x00\x00", b"\x03\xe8\xff\xff"))
            ),
            server_frame(1, b"text"),
            bytes([rng.getrandbits(8)]) + rng.choice(lengths),
            rng.randbytes(size),
        ]
    )
