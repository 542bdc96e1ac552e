"""Frames of SPDY/3.1: encoded as a server of Go reads them, and parsed whatever the boundaries."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.net import spdy_frames
from bridge.net.spdy_frames import FrameParser, HeaderEncoder, ProtocolError
from tests.bridge.relay.fake_spdy import control, data_frame


def test_header_blocks_are_one_zlib_stream() -> None:
    encoder, decoder = HeaderEncoder(), zlib.decompressobj()
    for stream in (1, 3, 5):
        sent = encoder.syn_stream(stream, {"streamtype": "data", "port": "80"})
        head, payload = sent[:8], sent[8:]
        assert head == struct.pack("!HHI", 0x8003, 1, len(payload))
        assert payload.endswith(b"\x00\x00\x00\xff\xff"), "Go's decompressor needs it"
        assert payload[:10] == struct.pack("!IIH", stream, 0, 0)
        assert decoder.decompress(payload[10:]) == (
            b"\x00\x00\x00\x02\x00\x00\x00\x0astreamtype\x00\x00\x00\x04data"
            b"\x00\x00\x00\x04port\x00\x00\x00\x0280"
        )


def test_data_head_has_size_and_end() -> None:
    assert spdy_frames.data_head(3, 5) + b"hello" == data_frame(3, b"hello")
    assert spdy_frames.data_head(3, 0, is_last=True) == data_frame(3, b"", is_last=True)


_FRAMES = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 2**31 - 1), st.binary(max_size=300), st.booleans()),
        st.integers(0, 2**31 - 1),
    ),
    max_size=8,
)


@given(frames=_FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1))
def test_result_is_independent_of_read_boundaries(
    frames: list[tuple[int, bytes, bool] | int], cuts: list[int]
) -> None:
    stream = b"".join(
        control(spdy_frames.PING, struct.pack("!I", it))
        if isinstance(it, int)
        else data_frame(it[0], it[1], is_last=it[2])
        for it in frames
    )
    parser, at, turn = FrameParser(), 0, 0
    events: list[tuple[int, int, bytes, bool]] = []
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        for found in parser.feed(stream[at : at + size]):
            # A data frame arrives in pieces: compare byte by byte, and its end.
            events += [(found.type, found.stream, bytes((it,)), False) for it in found.payload]
            if found.type or found.is_last:
                events.append((found.type, found.stream, b"", found.is_last))
        at, turn = at + size, turn + 1
    expected: list[tuple[int, int, bytes, bool]] = []
    for frame in frames:
        if isinstance(frame, int):
            expected.append((spdy_frames.PING, frame, b"", False))
            continue
        number, data, is_last = frame
        expected += [(0, number, bytes((it,)), False) for it in data]
        if is_last:
            expected.append((0, number, b"", True))
    assert events == expected


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack("!HHI", 0x8002, 6, 4) + b"\x00" * 4, id="version 2"),
        pytest.param(struct.pack("!HHI", 0x8003, 6, 2) + b"\x00" * 2, id="too short"),
        pytest.param(struct.pack("!HHI", 0x8003, 4, 0xFFFFFF), id="too long"),
    ],
)
def test_what_is_no_spdy_is_an_error(sent: bytes) -> None:
    with pytest.raises(ProtocolError):
        [*FrameParser().feed(sent)]
