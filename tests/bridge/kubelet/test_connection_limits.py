"""Limits of the number and duration of idle connections, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bridge.certificates.tls_key_pair import read_files
from bridge.net import accepted_connections
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.fake_api_servers import EXEC, UpgradeRequest, echo, wait_until
from tests.bridge.kubelet.pki import Pki

#: Seconds that a connection may be idle in these tests.
SHORT = 0.3
#: Attempts at what a stall of the machine for longer than `SHORT` ends too early.
ATTEMPTS = 20


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the idle timeout."""
    monkeypatch.setattr(accepted_connections, "WAITING_TIMEOUT", SHORT)


@asynccontextmanager
async def connected(
    harness: KubeletHarness, party: str | None = None, *, receive_buffer: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Opens a connection, optionally with a party's certificate. An unread reader buffers 128 KiB,
    and its socket ``receive_buffer`` bytes, by default several MB."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", harness.server.port))
    reader, writer = await asyncio.open_connection(
        sock=sock, ssl=harness.pki.client_context(party), server_hostname="127.0.0.1"
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """Reads until the server closes the connection, within 30 seconds."""
    parts = []
    async with asyncio.timeout(30):
        try:
            while part := await reader.read(65536):
                parts.append(part)
        except OSError:
            pass
    return b"".join(parts)


async def in_some_attempt(attempt: Callable[[], Awaitable[None]]) -> None:
    """Repeats the attempt while the server closes its connection early."""
    for number in range(ATTEMPTS):
        try:
            return await attempt()
        except (asyncio.IncompleteReadError, ConnectionError):
            if number == ATTEMPTS - 1:
                raise
    return None


async def is_served(harness: KubeletHarness) -> bool:
    session = harness.session(token=None, cert="apiserver")
    async with session, session.get("/healthz/ping") as response:
        return response.status == 200


async def test_silent_connection_is_closed(harness: KubeletHarness, short_timeout: None) -> None:
    began = asyncio.get_running_loop().time()
    async with connected(harness) as (reader, _):
        assert await read_to_end(reader) == b""
    assert asyncio.get_running_loop().time() - began > SHORT - 0.1


async def test_head_sent_byte_by_byte_is_cut_off(
    harness: KubeletHarness, short_timeout: None
) -> None:
    async with connected(harness, "apiserver") as (reader, writer):

        async def dribble() -> None:
            for byte in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 10_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dribbling = asyncio.create_task(dribble())
        assert await read_to_end(reader) == b""
        dribbling.cancel()
        await asyncio.gather(dribbling, return_exceptions=True)


async def test_keep_alive_connection_is_closed_when_idle(
    harness: KubeletHarness, short_timeout: None
) -> None:
    async def ask_thrice() -> None:
        async with connected(harness, "apiserver") as (reader, writer):
            for _ in range(3):
                writer.write(b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n")
                await reader.readuntil(b"\r\n\r\nok")
                await asyncio.sleep(SHORT / 2)
            assert await read_to_end(reader) == b""

    await in_some_attempt(ask_thrice)


@pytest.mark.parametrize("party", [None, "apiserver"])
@pytest.mark.parametrize("target", ["/pods", "/exec/default/web/app?output=1", "/none"])
async def test_endless_body_is_not_awaited(
    harness: KubeletHarness, party: str | None, target: str
) -> None:
    async with connected(harness, party) as (reader, writer):
        writer.write(
            f"POST {target} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        chunk = b"10000\r\n" + b"a" * 65536 + b"\r\n"

        async def flood() -> None:
            while True:
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0.01)

        flooding = asyncio.create_task(flood())
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 4")
        await read_to_end(reader)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
    assert not harness.remote.requests


async def test_client_that_does_not_read_is_disconnected(
    harness: KubeletHarness, short_timeout: None
) -> None:
    harness.directory.listed = [{"metadata": {"name": "a" * 250}} for _ in range(40_000)]
    # The kernel would otherwise enlarge the buffer until it holds most of the response.
    async with connected(harness, "apiserver", receive_buffer=65536) as (reader, writer):
        writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: bool(harness.connections))
        await wait_until(lambda: not harness.connections)
        assert len(await read_to_end(reader)) < 40_000 * 250


async def test_stalled_stream_is_closed(
    harness: KubeletHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_connections, "STALL_TIMEOUT", SHORT)

    async def send_for_ever(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        while True:
            await request.send(b"x" * 65536)

    harness.remote.handler = send_for_ever
    _, reader, writer = await harness.upgrade(EXEC)
    await wait_until(lambda: harness.remote.ended == 1)
    writer.transport.abort()
    assert not reader.at_eof()


async def test_authorized_stream_outlives_the_idle_timeout(
    harness: KubeletHarness, short_timeout: None
) -> None:
    harness.remote.handler = echo

    async def stay() -> None:
        _, reader, writer = await harness.upgrade(EXEC)
        await asyncio.sleep(2 * SHORT)
        writer.write(b"still there")
        assert await reader.readexactly(11) == b"still there"
        writer.close()

    await in_some_attempt(stay)


async def test_longest_idle_connections_are_closed_first(
    harness: KubeletHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_connections, "MAX_WAITING", 5)
    harness.remote.handler = echo
    _, tunnel, tunnel_writer = await harness.upgrade(EXEC)
    idle = [
        await asyncio.open_connection(
            "127.0.0.1", harness.server.port, ssl=harness.pki.client_context(None)
        )
        for _ in range(5)
    ]
    # Three of them do not begin a handshake.
    idle += [await asyncio.open_connection("127.0.0.1", harness.server.port) for _ in range(3)]
    for reader, _ in idle[:3]:
        assert await read_to_end(reader) == b""
    assert await is_served(harness)
    await wait_until(lambda: len(harness.connections) <= 1 + 5)  # the tunnel does not wait
    tunnel_writer.write(b"hello")
    assert await tunnel.readexactly(5) == b"hello"
    for _, writer in [*idle, (tunnel, tunnel_writer)]:
        writer.transport.abort()


#: Headers of a request of almost 1 MiB.
_LARGE = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 16_000) for number in range(45))
#: Bytes that the sockets and the TLS of both sides of a connection buffer, at most.
_BUFFERED = 16 * 2**20


