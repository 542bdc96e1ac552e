"""A server that speaks HTTP/2 cannot make the bridge buffer without end."""

from __future__ import annotations

import asyncio

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection

from sync.kube import http2_connection
from sync.kube.http2_connection import Http2Connection
from tests.sync.kube.test_response_limits import MIB, memory_below

_HEADERS = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/")]
#: As separate objects they would take 2 MiB.
_FRAMES = 50_000
PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00" + b"12345678"


class StuckTransport(asyncio.Transport):
    """A connection whose peer reads nothing more once it is ``stuck``."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.aborted = False

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
    monkeypatch.setattr(http2_connection, "UNSENT_LIMIT", 2**14)
    pair = Pair()
    with memory_below(8 * MIB):
        for _ in range(30):
            if not pair.transport.aborted:
                pair.client.data_received(PING * at_once)
    assert pair.ended == [pair.client]
    with pytest.raises(OSError, match=why):
        await pair.response.readany()


async def test_single_bytes_are_buffered_as_bytes() -> None:
    pair = Pair()
    pair.server.send_headers(1, [(":status", "200")])
    pair.pass_on()
    pair.server.send_data(1, b"x")
    frame = pair.server.data_to_send()
    with memory_below(MIB // 2):
        for _ in range(_FRAMES // 1000):
            pair.client.data_received(frame * 1000)
    assert await pair.response.readany() == b"x" * _FRAMES


async def test_endless_header_lists_end_the_connection() -> None:
    pair = Pair()
    with memory_below(16 * MIB):
        pair.server.send_headers(
            1, [(":status", "200"), *((f"a{n}", "b" * 999) for n in range(99))]
        )
        pair.pass_on()
    assert pair.ended == [pair.client]
    with pytest.raises(OSError, match="violates"):
        await pair.response.head()
