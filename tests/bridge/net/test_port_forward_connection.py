"""The WebSocket of a port-forward, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator

import pytest

from bridge.net.port_forward_connection import PortForwardTransport
from bridge.relay.reverse.framing import FramedTransport
from sync.kube.layered_transport import LayeredTransport
from sync.kube.portions import PORTION, UNSENT_LIMIT
from tests.bridge.relay.fake_pods import server_frame


class Below(asyncio.Transport):
    """A connection that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.unsent = 0
        self.reads = True
        self.ended = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert self.ended != "lost", "uvloop's transports raise RuntimeError"
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Above(asyncio.Protocol):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces = 0
        self.ended = False
        self.lost = False
        self.cause: Exception | None = None

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.cause = exc


class Pair:
    """A port-forward between the two."""

    def __init__(self) -> None:
        self.below, self.above = Below(), Above()
        self.wrong: list[str] = []
        self.channels = PortForwardTransport(self.above, self.wrong.append)
        self.channels.connection_made(self.below)

    def comes(self, *frames: bytes) -> None:
        self.channels.data_received(b"".join(frames))


def message(channel: int, data: bytes) -> bytes:
    return server_frame(2, bytes([channel]) + data)


PORTS = (message(0, b"\x90\x1f"), message(1, b"\x90\x1f"))


def test_data_is_passed_on_without_frames() -> None:
    pair = Pair()
    pair.comes(*PORTS, message(0, b"hello "), message(0, b"world"))
    assert pair.above.data == b"hello world"
    assert pair.wrong == []


@pytest.mark.parametrize("seed", range(20))
def test_result_is_independent_of_read_boundaries(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.choice((0, 1, 125, 126, 127, 65535, 65536, 70000))) for _ in "abc"]
    stream = b"".join([*PORTS, *(message(0, piece) for piece in pieces), server_frame(9, b"x")])
    pair = Pair()
    for chunk in _cut(stream, rng):
        pair.channels.data_received(chunk)
    assert pair.above.data == b"".join(pieces)
    assert pair.below.sent[:2] == bytes([0x8A, 0x81]), "a ping is answered"


def _cut(stream: bytes, rng: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        size = rng.choice((1, 2, 3, 1000, 50000))
        yield stream[at : at + size]
        at += size


def test_fragmented_message_is_joined() -> None:
    pair = Pair()
    first = b"\x02" + bytes([4]) + b"\x00abc"
    pair.comes(*PORTS, first, bytes([0x80, 3]) + b"def")
    assert pair.above.data == b"abcdef"


def test_error_channel_is_reported_once() -> None:
    pair = Pair()
    pair.comes(*PORTS, message(1, b"connection refused"), message(1, b"again"))
    assert pair.wrong == ["connection refused"]
    assert pair.above.data == b""


@pytest.mark.parametrize("code", [b"\x03\xe8", b""])
def test_normal_close_is_answered_and_the_end_in_order(code: bytes) -> None:
    pair = Pair()
    pair.comes(*PORTS, message(0, b"all of it"), server_frame(8, code))
    assert pair.above.data == b"all of it"
    assert pair.above.ended
    assert pair.below.ended == "closed"
    pair.channels.connection_lost(ConnectionResetError())  # the server did not wait for the answer
    assert pair.above.lost
    assert pair.above.cause is None
    assert pair.wrong == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(b"", id="none"),
        pytest.param(server_frame(8, b"\x03\xe9"), id="going away"),
        pytest.param(message(1, b"broken") + server_frame(8, b"\x03\xe8"), id="error"),
    ],
)
def test_other_end_than_a_normal_close_is_an_error(end: bytes) -> None:
    pair = Pair()
    pair.comes(*PORTS, message(0, b"part"), end)
    if not end:
        assert not pair.channels.eof_received()
    pair.channels.connection_lost(None)
    assert pair.wrong == ["broken" if b"broken" in end else "the remote's API server hung up"]
    assert pair.above.lost
    assert not pair.above.ended


async def test_flood_of_pings_ends_the_connection() -> None:
    pair = Pair()
    pair.comes(*PORTS, message(0, b"x"), *[server_frame(9, b"")] * 100_000)
    assert pair.below.ended == ""
    assert len(pair.below.sent) < PORTION * 8
    await asyncio.sleep(0)
    assert pair.below.ended == "aborted"
    assert len(pair.below.sent) < 2 * PORTION * 8
    assert pair.wrong == ["the remote's API server sent what is no port-forward"]


