"""A hostile API server and a hostile relay agent, as handlers of `FakeRemote`.

The seed and the request determine a response. The request names its exchange: ``n7x`` is attacked,
``v7x`` gets a valid response.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from typing import Any

import orjson
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived
from h2.exceptions import H2Error

from tests.bridge.kubelet.fake_api_servers import Handler, UpgradeRequest
from tests.bridge.relay.fake_pods import Forward, server_frame
from tests.fuzz import agent_messages, remote_responses
from tests.fuzz.mutation import Extra, mangled

#: Seconds that a server waits for what the client sends next, and at the end of a stalled exchange.
PAUSE, STALL = 0.03, 4.0
_EXCHANGE = re.compile(r"(?:%3D|\b)([nv]\d+x)")


class _Exchange:
    """The random choices of one request."""

    def __init__(self, seed: int, first_line: str) -> None:
        found = _EXCHANGE.search(first_line)
        self.name = found[1] if found else ""
        self.valid = self.name.startswith("v")
        self.rng = random.Random(f"{seed}:{first_line}")

    def pieces(self, pieces: list[bytes], extra: Extra, *, share: float = 1.0) -> list[bytes]:
        """The pieces that are sent: in this share of the exchanges hostile ones."""
        if self.valid or self.rng.random() >= share:
            return pieces
        return mangled(self.rng, pieces, extra)

    async def send(self, request: UpgradeRequest, data: bytes) -> None:
        """Sends the bytes, sometimes in several writes."""
        cuts = [self.rng.randint(0, len(data)) for _ in range(self.rng.choice((0, 0, 0, 1, 3)))]
        cuts = [0, *sorted(cuts), len(data)]
        for start, end in itertools.pairwise(cuts):
            await request.send(data[start:end])
            if end < len(data):
                await asyncio.sleep(0.002)

    async def end(self, request: UpgradeRequest) -> None:
        """Closes or aborts the connection, or first waits for the client."""
        form = self.rng.random()
        if self.valid or form < 0.02:
            await _drain(request, STALL)
        elif form < 0.5:
            await _drain(request, PAUSE)
        elif form < 0.7:
            request.writer.transport.abort()


async def _drain(request: UpgradeRequest, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await request.wait_closed()


# -- the API server ----------------------------------------------------------------------------


def hostile_remote(seed: int) -> Handler:
    """Answers over HTTP/1.1, or HTTP/2."""

    async def handle(request: UpgradeRequest) -> None:
        if request.method == "PRI":
            await _serve_http2(request, seed)
            return
        while await _serve_http1(request, seed):
            lines = (await request.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            request.method, request.target, _ = lines[0].split(" ")
            pairs = (line.partition(":") for line in lines[1:])
            request.headers = [(name, value.strip()) for name, _, value in pairs]

    return handle


async def _serve_http1(request: UpgradeRequest, seed: int) -> bool:
    """Answers one request; returns whether another one may follow."""
    for size in request.header_values("Content-Length"):
        await request.reader.readexactly(int(size))
    # A command can contain a token that is another one in each run.
    exchange = _Exchange(seed, f"{request.method} {request.target.partition('&command=')[0]}")
    if upgrade := request.header_values("Upgrade"):
        await _upgrade(request, exchange, spdy=upgrade == ["SPDY/3.1"])
        return False
    is_watch = "watch=1" in request.target
    code, body = remote_responses.response_body(
        exchange.rng, request.target, exchange.name, valid=exchange.valid
    )
    if is_watch or "/proxy/" in request.target:
        extra = remote_responses.extra_line if is_watch else remote_responses.extra_sample
        body = exchange.pieces(body, extra, share=0.8)
    if exchange.valid and is_watch:
        await request.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(body))
        await exchange.end(request)
        return False
    # A list over TLS is what precedes a watch over HTTP/2.
    share = 0.1 if request.writer.get_extra_info("ssl_object") else 0.5
    response = remote_responses.http1(exchange.rng, body, code=code, valid=exchange.valid)
    sent = b"".join(exchange.pieces(response, remote_responses.extra_http1, share=share))
    await exchange.send(request, sent)
    if b"Connection: close\r\n" not in sent and (exchange.valid or exchange.rng.random() < 0.4):
        return True
    if not exchange.valid:
        await exchange.end(request)
    return False


async def _upgrade(request: UpgradeRequest, exchange: _Exchange, *, spdy: bool) -> None:
    rng = exchange.rng
    if spdy:
        head = [b"HTTP/1.1 101 Switching Protocols\r\n", b"Upgrade: SPDY/3.1\r\n"]
        head += [b"X-Stream-Protocol-Version: portforward.k8s.io\r\n", b"\r\n"]
        frames, extra = remote_responses.spdy_frames(), remote_responses.extra_spdy
    else:
        opening = Forward(request, exchange.name, 80).opening()
        head = (opening.partition(b"\r\n\r\n")[0] + b"\r\n\r\n").splitlines(keepends=True)
        is_exec = "/exec?" in request.target
        frames = (
            remote_responses.command_frames(request.target)
            if is_exec
            else remote_responses.websocket_frames(80)
        )
        extra = remote_responses.extra_websocket
    if not exchange.valid and rng.random() < 0.15:
        code = rng.choice((200, 400, 401, 403, 404, 500, 502))
        status = [b'{"kind":"Status"}']
        head, frames = remote_responses.http1(rng, status, code=code, valid=False), []
    head = exchange.pieces(head, remote_responses.extra_http1, share=0.2)
    frames = exchange.pieces(frames, extra)
    # A valid session answers the streams that the client has opened.
    cut = 0 if exchange.valid else rng.choice((0, 0, len(frames), rng.randint(0, len(frames))))
    await exchange.send(request, b"".join([*head, *frames[:cut]]))
    if frames[cut:]:
        await _read(request)
        await exchange.send(request, b"".join(frames[cut:]))
    await exchange.end(request)


async def _read(request: UpgradeRequest) -> bytes:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PAUSE):
            return await request.reader.read(2**16)
    return b""


async def _serve_http2(request: UpgradeRequest, seed: int) -> None:
    state = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
    state.initiate_connection()
    received = b"PRI * HTTP/2.0\r\n\r\n"
    while received:
        try:
            events = state.receive_data(received)
            frames = remote_responses.http2_frames(state.data_to_send())
            await request.send(b"".join(frames))
            for event in events:
                if isinstance(event, RequestReceived):
                    await _answer_http2(request, state, event, seed)
        except H2Error:  # the state does not know what was sent instead of its frames
            request.writer.transport.abort()
            return
        received = await request.reader.read(2**16)


async def _answer_http2(
    request: UpgradeRequest, state: H2Connection, event: Any, seed: int
) -> None:
    target, stream = dict(event.headers)[":path"], event.stream_id
    exchange = _Exchange(seed, target)
    code, body = remote_responses.response_body(
        exchange.rng, target, exchange.name, valid=exchange.valid
    )
    body = exchange.pieces(body, remote_responses.extra_line, share=0.5)
    if not exchange.valid and exchange.rng.random() < 0.1:
        code = exchange.rng.choice((204, 307, 401, 404, 410, 429, 500))
    ends = not exchange.valid and exchange.rng.random() < 0.5
    remote_responses.http2(state, stream, body, code=code, ends=ends)
    frames = exchange.pieces(
        remote_responses.http2_frames(state.data_to_send()),
        lambda rng: remote_responses.extra_http2(rng, stream),
        share=0.7,
    )
    await exchange.send(request, b"".join(frames))
    if not exchange.valid and exchange.rng.random() < 0.05:
        request.writer.transport.abort()


# -- the relay agent ---------------------------------------------------------------------------


def hostile_agent(seed: int) -> Handler:
    """A pod behind an API server that is not hostile."""

    async def handle(request: UpgradeRequest) -> None:
        exchange = _Exchange(seed, request.target)
        forward = Forward(request, exchange.name, 80)
        await forward.begin()
        first = orjson.loads((await forward.receive()) or b"{}")
        exchange.rng = random.Random(f"{seed}:{request.target}:{[*first]}")
        if "control" in first:
            lines = agent_messages.control_lines(exchange.rng, valid=exchange.valid)
            pieces = exchange.pieces(lines, agent_messages.extra_line, share=0.8)
        elif "take" in first:
            frames = agent_messages.connection_frames()
            pieces = exchange.pieces(frames, agent_messages.extra_frame)
        else:
            frames = agent_messages.datagram_frames()
            pieces = exchange.pieces(frames, agent_messages.extra_datagram)
        data, size = b"".join(pieces), exchange.rng.choice((2**15, 2**15, 100, 1))
        parts = [data[at : at + size] for at in range(0, min(len(data), 3000 * size), size)]
        await exchange.send(request, b"".join(server_frame(2, b"\x00" + part) for part in parts))
        await exchange.end(request)

    return handle
