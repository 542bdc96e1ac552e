"""The state of a peer by Linux' ``struct tcp_info``."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

from sync.kube.sockets import (
    PeerState,
    has_unacknowledged_bytes,
    peer_state,
    read_tcp_info,
    resize_receive_buffer,
)

WAITED = 20_000
#: linux/socket.h: which buffers have a size that was set; that of received bytes.
SO_BUF_LOCK, LOCKED = 72, 2


def tcp_info(*, resent: int = 0, probes: int = 0, unacked: int = 0, last_word: int = 0) -> bytes:
    """The fields that are read; every other is full of ones, since none of them may matter."""
    return (
        struct.pack("=BBBB", 255, 255, resent, probes)
        + b"\xff" * 20
        + struct.pack("=I", unacked)
        + b"\xff" * 28
        + struct.pack("=I", last_word)
        + b"\xff" * 44
    )


@pytest.mark.parametrize(
    ("info", "peer"),
    [
        (tcp_info(), PeerState.ACKNOWLEDGED),
        (tcp_info(last_word=4 * 3600 * 1000), PeerState.ACKNOWLEDGED),
        (tcp_info(unacked=3), PeerState.UNACKNOWLEDGED),
        (tcp_info(unacked=3, resent=5, last_word=WAITED - 1), PeerState.STALLED),
        (tcp_info(unacked=3, resent=5, last_word=WAITED), PeerState.LOST),
        # A closed window: probed two minutes after its last word, and it will answer.
        (tcp_info(probes=1, last_word=120_000), PeerState.STALLED),
        (tcp_info(probes=2, last_word=180_000), PeerState.LOST),
        # Idle for long, and the first bytes since are on their way.
        (tcp_info(unacked=1, resent=1, last_word=3_600_000), PeerState.STALLED),
        (b"", PeerState.ACKNOWLEDGED),
    ],
)
def test_peer_state_by_tcp_info(info: bytes, peer: PeerState) -> None:
    assert read_tcp_info(info) is peer


def test_closed_socket_has_no_state() -> None:
    """The socket of a transport that uvloop has closed has no descriptor."""

    async def closed() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        async with server:
            address = server.sockets[0].getsockname()
            transport, _ = await loop.create_connection(asyncio.Protocol, *address)
            sock = transport.get_extra_info("socket")
            transport.abort()
            await asyncio.sleep(0.01)
            assert peer_state(sock) is PeerState.ACKNOWLEDGED
            assert not has_unacknowledged_bytes(sock)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(closed())


def test_receive_buffer_larger_than_permitted_is_left_to_the_kernel() -> None:
    """It begins with what is permitted, and grows as of a socket that was never limited."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
        server.accept()[0],
    ):
        assert resize_receive_buffer(near, 2**16)
        assert near.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) == LOCKED
        assert not resize_receive_buffer(near, 2**31 - 1)
        assert near.getsockopt(socket.SOL_SOCKET, SO_BUF_LOCK) == 0
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) > 2**16
        assert resize_receive_buffer(near, 2**16 + 1)
