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

from bridge.net.splice import CLOSE_GRACE, HALF_OPEN_TIMEOUT, IDLE_TIMEOUT, Tunnel, TunnelEnd

#: Seconds; more than a tunnel takes to end.
SOON = 1.0


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
    tunnel = Tunnel(idle_timeout=IDLE_TIMEOUT)
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        for _ in range(4):
            await asyncio.sleep(IDLE_TIMEOUT * 0.9)
            caller.writer.write(b"x")
            assert await remote.reader.readexactly(1) == b"x"
        await asyncio.sleep(IDLE_TIMEOUT - SOON)
        assert not running.done()
        assert await caller.reader.read() == b""
        assert await remote.reader.read() == b""
        await asyncio.wait_for(running, 2 * SOON)


async def test_half_open_tunnel_stays_open_while_bytes_arrive() -> None:
    moved: Counter[str] = Counter()
    tunnel = Tunnel(lambda direction, count: moved.update({direction: count}))
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        caller.writer.write(b"last")
        caller.writer.write_eof()
        assert await remote.reader.read() == b"last"
        assert moved == {"in": 4}
        for _ in range(4):
            await asyncio.sleep(HALF_OPEN_TIMEOUT * 0.9)
            remote.writer.write(b"x")
            assert await caller.reader.readexactly(1) == b"x"
        await asyncio.sleep(HALF_OPEN_TIMEOUT - SOON)
        assert not running.done()
        assert await caller.reader.read() == b""
        await asyncio.wait_for(running, 2 * SOON)


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
        await asyncio.wait_for(running, 2 * SOON)


async def test_end_that_does_not_read_is_aborted_after_the_grace() -> None:
    tunnel = Tunnel()
    async with joined(tunnel) as (_, remote):
        running = asyncio.create_task(tunnel.run())
        remote.writer.write(bytes(3_000_000))
        await asyncio.sleep(0.2)
        tunnel.close()
        await asyncio.sleep(CLOSE_GRACE - SOON)
        assert not running.done()
        await asyncio.wait_for(running, 2 * SOON)


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
