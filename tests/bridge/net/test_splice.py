"""The tunnel alone: how it ends, between two pairs of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from bridge.net import splice as module
from bridge.net.splice import Tunnel, TunnelEnd

#: A timeout, in seconds. The tests sleep for 0.3 of it; a busy machine may delay that by the rest.
IDLE = 1.0


@dataclass
class Far:
    """The far end of one of the two connections."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def _same(protocol: TunnelEnd) -> TunnelEnd:
    return protocol


@asynccontextmanager
async def joined(tunnel: Tunnel) -> AsyncIterator[tuple[Far, Far]]:
    """Caller and remote, with the tunnel between them."""
    loop = asyncio.get_running_loop()
    ends = []
    for protocol in (tunnel.client, tunnel.remote):
        near, far = socket.socketpair()
        near.setblocking(False)
        await loop.create_connection(partial(_same, protocol), sock=near)
        ends.append(Far(*await asyncio.open_connection(sock=far)))
    try:
        yield ends[0], ends[1]
    finally:
        tunnel.abort()
        for end in ends:
            end.writer.close()


async def test_idle_tunnel_is_closed() -> None:
    tunnel = Tunnel(idle_timeout=IDLE)
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        for _ in range(4):
            await asyncio.sleep(IDLE * 0.3)
            caller.writer.write(b"x")
            assert await remote.reader.readexactly(1) == b"x"
        assert not running.done()
        assert await caller.reader.read() == b""
        assert await remote.reader.read() == b""
        await asyncio.wait_for(running, 2)


async def test_half_open_tunnel_stays_open_while_bytes_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HALF_OPEN_TIMEOUT", IDLE)
    moved: Counter[str] = Counter()
    tunnel = Tunnel(lambda direction, count: moved.update({direction: count}))
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        caller.writer.write(b"last")
        caller.writer.write_eof()
        assert await remote.reader.read() == b"last"
        assert moved == {"in": 4}
        for _ in range(4):
            await asyncio.sleep(IDLE * 0.3)
            remote.writer.write(b"x")
            assert await caller.reader.readexactly(1) == b"x"
        assert not running.done()
        assert await caller.reader.read() == b""
        await asyncio.wait_for(running, 2)


async def test_tunnel_ends_after_eof_from_both_ends() -> None:
    tunnel = Tunnel()
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        remote.writer.write(b"a")
        remote.writer.write_eof()
        assert await caller.reader.read() == b"a"
        caller.writer.write(b"b")
        caller.writer.write_eof()
        assert await remote.reader.read() == b"b"
        await asyncio.wait_for(running, 2)


async def test_end_that_does_not_read_is_aborted_after_the_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_GRACE", 0.2)
    tunnel = Tunnel()
    async with joined(tunnel) as (_, remote):
        running = asyncio.create_task(tunnel.run())
        remote.writer.write(bytes(3_000_000))
        await asyncio.sleep(0.2)
        tunnel.close()
        assert not running.done()
        await asyncio.wait_for(running, 2)


async def test_cancelling_run_aborts_both_ends() -> None:
    tunnel = Tunnel()
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await caller.reader.read() == b""
        assert await remote.reader.read() == b""
