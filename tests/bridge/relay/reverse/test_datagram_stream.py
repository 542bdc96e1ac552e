"""Frames of datagrams, and the queue in which they wait for the stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.relay.reverse import datagram_stream
from bridge.relay.reverse.datagram_stream import (
    DatagramQueue,
    DatagramStream,
    Flow,
    QueuedBytes,
    packed_address,
)
from sync.kube.portions import PORTION

FLOW = Flow(20000, 4000, packed_address("10.9.0.4"))
OTHER = Flow(20001, 4000, packed_address("fd00::4"))


class FakeTransport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False
        self._reads = True

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class End:
    """One end of a stream."""

    def __init__(self, preface: bytes = b"") -> None:
        self.received: list[tuple[Flow, bytes]] = []
        self.stream = DatagramStream(self._datagram, preface=preface)
        self.transport = FakeTransport()
        self.stream.connection_made(self.transport)

    def _datagram(self, _: DatagramStream, flow: Flow, datagram: bytes) -> None:
        self.received.append((flow, datagram))

    def send(self, *datagrams: tuple[Flow, bytes]) -> list[str]:
        return [self.stream.send(flow, datagram) for flow, datagram in datagrams]


def test_addresses_are_as_text_and_packed() -> None:
    for address in ("10.9.0.4", "fd00::4"):
        assert Flow(1, 2, packed_address(address)).client_address == address
    assert packed_address("::ffff:10.9.0.4") == packed_address("10.9.0.4")
    assert packed_address("fe80::1%eth0") == packed_address("fe80::1")


@given(
    datagrams=st.lists(
        st.tuples(st.sampled_from([FLOW, OTHER]), st.binary(max_size=300)), max_size=12
    ),
    cuts=st.lists(st.integers(min_value=1, max_value=70), min_size=1, max_size=5),
)
def test_datagrams_keep_their_boundaries_however_bytes_arrive(
    datagrams: list[tuple[Flow, bytes]], cuts: list[int]
) -> None:
    sender, receiver = End(), End()
    assert not any(sender.send(*datagrams))
    data = b"".join(sender.transport.written)
    at = turn = 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        receiver.stream.data_received(data[at : at + size])
        at, turn = at + size, turn + 1
    assert receiver.received == datagrams


def test_longest_and_empty_datagram_are_forwarded() -> None:
    sender, receiver = End(b"first line\n"), End()
    datagrams = [(FLOW, bytes(65535)), (FLOW, b""), (OTHER, b"x")]
    sender.send(*datagrams)
    assert sender.transport.written[0] == b"first line\n"
    receiver.stream.data_received(b"".join(sender.transport.written[1:]))
    assert receiver.received == datagrams


async def test_flood_of_small_datagrams_leaves_turns_to_other_work() -> None:
    sender, receiver = End(), End()
    datagrams = [(FLOW, number.to_bytes(2, "big")) for number in range(1000)]
    sender.send(*datagrams)
    data = b"".join(sender.transport.written)
    receiver.stream.data_received(data[:-3])
    counts = []
    while not receiver.transport.is_reading():
        counts.append(len(receiver.received))
        await asyncio.sleep(0)
    assert len(counts) == 1000 // PORTION
    assert counts[0] == PORTION
    receiver.stream.data_received(data[-3:])
    assert receiver.received == datagrams


async def test_data_that_arrives_between_two_turns_stays_in_order() -> None:
    sender, receiver = End(), End()
    datagrams = [(FLOW, number.to_bytes(2, "big")) for number in range(1000)]
    sender.send(*datagrams)
    data = b"".join(sender.transport.written)
    for at in range(0, len(data), 10_000):  # what a transport had read before it was paused
        receiver.stream.data_received(data[at : at + 10_000])
    assert not receiver.transport.is_reading()
    for _ in range(1000 // PORTION):
        await asyncio.sleep(0)
    assert receiver.transport.is_reading()
    assert receiver.received == datagrams


@pytest.mark.parametrize("aborts", [True, False])
async def test_stream_that_ends_between_two_turns(*, aborts: bool) -> None:
    """Datagrams that have arrived are handled, but none after an abort: it closes the sockets."""
    sender, receiver = End(), End()
    sender.send(*[(FLOW, b"x")] * 200)
    receiver.stream.data_received(b"".join(sender.transport.written))
    if aborts:
        receiver.stream.abort()
    receiver.stream.connection_lost(None)
    await receiver.stream.closed.wait()
    assert len(receiver.received) == (PORTION if aborts else 200)


def test_waiting_datagrams_of_several_flows_take_turns() -> None:
    sender, receiver = End(), End()
    sender.stream.pause_writing()
    bulk = [(FLOW, bytes([number])) for number in range(50)]
    sender.send(*bulk, (OTHER, b"a"), (OTHER, b"b"))
    assert not sender.transport.written
    sender.stream.resume_writing()
    receiver.stream.data_received(b"".join(sender.transport.written))
    assert [it for it in receiver.received if it[0] == FLOW] == bulk, "in order"
    assert [flow for flow, _ in receiver.received[:4]] == [FLOW, OTHER, FLOW, OTHER]


def test_queue_of_a_flow_is_bounded_and_leaves_room_for_others() -> None:
    sender = End()
    sender.stream.pause_writing()
    size = 10_000
    results = sender.send(*[(FLOW, bytes(size))] * 100)
    queued = results.count("")
    assert set(results) == {"", "queue"}
    assert 0.9 * datagram_stream.FLOW_QUEUE < queued * size <= datagram_stream.FLOW_QUEUE
    assert sender.send((OTHER, b"x")) == [""]


def test_queue_is_bounded_over_all_flows() -> None:
    sender = End()
    sender.stream.pause_writing()
    flows = [FLOW._replace(client_port=port) for port in range(1, 2000)]
    results = sender.send(*((flow, bytes(10_000)) for flow in flows))
    assert 0.9 * datagram_stream.QUEUE < results.count("") * 10_000 <= datagram_stream.QUEUE


def test_queues_of_all_streams_are_bounded() -> None:
    """Each may hold as much as is free, and gives it back at its end."""
    queued = QueuedBytes()
    queues = [DatagramQueue(queued) for _ in range(10)]
    flows = [FLOW._replace(client_port=port) for port in range(1, 500)]
    for queue in queues:
        for flow in flows:
            queue.put(flow, bytes(10_000))
    assert 0.9 * datagram_stream.QUEUES < queued.held <= datagram_stream.QUEUES
    queues[0].clear()
    assert queued.held <= 0.6 * datagram_stream.QUEUES
    for queue in queues:
        queue.clear()
    assert queued.held == 0


def test_emptied_queue_takes_as_much_again() -> None:
    queue = DatagramQueue()

    def fill() -> int:
        count = 0
        while queue.put(FLOW, bytes(1000)):
            count += 1
        return count

    first = fill()
    while queue.take() is not None:
        pass
    assert fill() == first


def test_transport_that_is_full_again_keeps_the_rest_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sender = End()
    sender.stream.pause_writing()
    sender.send(*[(FLOW, b"x")] * 3)
    real = sender.transport.write

    def write(data: Any) -> None:
        real(data)
        sender.stream.pause_writing()

    monkeypatch.setattr(sender.transport, "write", write)
    sender.stream.resume_writing()
    assert len(sender.transport.written) == 1
    sender.stream.resume_writing()
    assert len(sender.transport.written) == 2


def test_ended_stream_drops() -> None:
    sender = End()
    sender.stream.connection_lost(None)
    assert sender.send((FLOW, b"x")) == ["no-way"]
    assert sender.stream.closed.is_set()
