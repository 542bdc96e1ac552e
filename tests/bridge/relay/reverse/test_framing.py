"""The frames between bridge and relay agent, byte by byte."""

from __future__ import annotations

import asyncio
import random

import pytest

from bridge.relay.reverse.framing import FramedTransport
from sync.kube.portions import PORTION
from tests.bridge.relay.reverse.test_datagram_stream import FakeTransport

EOF, RESET = bytes(4), b"\xff\xff\xff\xff"


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class Above(asyncio.Protocol):
    """Notes what arrives, and how it ends."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ends: list[str] = []

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.ends.append("EOF")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost")


class Pair:
    def __init__(self) -> None:
        self.below, self.above = FakeTransport(), Above()
        self.framed = FramedTransport(self.above)
        self.framed.connection_made(self.below)


@pytest.mark.parametrize("seed", range(10))
def test_result_is_independent_of_read_boundaries(seed: int) -> None:
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.choice((1, 3, 5, 1000))) for _ in range(20)]
    stream, pair = b"".join(map(frame, pieces)) + EOF, Pair()
    while stream:
        size = rng.choice((1, 2, 5, 300))
        pair.framed.data_received(stream[:size])
        stream = stream[size:]
    assert b"".join(pair.above.pieces) == b"".join(pieces)
    assert pair.above.ends == ["EOF"]


@pytest.mark.parametrize("end", [b"", RESET, b"\x7f\xff\xff\xff", frame(b"more")[:6]])
def test_connection_without_eof_is_lost(end: bytes) -> None:
    pair = Pair()
    pair.framed.data_received(frame(b"part") + end)
    assert pair.below.aborted or not end.startswith((RESET, b"\x7f"))
    pair.framed.connection_lost(None)
    assert pair.above.ends == ["lost"]


def test_reset_follows_the_data_and_replaces_eof() -> None:
    pair = Pair()
    pair.framed.write(b"part")
    pair.framed.reset()
    pair.framed.close()
    pair.framed.write_eof()
    assert b"".join(pair.below.written) == frame(b"part") + RESET


async def test_flood_of_small_frames_leaves_turns_to_other_work() -> None:
    pair = Pair()
    pair.framed.data_received(frame(b"x") * 1000 + EOF)
    pair.framed.connection_lost(None)
    before = 0
    while not pair.above.ends:
        assert 0 < len(pair.above.pieces) - before <= PORTION
        before = len(pair.above.pieces)
        assert not pair.below.is_reading()
        await asyncio.sleep(0)
    assert len(pair.above.pieces) == 1000
    assert pair.above.ends == ["EOF", "lost"]


async def test_nothing_is_written_between_the_loss_and_the_last_frame() -> None:
    """The write once raised RuntimeError on uvloop."""
    pair = Pair()
    pair.framed.data_received(frame(b"x") * (2 * PORTION))
    pair.below.aborted = True
    pair.framed.connection_lost(None)
    pair.framed.write(b"answer")
    pair.framed.reset()
    assert pair.below.written == []
    await asyncio.sleep(0.1)
    assert (len(pair.above.pieces), pair.above.ends) == (2 * PORTION, ["lost"])
