"""The tunnel alone: how it ends, between two pairs of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from bridge.net import splice
from bridge.net.splice import CLOSE_GRACE, HALF_OPEN_TIMEOUT, IDLE_TIMEOUT, Tunnel, TunnelEnd
from bridge.net.unsent_budget import MIN_WINDOW, UnsentBudget, UnsentShare
from sync.kube.layered_transport import reset_connection
from sync.kube.sockets import PeerState

#: Seconds; more than a tunnel takes to end.
SOON = 1.0
#: More bytes than the tunnel and the kernel hold for an end that does not read.
MANY = 20_000_000


class Far:
    """The far end of one of the two connections: a plain socket, which loses no byte to a reset."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.address = sock.getsockname()

    async def read(self, count: int = 1) -> bytes:
        """So many bytes, or fewer before EOF. Raises ConnectionResetError."""
        data = b""
        while len(data) < count and (
            part := await asyncio.get_running_loop().sock_recv(self._sock, count - len(data))
        ):
            data += part
        return data

    async def read_to_end(self) -> tuple[int, str]:
        """How many bytes still arrive, and what ends them: ``FIN`` or ``RST``."""
        count = 0
        try:
            while part := await asyncio.get_running_loop().sock_recv(self._sock, 1 << 16):
                count += len(part)
        except ConnectionResetError:
            return count, "RST"
        return count, "FIN"

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    def write_eof(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sock.close()

    def close(self) -> None:
        self._sock.close()


def unsent() -> UnsentShare:
    """A share of a budget without other connections."""
    return UnsentBudget(2**20).share("shop")


def _same(protocol: TunnelEnd) -> TunnelEnd:
    return protocol


@asynccontextmanager
async def joined(tunnel: Tunnel) -> AsyncIterator[tuple[Far, Far]]:
    """Caller and remote, with the tunnel between them."""
    loop = asyncio.get_running_loop()
    ends = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        for protocol in (tunnel.client, tunnel.remote):
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
            near.setblocking(False)
            await loop.create_connection(partial(_same, protocol), sock=near)
            ends.append(Far(far))
    try:
        yield ends[0], ends[1]
    finally:
        tunnel.abort()
        for end in ends:
            end.close()


async def test_idle_tunnel_is_reset() -> None:
    """Neither source has ended, so neither reader may take what it has for everything."""
    tunnel = Tunnel(unsent(), idle_timeout=IDLE_TIMEOUT)
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        for _ in range(4):
            await asyncio.sleep(IDLE_TIMEOUT * 0.9)
            await caller.write(b"x")
            assert await remote.read() == b"x"
        await asyncio.sleep(IDLE_TIMEOUT - SOON)
        assert not running.done()
        assert await caller.read_to_end() == (0, "RST")
        assert await remote.read_to_end() == (0, "RST")
        await asyncio.wait_for(running, 2 * SOON)


async def test_half_open_tunnel_stays_open_while_bytes_arrive() -> None:
    moved: Counter[str] = Counter()
    tunnel = Tunnel(unsent(), lambda direction, count: moved.update({direction: count}))
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await caller.write(b"last")
        caller.write_eof()
        assert await remote.read(5) == b"last"
        assert moved == {"in": 4}
        for _ in range(4):
            await asyncio.sleep(HALF_OPEN_TIMEOUT * 0.9)
            await remote.write(b"x")
            assert await caller.read() == b"x"
        await asyncio.sleep(HALF_OPEN_TIMEOUT - SOON)
        assert not running.done()
        assert await caller.read_to_end() == (0, "RST"), "the remote has not ended"
        await asyncio.wait_for(running, 2 * SOON)


async def test_tunnel_ends_in_order_after_eof_from_both_ends() -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await remote.write(b"a")
        remote.write_eof()
        assert await caller.read_to_end() == (1, "FIN")
        await caller.write(b"b")
        caller.write_eof()
        assert await remote.read_to_end() == (1, "FIN")
        await asyncio.wait_for(running, 2 * SOON)
        assert tunnel.lost is None


@pytest.mark.parametrize("is_read", [True, False])
async def test_lost_connection_resets_the_other_after_its_bytes(*, is_read: bool) -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await remote.write(bytes(1_000_000))
        await asyncio.sleep(0.2)
        remote.reset()
        await asyncio.sleep(SOON if is_read else CLOSE_GRACE + SOON)
        count, end = await caller.read_to_end()
        assert end == "RST"
        assert count == 1_000_000 or not is_read
        await asyncio.wait_for(running, 2 * SOON)
        assert tunnel.lost is tunnel.remote


async def test_caller_that_is_reset_resets_the_remote() -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await caller.write(b"half of it")
        await asyncio.sleep(SOON)
        caller.reset()
        assert await remote.read_to_end() == (10, "RST")
        await asyncio.wait_for(running, 2 * SOON)
        assert tunnel.lost is tunnel.client


async def test_reset_after_eof_resets_the_other_after_its_bytes() -> None:
    """The caller has ended its direction and then given up: the answer did not arrive."""
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await caller.write(b"all of it")
        caller.write_eof()
        assert await remote.read(9) == b"all of it"
        caller.reset()
        await remote.write(b"x")
        await asyncio.sleep(SOON)
        with pytest.raises(ConnectionError):
            await remote.write(b"y")
        await asyncio.wait_for(running, 2 * SOON)


async def test_peer_that_acknowledges_nothing_resets_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await remote.write(b"part")
        assert await caller.read(4) == b"part"
        lost = remote.address

        def state(sock: socket.socket) -> PeerState:
            return PeerState.LOST if sock.getpeername() == lost else PeerState.ACKNOWLEDGED

        monkeypatch.setattr(splice, "peer_state", state)
        assert await caller.read_to_end() == (0, "RST")
        await asyncio.wait_for(running, 2 * SOON)
        assert tunnel.lost is tunnel.remote


async def test_end_that_does_not_take_its_last_bytes_is_reset_after_the_grace() -> None:
    """It must not take the bytes that it reads later for all of them."""
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        sending = asyncio.create_task(remote.write(bytes(MANY)))
        await asyncio.sleep(SOON)
        tunnel.remote.eof_received()
        caller.write_eof()
        await asyncio.sleep(CLOSE_GRACE - 2 * SOON)
        assert not running.done()
        await asyncio.wait_for(running, 4 * SOON)
        count, end = await caller.read_to_end()
        assert count < MANY
        assert end == "RST"
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_closing_tunnel_delivers_what_arrived_and_resets_both_ends() -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await remote.write(b"part")
        await caller.write(b"some")
        await asyncio.sleep(SOON)
        tunnel.close()
        assert await caller.read_to_end() == (4, "RST")
        assert await remote.read_to_end() == (4, "RST")
        await asyncio.wait_for(running, 2 * SOON)


async def test_end_that_is_attached_after_the_other_was_lost_is_reset() -> None:
    tunnel = Tunnel(unsent())
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        fars = [socket.create_connection(server.getsockname()) for _ in range(2)]
        nears = [server.accept()[0] for _ in range(2)]
    transport, _ = await loop.create_connection(partial(_same, tunnel.client), sock=nears[0])
    reset_connection(transport)
    await asyncio.sleep(SOON)
    await loop.create_connection(partial(_same, tunnel.remote), sock=nears[1])
    assert await Far(fars[1]).read_to_end() == (0, "RST")
    for sock in fars:
        sock.close()


async def test_cancelling_run_resets_both_ends() -> None:
    tunnel = Tunnel(unsent())
    async with joined(tunnel) as (caller, remote):
        running = asyncio.create_task(tunnel.run())
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await caller.read_to_end() == (0, "RST")
        assert await remote.read_to_end() == (0, "RST")


async def test_slow_tunnels_share_a_budget_and_leave_half_to_other_namespaces() -> None:
    budget = UnsentBudget(2**20)
    slow = [Tunnel(budget.share("slow")) for _ in range(40)]
    async with AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(joined(tunnel)) for tunnel in slow]
        writes = [asyncio.wait_for(remote.write(bytes(MANY)), 1.0) for _, remote in ends]
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert {type(result) for result in results} == {TimeoutError}
        assert 0 < budget.held <= 2**19 + 2 * MIN_WINDOW * len(slow)
        async with joined(Tunnel(budget.share("other"))) as (caller, remote):
            sending = asyncio.create_task(remote.write(bytes(MANY)))
            assert len(await caller.read(MANY)) == MANY
            await sending
    await asyncio.sleep(SOON)
    assert budget.held == 0