async def test_flood_of_small_frames_leaves_turns_to_other_work() -> None:
    pair = Pair()
    pair.comes(*PORTS, *[message(0, b"x"), server_frame(9, b"")] * 500, server_frame(8, b""))
    pair.channels.connection_lost(None)
    before = 0
    for _ in range(1000 // PORTION):
        assert not pair.below.reads
        assert not pair.above.ended
        assert 0 < pair.above.pieces - before <= PORTION
        before = pair.above.pieces
        await asyncio.sleep(0)
    assert pair.above.data == b"x" * 500
    assert pair.above.ended
    assert pair.above.lost
    assert pair.wrong == []


async def test_nothing_is_written_between_the_loss_and_the_last_frame() -> None:
    """The write once raised RuntimeError into the code that had data to send."""
    pair = Pair()
    pair.comes(*PORTS, *[message(0, b"x")] * (2 * PORTION))
    pair.below.ended = "lost"
    pair.channels.connection_lost(None)
    assert len(pair.above.data) < 2 * PORTION
    pair.channels.write(b"answer")
    await asyncio.sleep(0.1)
    assert pair.above.lost
    assert len(pair.above.data) == 2 * PORTION


def test_pings_of_a_peer_that_reads_nothing_are_not_answered() -> None:
    pair = Pair()
    pair.below.unsent = UNSENT_LIMIT
    pair.comes(*PORTS, server_frame(9, b"x"))
    assert pair.below.sent == b""
    assert pair.wrong == []


@pytest.mark.parametrize(
    "raw",
    [
        bytes([0x82, 0x81]) + b"keyy" + b"x",  # masked
        bytes([0xC2, 1]) + b"x",  # an extension that was not negotiated
        bytes([0x83, 0]),  # no such kind
        bytes([0x89, 126, 0, 200]),  # too long for a ping
        message(2, b"x"),  # no such channel
    ],
)
def test_protocol_violation_aborts(raw: bytes) -> None:
    pair = Pair()
    pair.comes(*PORTS, raw, message(0, b"more"))
    assert len(pair.wrong) == 1
    assert pair.below.ended == "aborted"
    assert pair.above.data == b""


def test_sent_frames_are_masked_and_decodable() -> None:
    pair = Pair()
    pair.channels.write(b"x" * 300_000)
    sent, data = pair.below.sent, b""
    while sent:
        assert sent[0] == 0x82
        assert sent[1] == 0xFF or sent[1] == 0xFE
        wide = 8 if sent[1] == 0xFF else 2
        length = int.from_bytes(sent[2 : 2 + wide], "big")
        key = sent[2 + wide : 6 + wide]
        masked = sent[6 + wide : 6 + wide + length]
        payload = bytes(byte ^ key[at % 4] for at, byte in enumerate(masked))
        assert payload[0] == 0
        data += payload[1:]
        sent = sent[6 + wide + length :]
    assert data == b"x" * 300_000


def test_release_write_buffer_sends_an_empty_pong() -> None:
    pair = Pair()
    pair.channels.release_write_buffer()
    assert pair.below.sent[:2] == b"\x8a\x80"
    assert len(pair.below.sent) == 6, "a head and a key"


def test_nothing_is_sent_after_close() -> None:
    pair = Pair()
    pair.channels.write_eof()
    assert pair.below.sent == b"", "the protocol has no end of one direction"
    pair.channels.close()
    closed = pair.below.sent
    assert closed[0] == 0x88
    pair.channels.write(b"more")
    assert pair.below.sent == closed


def test_ended_connection_is_freed_without_the_garbage_collector() -> None:
    """Objects of ended connections once accumulated until the collector took half a second."""

    def connect_and_end() -> tuple[Above, list[str]]:
        above, errors = Above(), list[str]()

        def failed(why: str) -> None:
            errors.append(why)
            transport.abort()

        transport = PortForwardTransport(FramedTransport(above), failed)
        transport.connection_made(Below())
        transport.connection_lost(None)
        return above, errors

    gc.collect()
    gc.disable()
    try:
        above, errors = connect_and_end()
        left = [found for found in gc.get_objects() if isinstance(found, LayeredTransport)]
    finally:
        gc.enable()
    assert left == []
    assert above.lost
    assert len(errors) == 1
