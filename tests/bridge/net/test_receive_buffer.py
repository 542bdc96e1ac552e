"""The kernel's buffers of a tunnel whose reader reads nothing, or stops: between real sockets, with
the options that the bridge's own sockets have."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bridge.net.listening_socket import AcceptedConnection, listening_socket
from bridge.net.receive_buffer import GROW_AFTER, ReceiveBuffer
from bridge.net.splice import Tunnel
from bridge.net.unsent_budget import MAX_BUFFER, MAX_WINDOW, MIN_BUFFER, ByteBudget, UnsentBudget
from sync.base.background_task import background_task
from sync.kube.sockets import UNSENT_IN_KERNEL, tunnel_socket

MIB = 2**20
#: Bytes of each buffer of the client and of the pod, which are not the bridge's.
FAR_BUFFER = 64 * 1024
#: The most bytes of a segment on loopback.
SEGMENT = 64 * 1024
#: Bytes that the bridge and its kernel hold of a direction that is not read.
UNREAD = MIN_BUFFER + 2 * MAX_WINDOW + UNSENT_IN_KERNEL + 2 * SEGMENT
#: More bytes than that.
MANY = 64 * MIB
#: Linux' SO_MEMINFO: bytes received, the first, and bytes to send, the sixth of nine numbers.
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=I16xI12x")


class Joined:
    """The client and the pod of a tunnel; ``near`` are the sockets of the bridge."""

    def __init__(
        self, client: socket.socket, pod: socket.socket, near: list[socket.socket]
    ) -> None:
        self.client, self.pod, self._near = client, pod, near

    async def read(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        while count > 0:
            count -= len(await loop.sock_recv(self.client, min(count, MIB)))

    def kernel_bytes(self) -> int:
        """Bytes in the buffers of the bridge's two sockets, as the kernel accounts for them."""
        infos = [sock.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36) for sock in self._near]
        return sum(sum(_MEMINFO.unpack(info)) for info in infos)


@asynccontextmanager
async def joined(budget: UnsentBudget) -> AsyncIterator[Joined]:
    """A tunnel from an accepted connection to a socket for tunnels."""
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[AcceptedConnection] = loop.create_future()
    tunnel = Tunnel(budget.share("shop"), idle_timeout=None)
    async with AsyncExitStack() as stack:
        listening = listening_socket("127.0.0.1", 0)
        server = await loop.create_server(
            lambda: AcceptedConnection(accepted.set_result), sock=listening
        )
        stack.callback(server.close)
        client = stack.enter_context(socket.socket())
        _fix_buffers(client)
        client.setblocking(False)
        await loop.sock_connect(client, listening.getsockname())
        remote = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        upstream = tunnel_socket((socket.AF_INET, socket.SOCK_STREAM, 0))
        upstream.setblocking(False)
        await loop.sock_connect(upstream, remote.getsockname())
        pod = stack.enter_context(remote.accept()[0])
        _fix_buffers(pod)
        pod.setblocking(False)
        stack.callback(tunnel.abort)
        connection = await accepted
        connection.attach(tunnel.client)
        await loop.create_connection(lambda: tunnel.remote, sock=upstream)
        yield Joined(client, pod, [connection.client.get_extra_info("socket"), upstream])


def _fix_buffers(sock: socket.socket) -> None:
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, FAR_BUFFER // 2)


async def send(sock: socket.socket) -> None:
    """Sends without end."""
    while True:
        await asyncio.get_running_loop().sock_sendall(sock, bytes(SEGMENT))


async def sent_until_blocked(sock: socket.socket) -> int:
    """How many bytes the socket takes until its peer takes no more."""
    loop, count, block = asyncio.get_running_loop(), 0, bytes(SEGMENT)
    while count < MANY:
        try:
            count += sock.send(block)
        except BlockingIOError:
            try:
                await asyncio.wait_for(loop.sock_sendall(sock, b"x"), 1.0)
            except TimeoutError:
                return count
    return count


@pytest.mark.parametrize("sender", ["pod", "client"])
async def test_connection_that_is_not_read_fills_small_buffers(sender: str) -> None:
    async with joined(UnsentBudget()) as ends:
        sent = await sent_until_blocked(ends.pod if sender == "pod" else ends.client)
        assert sent <= UNREAD + 4 * (FAR_BUFFER + SEGMENT)
        assert ends.kernel_bytes() <= UNREAD


async def test_buffers_grow_for_fast_readers_and_share_the_budget_when_they_stop() -> None:
    budget, limit, count = UnsentBudget(), 4 * MIB, 20
    budget.receive_buffers = ByteBudget(limit, MIN_BUFFER, MAX_BUFFER)
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(joined(budget)) for _ in range(count)]
        for ends in connections:
            async with background_task(send(ends.pod), name="send"):
                await ends.read(4 * GROW_AFTER)
        for ends in connections:
            await sent_until_blocked(ends.pod)
        assert limit // 8 < budget.receive_buffers.held <= limit // 2
        assert sum(ends.kernel_bytes() for ends in connections) <= limit + count * UNREAD
    await asyncio.sleep(0)
    assert budget.receive_buffers.held == 0


def test_buffer_is_large_until_its_connection_is_quiet_and_read() -> None:
    budget = UnsentBudget()
    held = budget.receive_buffers
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0] as far,
    ):
        buffer = ReceiveBuffer(near, budget.share("shop"))
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == MIN_BUFFER
        buffer.received(GROW_AFTER)
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == MIN_BUFFER + held.held
        assert held.held > 0
        assert not buffer.shrink_if_quiet()
        far.send(b"x")
        assert not buffer.shrink_if_quiet()
        near.recv(1)
        assert buffer.shrink_if_quiet()
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == MIN_BUFFER
        buffer.received(GROW_AFTER)
        buffer.release()
        assert held.held == 0
