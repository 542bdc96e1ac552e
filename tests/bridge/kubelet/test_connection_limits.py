"""How many connections may wait, and for how long: on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.certificates.tls_key_pair import read_files
from bridge.net import accepted_connections
from tests.bridge.kubelet.conftest import KubeletHarness
from tests.bridge.kubelet.fake_api_servers import EXEC, UpgradeRequest, echo, wait_until
from tests.bridge.kubelet.pki import Pki

#: Seconds that a connection may wait here.
SHORT = 0.3


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may wait long."""
    monkeypatch.setattr(accepted_connections, "WAITING_TIMEOUT", SHORT)


@asynccontextmanager
async def connected(
    harness: KubeletHarness, party: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of a party, or of a stranger. A reader that is not read takes 128 KiB."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", harness.server.port, ssl=harness.pki.client_context(party)
    )
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the connection ended, which is to be soon."""
    parts = []
    async with asyncio.timeout(5):
        try:
            while part := await reader.read(65536):
                parts.append(part)
        except OSError:
            pass
    return b"".join(parts)


async def is_served(harness: KubeletHarness) -> bool:
    session = harness.session(token=None, cert="apiserver")
    async with session, session.get("/healthz/ping") as response:
        return response.status == 200


async def test_who_says_nothing_is_ended(harness: KubeletHarness, hurry: None) -> None:
    began = asyncio.get_running_loop().time()
    async with connected(harness) as (reader, _):
        assert await ended(reader) == b""
    assert SHORT - 0.1 < asyncio.get_running_loop().time() - began < SHORT + 2


async def test_a_head_that_comes_byte_by_byte_is_ended(
    harness: KubeletHarness, hurry: None
) -> None:
    async with connected(harness, "apiserver") as (reader, writer):

        async def dribble() -> None:
            for byte in b"GET /healthz HTTP/1.1\r\nX-Slow: " + b"a" * 10_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)

        dribbling = asyncio.create_task(dribble())
        assert await ended(reader) == b""
        dribbling.cancel()
        await asyncio.gather(dribbling, return_exceptions=True)


async def test_a_connection_without_another_request_is_ended(
    harness: KubeletHarness, hurry: None
) -> None:
    async with connected(harness, "apiserver") as (reader, writer):
        for _ in range(3):
            writer.write(b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\nok")
            await asyncio.sleep(SHORT / 2)
        assert await ended(reader) == b""


@pytest.mark.parametrize("party", [None, "apiserver"])
@pytest.mark.parametrize("target", ["/pods", "/exec/default/web/app?output=1", "/none"])
async def test_a_body_that_never_ends_is_not_waited_for(
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
        await ended(reader)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
    assert not harness.remote.asked


async def test_who_does_not_read_an_answer_is_ended(harness: KubeletHarness, hurry: None) -> None:
    harness.directory.listed = [{"metadata": {"name": "a" * 250}} for _ in range(40_000)]
    async with connected(harness, "apiserver") as (reader, writer):
        writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\n\r\n")
        await wait_until(lambda: bool(harness.server._connections._open))
        await wait_until(lambda: not harness.server._connections._open)
        assert len(await ended(reader)) < 40_000 * 250


async def test_a_stream_that_nobody_reads_has_a_limit_too(
    harness: KubeletHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepted_connections, "STALL_TIMEOUT", SHORT)

    async def speak(asked: UpgradeRequest) -> None:
        await asked.switch_protocols()
        while True:
            await asked.send(b"x" * 65536)

    harness.remote.handler = speak
    _, reader, writer = await harness.upgrade(EXEC)
    await wait_until(lambda: harness.remote.ended == 1)
    writer.transport.abort()
    assert not reader.at_eof()


async def test_what_was_let_in_may_last(harness: KubeletHarness, hurry: None) -> None:
    harness.remote.handler = echo
    _, reader, writer = await harness.upgrade(EXEC)
    await asyncio.sleep(2 * SHORT)
    writer.write(b"still there")
    assert await reader.readexactly(11) == b"still there"
    writer.close()


async def test_of_many_that_wait_those_of_longest_go(
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
    # Some do not even begin a handshake.
    idle += [await asyncio.open_connection("127.0.0.1", harness.server.port) for _ in range(3)]
    for reader, _ in idle[:3]:
        assert await ended(reader) == b""
    assert await is_served(harness)
    assert len(harness.server._connections._waiting) <= 5
    tunnel_writer.write(b"hello")
    assert await tunnel.readexactly(5) == b"hello"
    for _, writer in [*idle, (tunnel, tunnel_writer)]:
        writer.transport.abort()


async def test_another_client_ca_ends_what_the_old_one_let_in(
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
        busy_writer.write(request.replace(b"GET", b"PUT"))  # which nobody has been asked about
        await wait_until(lambda: len(harness.home.access_reviews) == 2)
        harness.server.renew(client_ca=pki.ca_text + pki.other_ca_text)
        assert await ended(idle) == b""
        answer = await ended(busy)
        assert answer.startswith(b"HTTP/1.1 405 ")
        new_writer.write(request)
        assert (await ended(new)).startswith(b"HTTP/1.1 200 ")
    assert await is_served(harness)


async def test_another_certificate_ends_nothing(harness: KubeletHarness) -> None:
    async with connected(harness, "apiserver") as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /healthz/ping HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readuntil(b"\r\n\r\nok")
            harness.server.renew(certificate=read_files(*harness.pki.files("node")))
