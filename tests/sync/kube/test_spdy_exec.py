"""An exec over SPDY, against a server that speaks it as API servers do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sync.kube.api_errors import Unreachable
from sync.kube.client import KubeClient
from sync.kube.pod_stream import ShellStream, open_shell
from sync.kube.spdy_exec import SpdyExec, open_spdy_exec
from sync.kube.spdy_frames import MAX_CONTROL_SIZE
from tests.fakeapi.client_config import StaticConfig

SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nConnection: Upgrade\r\n"
    b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
)
STDIN, STDOUT, STDERR, STATUS = b"stdin", b"stdout", b"stderr", b"error"


class Peer:
    """The server's side of an exec."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.numbers: dict[bytes, int] = {}
        """Stream numbers by type."""

    async def frame(self) -> tuple[int, int, bytes]:
        """The first four bytes, the flags, and the payload of the next frame."""
        head = await self.reader.readexactly(8)
        first, flags = struct.unpack(">IB", head[:5])
        return first, flags, await self.reader.readexactly(int.from_bytes(head[5:], "big"))

    async def accept(self) -> None:
        """Reads the frames that open the four streams, and replies to them."""
        headers = zlib.decompressobj()
        for _ in range(4):
            first, flags, payload = await self.frame()
            assert (first, flags) == (0x80030001, 0)
            (number,) = struct.unpack(">I", payload[:4])
            block = headers.decompress(payload[10:])
            assert block.startswith(b"\0\0\0\1\0\0\0\x0astreamtype")
            self.numbers[block[22:]] = number
            reply = struct.pack(">I", number) + b"compressed"
            self.writer.write(b"\x80\x03\0\2\0" + len(reply).to_bytes(3, "big") + reply)

    def send(self, stream: bytes, data: bytes) -> None:
        number = self.numbers[stream]
        self.writer.write(struct.pack(">IB", number, 0) + len(data).to_bytes(3, "big") + data)


Play = Callable[[Peer], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(play: Play | None, answer: bytes = SWITCH) -> AsyncIterator[StaticConfig]:
    """An API server that gives this answer, and then plays."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if play is not None:
                peer = Peer(reader, writer)
                await peer.accept()
                await play(peer)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1")
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield StaticConfig(f"http://127.0.0.1:{port}", "home", token=None)


@contextlib.asynccontextmanager
async def opened(play: Play) -> AsyncIterator[SpdyExec]:
    async with serving(play) as config:
        made = await open_spdy_exec(config, "/exec", [("command", "true")])
        assert made is not None
        try:
            yield made
        finally:
            made.close()


async def received(made: SpdyExec) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    async for channel, data in made.messages():
        found[channel] = found.get(channel, b"") + data
    return found


async def test_output_of_all_streams_in_any_pieces() -> None:
    output = random.Random(1).randbytes(300_000)

    async def play(peer: Peer) -> None:
        peer.send(STDOUT, output[:100_000])
        peer.send(STDERR, b"warning")
        peer.send(STDOUT, b"")
        for begin in range(100_000, len(output), 7):
            peer.send(STDOUT, output[begin : begin + 7])
        peer.send(STATUS, b'{"status":"Success"}')

    async with opened(play) as made:
        found = await received(made)
    assert found == {1: output, 2: b"warning", 3: b'{"status":"Success"}'}


async def test_input_arrives_in_order_and_ends() -> None:
    pieces = [random.Random(it).randbytes(100_000) for it in range(20)]
    arrived = bytearray()

    async def play(peer: Peer) -> None:
        flags = 0
        while not flags:
            first, flags, payload = await peer.frame()
            assert first == peer.numbers[STDIN]
            arrived.extend(payload)

    async with opened(play) as made:
        for piece in pieces:
            await made.send(piece)
        await made.send(b"", is_last=True)
        assert await received(made) == {}
    assert bytes(arrived) == b"".join(pieces)


async def test_ping_is_answered() -> None:
    ping = b"\x80\x03\0\6\0\0\0\4\0\0\0\2"
    answered: list[tuple[int, int, bytes]] = []

    async def play(peer: Peer) -> None:
        peer.writer.write(ping)
        answered.append(await peer.frame())

    async with opened(play) as made:
        await received(made)
    assert answered == [(0x80030006, 0, b"\0\0\0\2")]


async def test_unread_output_pauses_the_server() -> None:
    """The server cannot send more than what the caller and the kernel hold."""
    sent = 0
    size = 64 * 1024

    async def play(peer: Peer) -> None:
        nonlocal sent
        for _ in range(400):
            peer.send(STDOUT, bytes(size))
            await peer.writer.drain()
            sent += size

    async with opened(play) as made:
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 400 * size
        assert (await received(made))[1] == bytes(400 * size)


async def test_send_waits_for_room_and_fails_when_the_server_hangs_up() -> None:
    async def play(peer: Peer) -> None:
        await peer.frame()

    async def send_all(made: SpdyExec) -> None:
        for _ in range(1000):
            await made.send(bytes(1024 * 1024))

    async with opened(play) as made:
        with pytest.raises(ConnectionError):
            await send_all(made)


async def test_too_large_control_frame_ends_the_connection() -> None:
    async def play(peer: Peer) -> None:
        peer.writer.write(b"\x80\x03\0\2\0" + (MAX_CONTROL_SIZE + 1).to_bytes(3, "big"))
        await peer.writer.drain()
        await peer.reader.read()

    async with opened(play) as made:
        with pytest.raises(ConnectionError, match="does not speak SPDY"):
            await received(made)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}",
        SWITCH.replace(b"SPDY/3.1", b"websocket"),
        SWITCH.replace(b"v4.channel", b"v1.channel"),
    ],
)
async def test_server_without_spdy_is_left_to_a_websocket(answer: bytes) -> None:
    async with serving(None, answer) as config:
        assert await open_spdy_exec(config, "/exec", []) is None


@contextlib.asynccontextmanager
async def shell(play: Play) -> AsyncIterator[ShellStream]:
    async with (
        serving(play) as config,
        KubeClient(config) as client,
        open_shell(client, "true", namespace="n", pod="p", container="c") as made,
    ):
        yield made


async def test_shell_without_its_trailer_is_broken() -> None:
    async def play(peer: Peer) -> None:
        peer.send(STDOUT, b"part")

    async with shell(play) as running:
        with pytest.raises(Unreachable, match="broke before the command ended"):
            [it async for it in running.output()]


async def test_command_that_cannot_run_is_reported() -> None:
    async def play(peer: Peer) -> None:
        peer.send(STATUS, b'{"status":"Failure","message":"no such container"}')

    async with shell(play) as running:
        with pytest.raises(Unreachable, match="no such container"):
            [it async for it in running.output()]
