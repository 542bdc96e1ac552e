"""A server that speaks HTTP/2 cannot make the bridge buffer without end."""

from __future__ import annotations

import asyncio

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from sync.kube import http2
from sync.kube.http2 import Http2Connection
from tests.sync.kube.test_response_limits import MIB, memory_below

_HEADERS = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
#: As separate objects they would take 340 KB.
_FRAMES = 8000
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678"


class StuckTransport(asyncio.Transport):
    """A connection whose peer reads nothing more once it is ``stuck``."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.aborted = False
        self.reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def take(self) -> bytes:
        """The bytes that the peer reads."""
        data = bytes(self.written)
        self.written.clear()
        return data


class Pair:
    """A client's connection and the h2 state of its server."""

    def __init__(self) -> None:
        self.ended: list[Http2Connection] = []
        self.transport = StuckTransport()
        self.client = Http2Connection(self.ended.append)
        self.server = H2Connection(H2Configuration(client_side=False))
        self.client.connection_made(self.transport)
        self.server.initiate_connection()
        self.pass_on()
        self.response = self.client.get(_HEADERS)
        self.pass_on()

    def pass_on(self) -> None:
        """Passes what each side has sent to the other."""
        self.server.receive_data(self.transport.take())
        self.client.data_received(self.server.data_to_send())


@pytest.mark.parametrize(("at_once", "why"), [(50, "without reading"), (10_000, "floods")])
async def test_pings_without_reading_the_replies_end_the_connection(
    at_once: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http2, "UNSENT_LIMIT", 2**14)
    pair = Pair()
    with memory_below(8 * MIB):
        for _ in range(30):
            if not pair.transport.aborted:
                pair.client.data_received(PING * at_once)
                await asyncio.sleep(1.1)
    assert pair.ended == [pair.client]
    with pytest.raises(OSError, match=why):
        await pair.response.readany()


#: Frames without a part of a response: settings, an empty piece of a body, the end of a response
#: that is unknown, and a frame of an unknown type.
_CONTROL = [
    b"\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x01",
    b"\x00\x00\x04\x03\x00\x00\x00\x00\x01" + bytes(4),
    b"\x00\x00\x00\xff\x00\x00\x00\x00\x00",
]


@pytest.mark.parametrize("frame", _CONTROL)
@pytest.mark.parametrize("cut", [1, 1000, 100_000])
async def test_floods_of_frames_without_a_response_end_the_connection(
    frame: bytes, cut: int
) -> None:
    pair = Pair()
    pair.server.send_headers(1, [(":status", "200")])
    pair.pass_on()
    flood = frame * 3_000
    for start in range(0, len(flood), cut):
        if not pair.transport.aborted:
            pair.client.data_received(flood[start : start + cut])
    assert pair.ended == [pair.client]


async def test_pings_of_a_whole_day_do_not_end_the_connection() -> None:
    pair = Pair()
    for _ in range(3_000):
        await asyncio.sleep(30)
        pair.client.data_received(PING)
        pair.transport.take()
    assert pair.ended == []


@pytest.mark.parametrize(
    "status", ["0", "99", "600", "6000", "2000000", "\u0662\u0660\u0660", "-1"]
)
async def test_response_without_a_valid_status_fails(status: str) -> None:
    pair = Pair()
    raw = [(b":status", status.encode())]
    pair.server.config.validate_outbound_headers = False
    pair.server.send_headers(1, raw)
    pair.pass_on()
    with pytest.raises(OSError, match="status"):
        await pair.response.head()


async def test_single_bytes_are_buffered_as_bytes() -> None:
    pair = Pair()
    pair.server.send_headers(1, [(":status", "200")])
    pair.pass_on()
    pair.server.send_data(1, b"x")
    frame = pair.server.data_to_send()
    with memory_below(MIB // 4):
        for _ in range(_FRAMES // 1000):
            pair.client.data_received(frame * 1000)
    assert await pair.response.readany() == b"x" * _FRAMES


async def test_table_of_sent_headers_does_not_grow_as_the_server_permits() -> None:
    """It once kept each path for as long as the connection lasted."""
    pair = Pair()
    pair.server.update_settings({SettingCodes.HEADER_TABLE_SIZE: 2**32 - 1})
    pair.pass_on()
    with memory_below(MIB):
        for number in range(160):
            path = f"/{number}/".encode() + b"a" * 8_000
            response = pair.client.get([*_HEADERS[:3], (b":path", path)])
            pair.pass_on()
            response.close()
            pair.pass_on()


@pytest.mark.parametrize("is_lost", [False, True])
async def test_flood_of_small_frames_is_parsed_in_turns(is_lost: bool) -> None:
    """One read of them once kept the event loop busy for 0.4 s."""
    pair = Pair()
    pair.server.send_headers(1, [(":status", "200")])
    pair.pass_on()
    pair.server.send_data(1, b"x")
    frame = pair.server.data_to_send()
    pair.server.end_stream(1)
    pair.client.data_received(frame * 20_000 + pair.server.data_to_send())
    assert not pair.transport.reads
    if is_lost:
        pair.client.connection_lost(None)
    sizes = []
    while part := await pair.response.readany():
        sizes.append(len(part))
    assert sum(sizes) == 20_000
    assert max(sizes) < 2_000
    assert pair.ended == [pair.client]


async def test_endless_header_lists_end_the_connection() -> None:
    pair = Pair()
    with memory_below(16 * MIB):
        pair.server.send_headers(
            1, [(":status", "200"), *((f"a{n}", "b" * 999) for n in range(99))]
        )
        pair.pass_on()
        await asyncio.sleep(0.1)
    assert pair.ended == [pair.client]
    with pytest.raises(OSError, match="violates"):
        await pair.response.head()
