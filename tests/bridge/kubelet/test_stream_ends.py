"""Ends of exec, attach and port-forward streams, by either peer or by the bridge."""

from __future__ import annotations

import asyncio

import pytest

from bridge.net import splice
from sync.kube import sockets
from sync.kube.layered_transport import TlsLayer
from tests.bridge.kubelet.conftest import KubeletHarness, running_server
from tests.bridge.kubelet.fake_api_servers import (
    EXEC,
    UpgradeRequest,
    drop_packets,
    echo,
    wait_until,
)
from tests.bridge.kubelet.pki import Pki

UPGRADE = "Connection: Upgrade\r\nUpgrade: SPDY/3.1"


async def test_last_bytes_arrive_when_the_remote_closes_first(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        await request.send(bytes(2_000_000) + b"exit status")

    harness.remote.handler = handler
    _, reader, writer = await harness.upgrade(EXEC)
    await asyncio.sleep(0.2)
    data = await reader.read()
    assert len(data) == 2_000_011
    assert data.endswith(b"exit status")
    await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
    writer.close()


async def test_last_bytes_arrive_when_the_client_closes_first(harness: KubeletHarness) -> None:
    received = bytearray()

    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        await asyncio.sleep(0.2)
        while data := await request.reader.read(65536):
            received.extend(data)

    harness.remote.handler = handler
    _, _, writer = await harness.upgrade(EXEC)
    assert harness.server.streams.counts["exec"] == 1
    writer.write(bytes(2_000_000) + b"the end")
    writer.close()
    await wait_until(lambda: harness.remote.ended == 1)
    assert len(received) == 2_000_007
    assert received.endswith(b"the end")
    await wait_until(lambda: harness.server.streams.counts["exec"] == 0)


async def test_half_closed_stream_stays_open(pki: Pki) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        received = await request.reader.read()
        for _ in range(20):
            await request.send(bytes(100_000))
        await request.send(b"got " + received)

    async with running_server(pki, tls=False) as harness:
        harness.remote.handler = handler
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        layer = TlsLayer(
            pki.client_context("apiserver"),
            lambda: asyncio.StreamReaderProtocol(reader),
            server_hostname="127.0.0.1",
        )
        transport, _ = await loop.create_connection(lambda: layer, "127.0.0.1", harness.server.port)
        await layer.ready
        layer.write(f"POST {EXEC} HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        layer.write(b"all of it")
        layer.write_eof()
        data = await reader.read()
        assert len(data) == 20 * 100_000 + len("got all of it")
        assert data.endswith(b"got all of it")
        await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
        transport.abort()


async def test_aborted_client_closes_the_remote(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    _, _, writer = await harness.upgrade(EXEC)
    writer.transport.abort()
    await wait_until(lambda: harness.remote.ended == 1)
    await wait_until(lambda: harness.server.streams.counts["exec"] == 0)


@pytest.fixture
def short_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens TCP keepalive, so that an unresponsive peer is detected within seconds."""
    probes = (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 1))
    monkeypatch.setattr(sockets, "KEEPALIVE_PROBES", probes)
    monkeypatch.setattr(sockets, "USER_TIMEOUT_MILLISECONDS", 300)
    monkeypatch.setattr(splice, "CHECK_INTERVAL", 0.1)


@pytest.mark.real_time  # the kernel's timers end the connection
@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("who", ["remote", "caller"])
@pytest.mark.usefixtures("short_keepalive")
async def test_unresponsive_peer_ends_the_stream(pki: Pki, who: str, sends: bool) -> None:
    """With and without unacknowledged data, during which TCP sends no keepalive probes."""
    begun = asyncio.Event()

    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        await begun.wait()
        if who == "remote":
            drop_packets(request.writer)
        elif sends:
            await request.send(b"x")
        try:
            await request.wait_closed()
        finally:
            request.writer.transport.abort()  # an unresponsive peer cannot close the connection

    async with running_server(pki) as harness:
        harness.remote.handler = handler
        _, reader, writer = await harness.upgrade(EXEC)
        if who == "caller":
            drop_packets(writer)
        begun.set()
        await asyncio.sleep(0.05)
        if who == "remote" and sends:
            writer.write(b"x")
        await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
        if who == "remote":
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            await wait_until(lambda: harness.remote.ended == 1)
        writer.transport.abort()


@pytest.mark.real_time  # the kernel's timers do not end the connection
@pytest.mark.usefixtures("short_keepalive")
async def test_live_peer_may_stop_reading(pki: Pki) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        await asyncio.sleep(3)
        await request.reader.readexactly(20_000_000)
        await request.send(b"all")

    async with running_server(pki) as harness:
        harness.remote.handler = handler
        _, reader, writer = await harness.upgrade(EXEC)
        writer.write(bytes(20_000_000))
        assert await reader.readexactly(3) == b"all"
        writer.close()


async def test_stop_ends_streams(harness: KubeletHarness) -> None:
    harness.remote.handler = echo
    _, reader, writer = await harness.upgrade(EXEC)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    started = asyncio.get_running_loop().time()
    await harness.server.stop(30.0)
    assert asyncio.get_running_loop().time() - started < 30
    with pytest.raises(ConnectionResetError):
        await reader.read()
    await wait_until(lambda: harness.remote.ended == 1)
    writer.close()


async def test_stop_does_not_wait_for_a_peer_that_does_not_read(harness: KubeletHarness) -> None:
    async def handler(request: UpgradeRequest) -> None:
        await request.switch_protocols()
        while True:
            await request.send(bytes(100_000))

    harness.remote.handler = handler
    _, _, writer = await harness.upgrade(EXEC)
    await asyncio.sleep(0.3)  # the stream's reader buffers a little
    started = asyncio.get_running_loop().time()
    await harness.server.stop(0.5)
    assert asyncio.get_running_loop().time() - started < splice.CLOSE_GRACE / 10
    writer.transport.abort()


async def test_many_streams_leave_nothing_behind(harness: KubeletHarness) -> None:
    harness.remote.handler = echo

    async def one(number: int) -> None:
        _, reader, writer = await harness.upgrade(EXEC)
        data = bytes([number]) * 100_000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()

    await one(99)  # opens the connections to home
    before = len(asyncio.all_tasks())
    await asyncio.gather(*(one(number) for number in range(20)))
    await wait_until(lambda: harness.server.streams.counts["exec"] == 0)
    await wait_until(lambda: len(asyncio.all_tasks()) <= before)
    await wait_until(lambda: not harness.connections)