async def test_large_heads_are_not_parsed_ahead_of_a_request(harness: KubeletHarness) -> None:
    harness.home.delay = 60.0
    request = b"GET /pods HTTP/1.1\r\nHost: x\r\n" + _LARGE + b"\r\n"
    async with connected(harness, "apiserver") as (_, writer):
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                while True:
                    writer.write(request)
                    await writer.drain()
                    sent += len(request)
        assert sent < _BUFFERED + 3 * len(request)


@pytest.mark.parametrize("ending", [b"", b"\r\n\r\n"])
async def test_large_head_without_a_certificate_is_rejected(
    harness: KubeletHarness, ending: bytes
) -> None:
    async with connected(harness) as (reader, writer):
        writer.write(b"GET /pods HTTP/1.1\r\nAuthorization: Bearer good\r\nHost: x\r\n")
        writer.write(_LARGE[: 40 * 1024] + ending)
        assert b" 400 " in await reader.readline()
    async with connected(harness) as (reader, writer):
        writer.write(b"GET /pods HTTP/1.1\r\nAuthorization: Bearer good\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_large_heads_of_all_streams_are_bounded(
    pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sync.base.memory_limit.memory_limit", lambda: 2**31 + 288 * 2**20)
    upgrade = f"POST {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    async with running_server(pki) as harness, AsyncExitStack() as stack:
        harness.remote.handler = echo
        for _ in range(20):
            _, writer = await stack.enter_async_context(connected(harness, "apiserver"))
            writer.write(upgrade.encode() + _LARGE + b"\r\n")
        _, small, writer = await harness.upgrade(EXEC)
        await wait_until(lambda: len(harness.connections) <= 1 + 11)
        await asyncio.sleep(1.0)
        assert len(harness.connections) == 1 + 11
        writer.write(b"hello")
        assert await small.readexactly(5) == b"hello"
        writer.close()


async def test_new_client_ca_closes_connections_of_the_old_one(
    harness: KubeletHarness, pki: Pki
) -> None:
    harness.home.delay = SHORT
    async with (
        connected(harness, "apiserver") as (idle, idle_writer),
        connected(harness, "apiserver") as (busy, busy_writer),
        connected(harness, "apiserver") as (new, new_writer),
    ):
        request = b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n"
        idle_writer.write(request)
        await idle.readuntil(b"\r\n\r\nok")
        busy_writer.write(request.replace(b"GET", b"PUT"))  # a verb without a cached review
        await wait_until(lambda: len(harness.home.access_reviews) == 2)
        harness.server.renew(client_ca=pki.ca_text + pki.other_ca_text)
        assert await read_to_end(idle) == b""
        answer = await read_to_end(busy)
        assert answer.startswith(b"HTTP/1.1 405 ")
        new_writer.write(request)
        assert (await read_to_end(new)).startswith(b"HTTP/1.1 200 ")
    assert await is_served(harness)


async def test_new_serving_certificate_keeps_connections(harness: KubeletHarness) -> None:
    async with connected(harness, "apiserver") as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\nok")
            harness.server.renew(certificate=read_files(*harness.pki.files("node")))
